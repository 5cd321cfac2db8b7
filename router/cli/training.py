"""`shoal router train`: a classifier of your own, from requests and the routes they should take."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...rag.embed import default_embedder
from .ask import Json
from .output import can_write, note, out, print_json

router = typer.Typer(help="The router's classifier.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(router, name="router")


@router.callback()
def _group() -> None:
    """Keeps `train` a command of its own while it is the only one."""


@router.command()
def train(
    data: Annotated[Path, typer.Option(help="JSONL with text and route on each line.")],
    out_file: Annotated[Path, typer.Option("--out", help="Where the classifier goes (.safetensors).")],
    picture: Annotated[
        Path | None, typer.Option(help="PNG of reliability, confusion and cost; needs the extra `plots`.")
    ] = None,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Train on your own requests and report how it does on those it did not see."""
    from ..train.run import train_from_jsonl

    for file in (out_file, picture):
        if file is not None:
            can_write(file)
    report = train_from_jsonl(data, default_embedder(), out_file, picture=picture, seed=seed, say=note)
    if json:
        print_json(report.to_dict())
    else:
        _print(report.metrics)
    if picture is not None:
        note(f"drawn in {picture}")
    note(f"to route with it, set classifier (SHOAL_CLASSIFIER) to {out_file}")


def _print(metrics: dict[str, Any]) -> None:
    """Figures by language, the confusion matrix, and what careful routing costs."""
    from rich.table import Table

    names = {"n": "requests", "accuracy": "right", "macro_f1": "macro-F1", "ece": "calibration error"}
    names |= {"coverage": "coverage", "decided": "decided", "too_shallow_after_abstention": "too shallow"}
    groups = [name for name in metrics if isinstance(metrics[name], dict) and "confusion" in metrics[name]]
    figures = Table("", *names.values(), title="On requests it did not see")
    for group in groups:
        figures.add_row(group, *(f"{metrics[group][name]:g}" for name in names))
    counts = Table("is / routed to", *metrics["routes"], title="Confusion")
    for route, row in zip(metrics["routes"], metrics["all"]["confusion"], strict=True):
        counts.add_row(route, *map(str, row))
    costs = Table("level", "deeper than needed", "too shallow", title="Cost of care")
    for point in metrics["all"]["cost_curve"]:
        costs.add_row(*(f"{point[name]:g}" for name in ("level", "too_deep", "too_shallow")))
    for shown in (figures, counts, costs):
        out.print(shown)
