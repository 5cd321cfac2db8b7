"""`shoal gates recalibrate`, `versions`, `rollback`: learned gates that follow what people disliked (G15)."""

from collections.abc import Mapping
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..settings import Settings, load_settings
from .ask import Json, Model
from .output import note, out, print_json

if TYPE_CHECKING:
    from ...gated_llm.train.recalibrate import Outcome
    from ...gated_llm.versions import Versions
    from ..traces import TraceStore

_PROMPTS = 320
Adapter = Annotated[str | None, typer.Option(help="The gates of this adapter, not the model's own.")]


def recalibrate(
    adapter: Adapter = None,
    prompts: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="What users ask, one a line or JSON lines; kept for later."),
    ] = None,
    traces: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The trace store; by default the service's own.")
    ] = None,
    model: Model = None,
    json: Json = False,
) -> None:
    """Let learned gates skip less of what disliked answers had skipped more, if held-out answers do not lose.

    Reads the kept traces. Without --adapter the model's gates and those of every adapter are looked at. Where nothing
    stands out nothing is measured. What is adopted is a new version; a running service takes it over by itself.
    """
    from ...gated_llm.errors import GatedError
    from ...gated_llm.gates import Gates
    from ...gated_llm.marks import marks_of
    from ...gated_llm.served import Folder, gates_file
    from ...gated_llm.train.recalibrate import Outcome
    from ...gated_llm.train.recalibrate import recalibrate as run
    from ...gated_llm.weights import locate
    from ..wiring import open_traces

    settings = load_settings(model=model)
    folder = locate(settings.model, home=settings.home)
    names = [adapter] if adapter else [None, *Folder(folder, dtype="auto", reader=False).adapters]
    there = [name for name in names if gates_file(folder, name).exists()]
    if not there:
        raise GatedError(f"{folder} has no learned gates: train some with `shoal gates train`.")
    if prompts is not None:
        _keep(prompts, [_kept(folder, name) for name in there])
    store = open_traces(settings, traces)
    done: list[Outcome] = []
    try:
        for name in there:
            marks = marks_of(store.answers(), gates=Gates.read(gates_file(folder, name)).fingerprint)
            whose = "gates" if name is None else f"gates of {name}"
            if marks.branches:
                note(f"{whose}, marked by thumbs-down: {marks}")
                asked = _asked(folder, name, store)
                done.append(run(folder, marks.branches, asked, adapter=name, say=note))
            else:
                done.append(Outcome(gates=whose, outcome="nothing", why=marks.why))
    finally:
        store.close()
    if json:
        print_json([asdict(one) for one in done])
        return
    for one in done:
        _tell(one)


def versions(adapter: Adapter = None, model: Model = None, json: Json = False) -> None:
    """The sets of gates that were in place, oldest first."""
    rows = [asdict(version) for version in _versions(load_settings(model=model), adapter).known()]
    if json:
        print_json(rows)
        return
    table = Table("version", "since", "why", "held-out loss", "")
    for row in rows:
        more = row["figures"].get("more")
        since, place = row["at"].replace("T", " ").removesuffix("+00:00"), "in place" if row["current"] else ""
        table.add_row(str(row["number"]), since, row["reason"], "" if more is None else f"{more:+.1%}", place)
    out.print(table)


def rollback(
    to: Annotated[int | None, typer.Option(min=1, help="A version; by default the one before the present one.")] = None,
    adapter: Adapter = None,
    model: Model = None,
    json: Json = False,
) -> None:
    """Put an earlier set of gates back, byte for byte. A running service takes it over by itself."""
    kept = _versions(load_settings(model=model), adapter)
    back = kept.rollback(to)
    if json:
        print_json({"version": back.number, "gates": str(kept.path)})
    else:
        note(f"version {back.number} ({back.reason}) is in place in {kept.path}")


def _versions(settings: Settings, adapter: str | None) -> "Versions":
    from ...gated_llm.versions import Versions
    from ...gated_llm.weights import locate

    return Versions.of(locate(settings.model, home=settings.home), adapter)


def _asked(folder: Path, adapter: str | None, store: "TraceStore") -> list[Any]:
    """Prompts that held-out answers are made to: those kept beside the model, else those in the traces where text is
    kept. Raises RouterError where there are none.
    """
    from ...gated_llm.train.samples import read_prompts
    from ..errors import RouterError

    kept = _kept(folder, adapter)
    asked: list[Any] = list(read_prompts(kept, _PROMPTS)) if kept.exists() else store.prompts(_PROMPTS)
    if not asked:
        raise RouterError(
            "there is nothing to measure on: give --prompts FILE with what your users ask (it is kept for next time), "
            "or let traces keep text (trace_text)"
        )
    return asked


def _keep(prompts: Path, targets: list[Path]) -> None:
    from ...gated_llm.train.samples import read_prompts

    rows = [dumps({"prompt": one}, ensure_ascii=False) for one in read_prompts(prompts, _PROMPTS)]
    for target in targets:
        target.write_text("".join(f"{row}\n" for row in rows), "utf-8")


def _kept(folder: Path, adapter: str | None) -> Path:
    return folder / f"{adapter + '.' if adapter else ''}prompts.jsonl"


def _tell(one: "Outcome") -> None:
    out.print(f"{one.gates}: {one.outcome}{f' as version {one.version}' if one.version else ''}", highlight=False)
    if one.why:
        out.print(f"  {one.why}", highlight=False)
    if one.figures:
        _figures(one.figures)


def _figures(figures: Mapping[str, Any]) -> None:
    table = Table("thrift", "loss before", "after", "layers before", "after")
    for row in figures["thrifts"]:
        loss, depth = row["loss"], row["depth"]
        table.add_row(f"{row['thrift']:g}", f"{loss[0]:.4f}", f"{loss[1]:.4f}", f"{depth[0]:.2f}", f"{depth[1]:.2f}")
    out.print(table)
    note(
        f"{figures['sequences']} held-out answers, {figures['tokens']} tokens: {figures['more']:+.1%} loss, at most "
        f"{figures['at_most']:+.1%} (95%), {figures['deeper']:+.3f} layers, at {figures['scale']:.0%} of the change"
    )
