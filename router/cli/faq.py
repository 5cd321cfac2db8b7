"""`shoal faq`: answers that need no thinking at all."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ...cache import same_question
from ...rag.embed import default_embedder
from ..faq import Faq
from ..settings import load_settings
from .ask import Json
from .output import note, out, print_json

faq = typer.Typer(help="FAQ: import, list, match, delete.", no_args_is_help=True)
Folder = Annotated[Path | None, typer.Option("--faq", help="Folder of the FAQ.")]


def register(app: typer.Typer) -> None:
    app.add_typer(faq, name="faq")


def opened(folder: Path | None) -> Faq:
    embed = default_embedder()
    return Faq.open(load_settings(faq=folder).faq_path, embed=embed, conflict=same_question(embed))


@faq.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help=".csv, .jsonl or .md with questions and answers.")],
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Add entries; the same file again changes nothing."""
    entries = opened(folder)
    report = entries.import_file(file)
    if json:
        print_json({**asdict(report), "entries": len(entries)})
    else:
        note(f"{report.added} added, {report.updated} updated, {report.unchanged} unchanged; {len(entries)} in all")


@faq.command("list")
def list_(folder: Folder = None, json: Json = False) -> None:
    """Every entry."""
    entries = opened(folder).entries()
    if json:
        print_json([entry.to_dict() for entry in entries])
    for entry in () if json else entries:
        out.print(f"{entry.id}  {entry.question}", markup=False, highlight=False)


@faq.command()
def match(question: str, folder: Folder = None, json: Json = False) -> None:
    """The entry that would answer a question; exit code 1 when none does."""
    found = opened(folder).match(question)
    if json:
        print_json(asdict(found) if found else None)
    elif found:
        out.print(f"{found.score:.3f}  {found.entry_id}  {found.answer}", markup=False, highlight=False)
    if found is None:
        note("no entry surely answers this")
        raise typer.Exit(1)


@faq.command()
def delete(entry_ids: list[str], folder: Folder = None, json: Json = False) -> None:
    """Take entries out by id."""
    entries = opened(folder)
    gone = [entry_id for entry_id in entry_ids if entries.delete(entry_id)]
    if json:
        print_json({"deleted": gone})
    if len(gone) < len(entry_ids):
        note(f"not in the FAQ: {', '.join(sorted(set(entry_ids) - set(gone)))}")
        raise typer.Exit(1)
