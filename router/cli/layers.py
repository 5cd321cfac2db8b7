"""`shoal layers`: how often each layer runs, and proof that layers are skipped."""

import json as jsonlib
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..errors import RouterError
from ..settings import load_settings
from .ask import Depth, Json, Model, depth_of, printable
from .output import note, out, print_json

if TYPE_CHECKING:
    from ...gated_llm import GatedLLM
    from ...gated_llm.verify import Measured

layers = typer.Typer(help="See which layers run.", invoke_without_command=True)
_PROMPT = "Name three uses of a lighthouse."
_SAMPLE = (_PROMPT, "What is the capital of France?", "Write two sentences about the sea.")
_WAIT_S = 10.0


def register(app: typer.Typer) -> None:
    app.add_typer(layers, name="layers")


@layers.callback()
def health(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(help="A running service; its key is the setting api_key.")] = None,
    max_depth: Depth = None,
    model: Model = None,
    json: Json = False,
) -> None:
    """How often each layer ran lately: of a running service (--url), else of a few prompts asked here and now."""
    if context.invoked_subcommand is not None:
        return
    report = _remote(url) if url is not None else _sampled(model, max_depth)
    if json:
        print_json(report)
        return
    names = list(dict.fromkeys(name for layer in report["layers"].values() for name in layer.get("signals", {})))
    gated = ["gate"] if any(layer.get("gate") is not None for layer in report["layers"].values()) else []
    table = Table("layer", "attention", "MLP", *gated, *names, title="Share of the generated tokens that ran it")
    for name, layer in report["layers"].items():
        values = [_share(layer["attention"]), _share(layer["mlp"]), *[_number(layer.get("gate")) for _ in gated]]
        values += [_number(layer.get("signals", {}).get(signal)) for signal in names]
        skipped = any(rate is not None and rate < 1 for rate in (layer["attention"], layer["mlp"]))
        table.add_row(printable(name.removeprefix("layer_")), *values, style="cyan" if skipped else None)
    out.print(table)
    note(f"{report['tokens']} generated tokens of the last {report['requests']} requests")


def _sampled(model: str | None, max_depth: str | None) -> dict[str, Any]:
    with _loaded(model) as llm:
        for prompt in _SAMPLE:
            llm.generate(prompt, max_depth=depth_of(max_depth) or "auto", max_tokens=24)
        return llm.get_layer_health()


def _remote(url: str) -> dict[str, Any]:
    """Raises `RouterError` when no service answers there."""
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter("give http:// or https:// and the service's address", param_hint="--url")
    key = load_settings().api_key
    request = urllib.request.Request(
        url.rstrip("/").removesuffix("/v1") + "/v1/layers/health",
        headers={"Authorization": f"Bearer {key}"} if key else {},
    )
    try:
        with urllib.request.urlopen(request, timeout=_WAIT_S) as reply:
            report = jsonlib.load(reply)
            report["tokens"], report["requests"], report["layers"].items()
    except urllib.error.HTTPError as error:
        error.close()
        way_out = "set SHOAL_API_KEY to one of its keys" if error.code == 401 else "its log says more"
        raise RouterError(f"the service at {url} answered {error.code}: {way_out}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RouterError(f"no Shoal service answers at {url} ({type(error).__name__}): is `shoal serve` up?") from None
    return dict(report)


@layers.command()
def verify(
    max_depth: Depth = None,
    model: Model = None,
    max_tokens: Annotated[int, typer.Option(min=2)] = 32,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = _PROMPT,
    json: Json = False,
) -> None:
    """Answer one prompt at full depth and at a budget, side by side: branches run, time, KV bytes, text."""
    from ...gated_llm.verify import side_by_side

    with _loaded(model) as llm:
        shallow = depth_of(max_depth) or f"{100 * llm.min_depth / llm.total:.10g}%"
        rows = side_by_side(llm, ["100%", shallow], prompt, max_tokens=max_tokens)
    if json:
        print_json([row.to_dict() for row in rows])
        return
    out.print(_compared(*rows))
    for row in rows:
        out.print(f"{row.budget:g} layers: {printable(row.text)}", markup=False, highlight=False)
    out.print(
        f"{rows[1].dropped} branches are left out at {rows[1].budget:g} layers. "
        f"They ran {rows[1].dropped_calls} times, by the {rows[1].counted_by}'s count.",
        highlight=False,
    )
    note("one measurement here and now; benchmarks/depth.py measures it properly")


def _compared(full: "Measured", shallow: "Measured") -> Table:
    table = Table("per token after the first", f"{full.budget:g} layers", f"{shallow.budget:g} layers", "less")
    for (name, a), b in zip(_per_token(full).items(), _per_token(shallow).values(), strict=True):
        table.add_row(name, f"{a:,.4g}", f"{b:,.4g}", f"{1 - b / a:.0%}" if a else "")
    table.add_row("layers never run", _never(full), _never(shallow), "")
    return table


def _per_token(row: "Measured") -> dict[str, float]:
    attention, mlp = (sum(pair[branch] for pair in row.calls) / row.tokens for branch in (0, 1))
    return {
        "attention branches run": attention,
        "MLP branches run": mlp,
        "depth, layers": row.depth,
        "time, ms": row.ms_per_token,
        "keys and values, KB": row.kv_bytes / row.tokens / 1000,
    }


def _never(row: "Measured") -> str:
    return ", ".join(str(layer) for layer, pair in enumerate(row.calls) if not any(pair)) or "none"


def _loaded(model: str | None) -> "GatedLLM":
    from ..wiring import load_local

    return load_local(load_settings(model=model))


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
