"""`shoal router train`: a classifier of your own, from requests and the routes they should take."""

from pathlib import Path
from typing import Annotated

import typer

from ...rag.embed import default_embedder
from .ask import Json
from .output import note, out, print_json

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
    seed: int = 0,
    json: Json = False,
) -> None:
    """Train on your own requests and report how it does on those it did not see."""
    from ..train.run import train_from_jsonl

    report = train_from_jsonl(data, default_embedder(), out_file, seed=seed, say=note)
    if json:
        print_json(report.to_dict())
    else:
        out.print_json(data=report.to_dict())
