"""`shoal kb audit` and `shoal kb restore`: split and set aside what is hard to read, and bring it back (A5)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..settings import Settings, load_settings
from .ask import Json, Model
from .kb import Folder, Ray, add_files, encoding, kb, opened
from .output import ProgressCallback, can_write, note, out, print_json, progress_bar

if TYPE_CHECKING:
    from ...rag import DepthScore


def register(app: typer.Typer) -> None:
    for command in (audit, restore):
        kb.command()(command)  # a group of `app` already


def audit(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files or folders to add first, as `kb add` does.")] = None,
    folder: Folder = None,
    questions: Annotated[
        Path | None, typer.Option(help='JSONL of {"question", "answer"}: recall is measured with these.')
    ] = None,
    limit: Annotated[
        float | None, typer.Option(min=0, max=1, help="Depth score below which a text is hard; 0.1.")
    ] = None,
    allow_loss: Annotated[
        float | None, typer.Option(min=0, max=1, help="Answer recall that may be lost before all is put back; 0.01.")
    ] = None,
    scores: Annotated[
        str, typer.Option(help="predicted: in no time, English only; read: the model reads all; auto: what each can.")
    ] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Score and report; change nothing.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Where the HTML goes; else audit/report.html, of a dry run audit/dry-run.html.")
    ] = None,
    model: Model = None,
    ray: Ray = False,
    json: Json = False,
) -> None:
    """Score every document for depth, split the hard ones, set aside what stays hard, and write a report.

    Nothing is deleted. Stopped half way, it goes on where it was when run again.
    """
    from ...rag.audit import ALLOWED, LIMIT
    from ...rag.audit_recall import read_questions
    from ..audit_page import audit_page

    if scores not in ("auto", "read", "predicted"):
        raise typer.BadParameter(f"--scores {scores}: give auto, read or predicted")
    settings = load_settings(kb=folder, model=model)
    if report is not None:
        can_write(report)
    asked = read_questions(questions) if questions else None
    with opened(folder) as base, encoding(base, ray) as encode_all, progress_bar() as progress:
        for one in add_files(base, paths, progress, encode_all=encode_all).skipped if paths else ():
            note(f"skipped {one.path}: {one.reason}")
        with _scoring(scores, settings, progress, ray) as score:
            found = base.audit(
                score,
                asked,
                limit=LIMIT if limit is None else limit,
                allowed=ALLOWED if allow_loss is None else allow_loss,
                dry_run=dry_run,
                progress=progress,
                encode_all=encode_all,
            )
        page = report or base.path / "audit" / ("dry-run.html" if dry_run else "report.html")
    page.write_text(audit_page(found, str(base.path)), "utf-8")
    if json:
        print_json({**found, "html": str(page)})
        return
    _tell(found)
    note(f"report: {page}; bring passages back: shoal kb restore ID ... | --all")


@contextmanager
def _scoring(kind: str, settings: Settings, progress: ProgressCallback, ray: bool) -> Iterator["DepthScore"]:
    """Who scores: this process, or a Ray cluster that is connected."""
    from ..reading_ease import scorer

    with scorer(kind, settings, progress) as here:
        if not ray:
            yield here
            return
        from ..ray_data import RayScore

        yield RayScore(fingerprint=here.fingerprint, kind=kind, settings=settings)


def _tell(found: dict[str, Any]) -> None:
    before, after, recall = found["size"]["before"], found["size"]["after"], found["recall"]
    counts = found["documents"]
    out.print(f"{counts['all']:,} documents: {counts['easy']:,} easy, {counts['split']:,} hard", highlight=False)
    if counts["not_scored"]:
        note(
            f"{counts['not_scored']:,} could not be predicted and stay as they are: that needs a model (--scores auto)"
        )
    out.print(
        f"searched: {before['passages']:,} to {after['passages']:,} passages, {before['characters']:,} to "
        f"{after['characters']:,} characters; {found['quarantine']['passages']:,} passages set aside",
        highlight=False,
    )
    if "before" in recall:
        now = f" to {recall['after']:.1%}" if "after" in recall else ""
        out.print(
            f"answer recall at {recall['k']}: {recall['before']:.1%}{now} ({recall['asked']} asked)", highlight=False
        )
    if found["undone"]:
        note("more answers were lost than --allow-loss allows: everything is back in")


def restore(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of passages, or of documents for all of theirs.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that is set aside.")] = False,
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Bring what an audit set aside back into the search; audits leave it there until its text changes."""
    if bool(ids) == everything:
        raise typer.BadParameter("name passages or documents, or give --all")
    with opened(folder) as base:
        back = base.restore(None if everything else ids)
        left = len(base.quarantined())
    if json:
        print_json({"restored": back, "quarantined": left})
    else:
        note(f"{len(back)} passages are back, {left} are still set aside")
    if ids and not back:
        raise typer.Exit(1)
