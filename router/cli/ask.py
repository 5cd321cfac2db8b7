"""`shoal ask`, `shoal chat`, `shoal route`: one request, a conversation, a decision."""

import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ..decision import Answer, Decision, Message
from ..errors import InvalidRequest, NoModel, Refused, RemoteFailed
from ..settings import Settings, load_settings
from ..visible import visible
from .output import err, note, out, print_json, progress_bar

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
Depth = Annotated[str | None, typer.Option("--max-depth", help='Budget: layers ("24"), a share ("60%") or "auto".')]
Profile = Annotated[str | None, typer.Option(help="command, balanced, chat, or one of your own.")]
Model = Annotated[str | None, typer.Option(help="Name, folder, hub id or GGUF file of the model.")]
_HEIGHTS = "▁▂▃▄▅▆▇█"  # shallow to deep, so that the strip can be read without colours
_SHADES = ("blue", "blue", "cyan", "cyan", "green", "yellow", "dark_orange", "red")
_LEVELS = len(_HEIGHTS)
_OF_ONE_TURN = (Refused, InvalidRequest, NoModel, RemoteFailed)  # the conversation goes on without it


def register(app: typer.Typer) -> None:
    app.command()(ask)
    app.command()(chat)
    app.command()(route)


def depth_of(text: str | None) -> int | str | None:
    """Layers as int where the text is a whole number, else the text itself ("60%", "auto")."""
    if text is None:
        return None
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,9}", text) else text


def router_for(settings: Settings) -> Any:
    """The router that the settings describe, with a progress bar for what has to be fetched first."""
    from ..wiring import build_router

    remote = None
    if settings.deep is not None:
        from ..integrations.langchain.remote import connect

        remote = connect(settings.deep, url=settings.deep_url)
    with progress_bar() as progress:
        return build_router(settings, progress=progress, say=note, remote=remote)


def ask(
    text: Annotated[str, typer.Argument(help="The question; - reads it from standard input.")],
    max_depth: Depth = None,
    profile: Profile = None,
    model: Model = None,
    max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2)] = None,
    seed: int | None = None,
    trace: Annotated[str | None, typer.Option(help='What is kept: "off", "light", "full"; see `shoal trace`.')] = None,
    router_only: Annotated[bool | None, typer.Option("--router-only", help="No language model.")] = None,
    json: Json = False,
) -> None:
    """Answer one request and say where the answer came from and how deep it was."""
    settings = load_settings(model=model, router_only=router_only, profile=profile)
    router = router_for(settings)
    fields = {
        "max_depth": depth_of(max_depth),
        "profile": settings.profile,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "trace": trace,
    }
    try:
        question = sys.stdin.read() if text == "-" else text
        if json:
            print_json(router.ask(question, **fields).to_dict())
        else:
            _print_stream(router, question, fields)
    finally:
        router.close()


def _print_stream(router: Any, prompt: Any, fields: dict[str, Any]) -> Answer:
    answer: Answer | None = None
    for piece in router.ask_stream(prompt, **fields):
        out.print(escape(printable(piece.text)), end="", highlight=False)
        answer = piece.answer or answer
    out.print()
    if answer is None:
        raise RuntimeError("the stream ended without an answer")
    note(summary(answer))
    return answer


def printable(text: str) -> str:
    """The text without terminal control characters: an answer must not be able to drive the terminal."""
    return visible(text, also="\n\t")


def summary(answer: Answer) -> str:
    """One line: route, depth, tier, time and why."""
    depth = answer.trace.depth
    tier = f", cache {answer.trace.tier}" if answer.trace.tier else ""
    return (
        f"{answer.route.value}{tier} · depth {depth['max']:g}/{depth['total']} · "
        f"{answer.trace.latency_ms:.0f} ms · {'; '.join(answer.trace.decision.reasons)}"
    )


def print_strip(answer: Answer, console: Console) -> None:
    """The depth of each token as a strip, higher and warmer the deeper; nothing where the terminal cannot show it.

    An answer longer than the terminal is wide gets a cell for several tokens, as high as the deepest of them.
    """
    depths, total = answer.trace.depth.get("per_token", ()), answer.trace.depth["total"]
    if not depths or not console.is_terminal or console.is_dumb_terminal or console.encoding != "utf-8":
        return
    made = len(depths)
    cells = min(made, max(8, console.width - 24))
    strip = Text()
    for cell in range(cells):
        depth = max(depths[cell * made // cells : (cell + 1) * made // cells])
        level = min(_LEVELS - 1, int(_LEVELS * depth / total))
        strip.append(_HEIGHTS[level], style=_SHADES[level])
    low, high = min(depths), max(depths)
    strip.append(f" {low:g} to {high:g} of {total}" if low < high else f" {high:g} of {total}", style="dim")
    console.print(strip)


def chat(
    max_depth: Depth = None,
    profile: Profile = None,
    model: Model = None,
    max_tokens: int | None = None,
    json: Json = False,
) -> None:
    """Talk; an empty line or Ctrl-D ends it. With --json one line of JSON per answer."""
    settings = load_settings(model=model, profile=profile)
    router = router_for(settings)
    fields = {"max_depth": depth_of(max_depth), "profile": settings.profile, "max_tokens": max_tokens}
    messages: list[Message] = []
    try:
        while line := _read_line():
            try:
                said = [*messages, Message(role="user", content=line)]
                if json:
                    answer = router.ask(said, **fields)
                    print_json(answer.to_dict())
                else:
                    answer = _print_stream(router, said, fields)
                    print_strip(answer, err)
            except _OF_ONE_TURN as error:
                if isinstance(error, InvalidRequest) and error.param != "messages":
                    raise
                note(str(error))
                if json:
                    print_json({"error": {"code": _code(error), "message": str(error)}})
                continue
            messages = [*said, Message(role="assistant", content=answer.text)]
    finally:
        router.close()


def _read_line() -> str:
    try:
        return err.input("> ").strip() if sys.stdin.isatty() else sys.stdin.readline().strip()
    except EOFError:
        return ""


def route(
    text: Annotated[str, typer.Argument(help="The request; - decides each line of standard input.")],
    max_depth: Depth = None,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Decide where a request would go and how deep, without answering it. Needs no model."""
    settings = load_settings(router_only=True, profile=profile)
    from ..wiring import build_decider

    router = build_decider(settings)
    failed = False
    try:
        if text != "-":
            _print_decision(router.decide(text, max_depth=depth_of(max_depth), profile=settings.profile), json)
            return
        for number, raw in enumerate(_raw_lines(), 1):
            try:
                line = raw.decode("utf-8").rstrip("\r\n")
                if line.strip():
                    _print_decision(router.decide(line, max_depth=depth_of(max_depth), profile=settings.profile), json)
            except (Refused, InvalidRequest, UnicodeDecodeError) as error:
                failed = True
                _print_failure(number, error, json)
    finally:
        router.close()
    if failed:
        raise typer.Exit(1)


def _raw_lines() -> Iterator[bytes]:
    """Lines of standard input as bytes, so that one that is no UTF-8 does not end the rest."""
    buffer = getattr(sys.stdin, "buffer", None)
    yield from buffer if buffer is not None else (line.encode("utf-8", "surrogatepass") for line in sys.stdin)


def _print_failure(number: int, error: Exception, json: bool) -> None:
    """One line of input that got no decision."""
    message = "this is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
    if json:
        print_json({"error": {"line": number, "code": _code(error), "message": message}})
    note(f"line {number}: {message}")


def _code(error: Exception) -> str:
    match error:
        case Refused():
            return error.code
        case NoModel():
            return "no_model"
        case RemoteFailed():
            return "remote_failed"
    return "invalid_request"


def _print_decision(decision: Decision, json: bool) -> None:
    if json:
        print_json(decision.to_dict())
        return
    out.print(
        f"{decision.route.value}  budget {decision.budget:g}/{decision.total}  bucket {decision.bucket}  "
        f"confidence {decision.confidence:.2f}  {'; '.join(decision.reasons)}",
        markup=False,
        highlight=False,
    )
