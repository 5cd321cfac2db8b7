"""How every command prints: with `--json` one JSON value on standard output, else text; messages to standard error."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ..errors import RouterError

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def can_write(path: Path) -> Path:
    """The path, before any work is done for a file there. Raises RouterError where it is no place for one."""
    if not path.parent.is_dir():
        raise RouterError(f"there is no folder {path.parent}: make it, or name a file in one that is there")
    if path.is_dir():
        raise RouterError(f"{path} is a folder: name a file in it")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RouterError(f"{path} may not be written by you: name a file where you may write")
    return path


def note(message: str) -> None:
    """A message for the person at the terminal; never part of the result."""
    err.print(message, style="dim", markup=False, highlight=False)


@contextmanager
def progress_bar() -> Iterator["ProgressCallback"]:
    """A bar on standard error, drawn only on a terminal; off it, one line when a task starts."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=err,
        disable=not err.is_terminal,
    )
    with bar:
        yield ProgressCallback(bar)


class ProgressCallback:
    """Called as `progress(what, done, total)`; any unit, `total` 0 where unknown."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: dict[str, Any] = {}

    def __call__(self, what: str, done: float, total: float) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total or None)
            if not err.is_terminal:
                note(what)
        self._bar.update(self._tasks[what], completed=done, total=total or None)
