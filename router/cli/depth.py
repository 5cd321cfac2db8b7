"""`shoal layers` and `shoal gates`: see that layers are skipped, and calibrate which ones may be."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..settings import load_settings
from .ask import Depth, Json, Model, depth_of
from .output import note, out, print_json

if TYPE_CHECKING:
    from ...gated_llm import GatedLLM

layers = typer.Typer(help="See which layers run.", no_args_is_help=True)
gates = typer.Typer(help="Depth plans: which branches may be left out.", no_args_is_help=True)
_PROMPT = "Name three uses of a lighthouse."


def register(app: typer.Typer) -> None:
    app.add_typer(layers, name="layers")
    app.add_typer(gates, name="gates")


def _loaded(model: str | None) -> "GatedLLM":
    from ..wiring import load_local

    return load_local(load_settings(model=model))


@layers.command()
def verify(
    max_depth: Depth = None,
    model: Model = None,
    max_tokens: Annotated[int, typer.Option(min=2)] = 32,
    json: Json = False,
) -> None:
    """Answer one prompt at full depth and at a budget, side by side: layers run and time per token."""
    llm = _loaded(model)
    shallow = depth_of(max_depth) or f"{100 * llm.min_depth / llm.total:.10g}%"
    llm.generate(_PROMPT, max_tokens=2)
    rows = [_measured(llm, budget, max_tokens) for budget in ("100%", shallow)]
    if json:
        print_json(rows)
        return
    table = Table("budget", "mean depth", "branches run", "ms per token", "layers never run")
    for row in rows:
        pruned = ", ".join(name.removeprefix("layer_") for name, state in row["layers"].items() if state == "pruned")
        table.add_row(
            f"{row['budget']:g}/{llm.total}",
            f"{row['mean_depth']:.2f}",
            str(row["branch_runs"]),
            f"{row['ms_per_token']:.1f}",
            pruned or "none",
        )
    out.print(table)
    note("one measurement on this machine now; benchmarks/depth.py measures it properly")


def _measured(llm: "GatedLLM", budget: int | str, max_tokens: int) -> dict[str, Any]:
    first, began, last = 0.0, time.perf_counter(), None
    for chunk in llm.stream(_PROMPT, max_depth=budget, max_tokens=max_tokens):
        first, last = first or time.perf_counter(), chunk
    spent = time.perf_counter() - (first or began)
    assert last is not None
    report = last.depth.to_dict()
    return {
        "budget": report["budget"],
        "mean_depth": report["mean"],
        "tokens": len(report["per_token"]),
        "branch_runs": sum(sum(pair) for pair in report["branch_runs"]),
        "ms_per_token": 1000 * spent / max(1, len(report["per_token"]) - 1),
        "layers": report["layers"],
    }


@gates.command()
def show(model: Model = None, json: Json = False) -> None:
    """The depth plan of a model: depth and measured loss after each branch that leaves."""
    llm = _loaded(model)
    points = [{"drop": list(p.drop), "depth": p.depth, "loss": p.loss} for p in llm.plan.points]
    if json:
        print_json({"model": llm.name, "total": llm.total, "min_depth": llm.min_depth, "points": points})
        return
    table = Table("without", "depth", "loss, nats per token")
    for point in llm.plan.points:
        table.add_row(f"{point.drop[0]} {point.drop[1]}", f"{point.depth:.2f}", f"{point.loss:.4f}")
    out.print(table)
    note(f"auto (at most {100 * llm.quality:g}% of likelihood) is {llm.resolve_budget('auto').depth:g} layers")


@gates.command()
def calibrate(
    text: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="Running text in the model's languages.")],
    prompts: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="What your users ask, one a line.")],
    model: Model = None,
    min_share: Annotated[float, typer.Option(min=0.1, max=1.0, help="Go down to this share of the layers.")] = 0.5,
    json: Json = False,
) -> None:
    """Find out which branches of a model cost least to leave out, and keep the plan beside the model.

    Takes minutes; a run that was broken off goes on where it stopped.
    """
    from ...gated_llm.train.calibrate import calibrate as run
    from ...gated_llm.weights import locate

    settings = load_settings(model=model)
    folder = locate(settings.model, home=settings.home)
    plan = run(
        folder,
        text=text.read_text("utf-8"),
        prompts=[line for line in prompts.read_text("utf-8").splitlines() if line.strip()],
        min_share=min_share,
        progress_file=folder / "calibration.json",
        say=note,
    )
    plan.write(folder / "plan.json")
    if json:
        print_json({"plan": str(folder / "plan.json"), "points": len(plan.points), "min_depth": plan.min_depth})
    else:
        note(f"{len(plan.points)} points down to depth {plan.min_depth:g} in {folder / 'plan.json'}")
