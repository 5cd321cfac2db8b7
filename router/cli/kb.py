"""`shoal kb`: put documents into the knowledge base, search it, take them out."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..settings import load_settings
from .ask import Json
from .output import ProgressCallback, note, out, print_json, progress_bar

if TYPE_CHECKING:
    from ...rag import KnowledgeBase
    from ...rag.ingest import AddReport, EncodeAll

kb = typer.Typer(help="Knowledge base: add, search, list, delete, audit, restore.", no_args_is_help=True)
Ray = Annotated[bool, typer.Option("--ray", help="Embed and score on Ray Data: in processes of a Ray cluster.")]
Folder = Annotated[Path | None, typer.Option("--kb", help="Folder of the knowledge base.")]


def register(app: typer.Typer) -> None:
    app.add_typer(kb, name="kb")


@contextmanager
def opened(folder: Path | None) -> Iterator["KnowledgeBase"]:
    from ...rag import KnowledgeBase

    base = KnowledgeBase.open(load_settings(kb=folder).kb_path)
    try:
        yield base
    finally:
        base.close()


@contextmanager
def encoding(base: "KnowledgeBase", ray: bool) -> Iterator["EncodeAll | None"]:
    """Who embeds: None, so this process, or a Ray cluster, connected to for as long."""
    if not ray:
        yield None
        return
    from ..ray_data import RayEncode, connected

    with connected():
        yield RayEncode(fingerprint=base.embed.fingerprint)


def add_files(
    base: "KnowledgeBase",
    paths: list[Path],
    progress: ProgressCallback,
    *,
    labels: tuple[str, ...] = (),
    encode_all: "EncodeAll | None" = None,
) -> "AddReport":
    """Adds files and folders under a progress bar."""
    return base.add(
        paths,
        labels=labels,
        progress=lambda done, total, _: progress("reading documents", done, total),
        encode_all=encode_all,
    )


@kb.command()
def add(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Files, folders or patterns: text, Markdown, HTML, PDF, Word, JSONL, CSV; - reads stdin."),
    ],
    folder: Folder = None,
    name: Annotated[str, typer.Option(help="What standard input is called.")] = "stdin",
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Standard input is JSON lines, a document each.")] = False,
    label: Annotated[list[str] | None, typer.Option(help="Scenario label; may be given several times.")] = None,
    ray: Ray = False,
    json: Json = False,
) -> None:
    """Add or update documents; unchanged ones cost nothing. A bad file is reported and skipped."""
    labels = tuple(label or ())
    with opened(folder) as base, encoding(base, ray) as encode_all, progress_bar() as progress:
        if paths == [Path("-")]:
            kind: Literal["jsonl", "text"] = "jsonl" if jsonl else "text"
            data = sys.stdin.buffer.read()
            report = base.add_data(data, name, kind=kind, labels=labels, encode_all=encode_all)
        else:
            report = add_files(base, paths, progress, labels=labels, encode_all=encode_all)
        size = len(base)
    for one in report.skipped:
        note(f"skipped {one.path}: {one.reason}")
    if json:
        print_json({**asdict(report), "total_chunks": size})
    else:
        note(
            f"{report.added} added, {report.updated} updated, {report.unchanged} unchanged, {report.removed} removed, "
            f"{len(report.skipped)} skipped; {size} chunks in all"
        )
    if report.skipped and not (report.added or report.updated or report.unchanged):
        raise typer.Exit(1)


@kb.command()
def search(
    question: str,
    k: Annotated[int, typer.Option(min=1)] = 5,
    label: Annotated[list[str] | None, typer.Option(help="Only passages with this label; may be repeated.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE of a document's metadata; all that are given must hold.")
    ] = None,
    folder: Folder = None,
    json: Json = False,
) -> None:
    """The passages nearest to a question."""
    with opened(folder) as base:
        hits = base.search(question, k=k, labels=label or (), where=dict(map(_pair, where or ())))
    rows = [
        {
            "doc_id": hit.doc_id,
            "span": list(hit.span),
            "score": round(hit.score, 4),
            "depth_score": hit.depth_score,
            "text": hit.text,
        }
        for hit in hits
    ]
    if json:
        print_json(rows)
        return
    for hit in hits:
        out.print(f"{hit.score:.3f}  [{hit.doc_id}, {hit.span[0]}-{hit.span[1]}]", markup=False, highlight=False)
        out.print(f"  {hit.text}", markup=False, highlight=False)


def _pair(text: str) -> tuple[str, str | float | bool]:
    """A key and its value; what reads as a JSON number, true or false is one."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise typer.BadParameter(f"{text!r} is no filter: give KEY=VALUE, such as lang=zh")
    try:
        read = loads(value)
    except ValueError:
        return key, value
    return key, read if isinstance(read, int | float) else value


@kb.command("list")
def list_(folder: Folder = None, json: Json = False) -> None:
    """The documents in the knowledge base."""
    with opened(folder) as base:
        ids = base.doc_ids()
    if json:
        print_json(ids)
    for doc_id in [] if json else ids:
        out.print(doc_id, markup=False, highlight=False)


@kb.command()
def delete(doc_ids: list[str], folder: Folder = None, json: Json = False) -> None:
    """Take documents out by id."""
    with opened(folder) as base:
        gone = [doc_id for doc_id in doc_ids if base.delete(doc_id)]
    if json:
        print_json({"deleted": gone})
    else:
        note(f"{len(gone)} deleted")
    if len(gone) < len(doc_ids):
        note(f"not in the knowledge base: {', '.join(sorted(set(doc_ids) - set(gone)))}")
        raise typer.Exit(1)


@kb.command()
def rebuild(folder: Folder = None, json: Json = False) -> None:
    """Split and embed again everything the knowledge base holds, as after a change of embedder."""
    from ...rag import KnowledgeBase

    base = KnowledgeBase.rebuild(load_settings(kb=folder).kb_path)
    size = len(base)
    base.close()
    if json:
        print_json({"total_chunks": size})
    else:
        note(f"{size} chunks")
