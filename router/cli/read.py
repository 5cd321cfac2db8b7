"""`shoal read`: a question over a whole document, however long (G11)."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..settings import load_settings
from .ask import Depth, Json, Model, depth_of
from .output import out, print_json, progress_bar


def register(app: typer.Typer) -> None:
    app.command()(read)


def read(
    file: Annotated[Path, typer.Argument(help="A text file in UTF-8; - reads standard input.")],
    question: Annotated[str, typer.Argument(help='What to find out, such as "Summarise this."')],
    max_depth: Depth = None,
    model: Model = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of each segment's answer and of the whole.")] = 96,
    json: Json = False,
) -> None:
    """Answer over all of a document: every segment is read, then the answers are combined."""
    from ...gated_llm.segments import read_long
    from ..wiring import load_local

    settings = load_settings(model=model)
    document = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    with progress_bar() as progress, load_local(settings, progress=progress) as llm:
        made = read_long(
            llm, document, question, max_tokens=max_tokens, max_depth=depth_of(max_depth) or "auto", progress=progress
        )
    if json:
        print_json(made.to_dict())
        return
    out.print(made.text, markup=False, highlight=False)
    depths = [one.depth.max for one in (*made.segments, *made.rounds)]
    note = f"{len(made.segments)} segments, {len(made.rounds)} combining passes, depth {max(depths):g}"
    out.print(f"{note}, {made.usage.layer_tokens:,.0f} layer-tokens", style="dim", highlight=False)
