"""Rows of JSON lines and tables; one that cannot be read is reported, and the rest goes on (A1)."""

import csv
import io
import json
from collections.abc import Callable, Iterator
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
    """(row number from 1, dict) per row, by the names in the first. A bad quote costs its own line alone."""
    lines = list(io.StringIO(text, newline=""))
    at, number, names = 0, 0, list[str]()
    reader, begins = csv.reader(lines, delimiter=delimiter, strict=True), 0
    while at < len(lines):
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            report(f"line {at + 1} is not a table row: {error}")
            at = begins = at + 1
            number += bool(names)
            reader = csv.reader(lines[at:], delimiter=delimiter, strict=True)
            continue
        at = begins + reader.line_num
        if not names:
            names = values
        elif values:
            number += 1
            yield number, {key: value for key, value in zip(names, values, strict=False) if key}
