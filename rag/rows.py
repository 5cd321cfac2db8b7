"""Rows of JSON lines and tables; one that cannot be read is reported, and the rest goes on (A1)."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .errors import DocumentError

Report = Callable[[str], None]


def refuse(reason: str) -> None:
    """A bad row is the end of the file."""
    raise DocumentError(reason)


def json_lines(text: str, report: Report = refuse) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, dict) per line that is not blank: objects as they are, anything else under `text`."""
    row_number = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        row_number += 1
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            report(f"line {number} is not JSON: {error.msg if isinstance(error, json.JSONDecodeError) else 'too deep'}")
            continue
        yield row_number, row if isinstance(row, dict) else {"text": row if isinstance(row, str) else json.dumps(row)}


def table(text: str, delimiter: str, report: Report = refuse) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, dict) per row, by the names in the first. A bad quote costs its own line alone.

    Where the first line lacks the delimiter, it is a semicolon or a tab if it has one: so write some spreadsheets.
    """
    lines = list(io.StringIO(text, newline=""))
    delimiter = next((mark for mark in (delimiter, ";", "\t") if lines and mark in lines[0]), delimiter)
    open_ = partial(csv.reader, delimiter=delimiter, skipinitialspace=True, strict=True)
    at, number, names = 0, 0, list[str]()
    reader, begins = open_(lines), 0
    while at < len(lines):
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            report(f"line {at + 1} is not a table row: {error}")
            at = begins = at + 1
            number += bool(names)
            reader = open_(lines[at:])
            continue
        at = begins + reader.line_num
        if not names:
            names = values
        elif values:
            number += 1
            yield number, {key: value for key, value in zip(names, values, strict=False) if key}
