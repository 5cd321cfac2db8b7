"""`shoal faq`: answers that need no thinking at all."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ...cache import same_question
from ...cache.cold import ColdLog
from ...rag.embed import default_embedder
from ..errors import RouterError
from ..faq import Faq
from ..promotion import suggestions, write
from ..settings import load_settings
from ..wiring import open_traces
from .ask import Json, printable
from .output import can_write, note, out, print_json

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
def suggest(
    at_least: Annotated[int, typer.Option(min=1, help="Times a question was asked.")] = 10,
    tenant: str = "default",
    target: Annotated[
        Path | None, typer.Option("--out", help="Write them to a .jsonl file for `shoal faq import`.")
    ] = None,
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Questions that keep coming and that the FAQ does not answer, with the answers that are kept (R7)."""
    settings = load_settings(faq=folder)
    if settings.cold_path is None:
        raise RouterError("no answers are kept on disk: set cold_log (SHOAL_COLD_LOG) to true, then ask again")
    if target is not None and can_write(target).suffix.lower() != ".jsonl":
        raise RouterError(f"{target.name}: suggestions are written as .jsonl; choose a name that ends so")
    entries, traces = opened(folder), open_traces(settings)
    try:
        rows = suggestions(
            traces,
            ColdLog(settings.cold_path),
            at_least=at_least,
            tenant=tenant,
            known=lambda question: entries.match(question) is not None,
        )
    finally:
        traces.close()
    if target is not None:
        write(rows, target)
        note(f"{len(rows)} entries in {target}: read them, then `shoal faq import {target}`")
    if json:
        print_json([row.to_dict() for row in rows])
    elif target is None:
        for row in rows:
            out.print(printable(f"{row.times:5}  {row.question}\n       {row.answer}"), markup=False, highlight=False)
        if not rows:
            note(f"no question was asked alone {at_least} times and is kept with its answer; try a lower --at-least")


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
