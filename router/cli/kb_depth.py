"""`shoal kb depth`: has the model read every passage once, so that searches know how easily it reads them (A3)."""

import typer

from ..settings import load_settings
from .ask import Json, Model
from .kb import Folder, kb, opened
from .output import note, print_json, progress_bar


def register(app: typer.Typer) -> None:
    kb.command()(depth)  # a group of `app` already


def depth(folder: Folder = None, model: Model = None, json: Json = False) -> None:
    """Score the passages that the model has not read yet; about a second each on a small CPU. May be stopped."""
    from ...gated_llm.skim import Skim
    from ...rag.depth import LIMIT, Depths
    from ...rag.reading import default_reader
    from ..wiring import load_local

    with opened(folder) as base, progress_bar() as progress:
        with load_local(load_settings(kb=folder, model=model), progress=progress) as llm:
            depths = Depths(default_reader(), folder=base.path, scorer=Skim(llm))
            depths.score(base.texts(), lambda done, total: progress("reading passages", done, total))
        found = [one for one in depths.judge(base.texts()) if one is not None]
    mean, easy = sum(one.score for one in found) / max(1, len(found)), sum(one.score >= LIMIT for one in found)
    counts = {"passages": len(found), "easy": easy, "hard": len(found) - easy}
    if json:
        print_json({**counts, "mean": round(mean, 4), "scorer": depths.fingerprint})
    else:
        told = "easy" if mean >= LIMIT else "hard"
        note(f"{len(found)} passages: {easy} easy, {len(found) - easy} hard; mean depth score {mean:.2f} ({told})")
