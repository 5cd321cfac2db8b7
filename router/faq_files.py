"""What an entry of the FAQ is, and the files it is read from: CSV, JSONL and Markdown (R3).

Knows no embedder and no matching. What a file says unclearly (a quote left open, a text that is none, two answers to
one question) is refused with its place, never guessed.
"""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from .errors import RouterError
from .features import language_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One frequent question. `alternatives` are other ways to ask it; `id` follows from the question unless given.

    Raises RouterError for parts that are no text, or empty, or cannot be written as UTF-8.
    """

    question: str
    answer: str
    alternatives: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    id: str = ""

    def __post_init__(self) -> None:
        for name in ("question", "answer", "id"):
            _check(name, getattr(self, name))
        for name in ("alternatives", "tags"):
            several = getattr(self, name)
            if not isinstance(several, tuple):
                raise RouterError(f"{name} must be a list of texts, not {type(several).__name__}")
            for one in several:
                _check(f"each of {name}", one)
        if not self.question.strip() or not self.answer.strip():
            raise RouterError(
                f"an FAQ entry needs a question and an answer; got question {self.question.strip()[:60]!r}"
            )
        if not self.id:
            object.__setattr__(self, "id", sha256(plain(self.question).encode()).hexdigest()[:12])

    @property
    def phrasings(self) -> tuple[str, ...]:
        return (self.question, *self.alternatives)

    @property
    def language(self) -> str:
        return language_of(self.answer)

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "question": self.question,
            "answer": self.answer,
            "alternatives": list(self.alternatives),
            "tags": list(self.tags),
        }


def _check(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise RouterError(f"{name} must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RouterError(f"{name} holds half a character (a lone surrogate such as \\ud800): write it anew") from None


def plain(text: str) -> str:
    """Text as it is compared for being the same: NFKC, lower case, no end marks, single spaces."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip().lower().rstrip("?.!。？！ ")


_Placed = Iterator[tuple[str, Entry]]  # an entry and where it stands, for messages


def read_entries(path: Path) -> list[Entry]:
    """Entries of a .csv, .jsonl or .md file; one that is there twice, with the same answer, is taken once.

    CSV has columns question, answer and optionally alternatives (split at `|`), tags, id. JSONL has the same as fields.
    Markdown has a heading per question; a line `Also: one | two` (or `也问：`) under it lists alternatives.
    Raises RouterError naming the place of what is wrong or contradicts an earlier entry, and for a file without any.
    """
    entries: dict[str, Entry] = {}
    seen: dict[tuple[str, str], tuple[str, Entry]] = {}
    for where, entry in _placed(path):
        for kind, key in (("question", plain(entry.question)), ("id", entry.id)):
            before, old = seen.setdefault((kind, key), (where, entry))
            if (plain(old.question), old.answer) != (plain(entry.question), entry.answer):
                raise RouterError(f"{where}: the same {kind} as {before}, but another answer: keep one of them")
        known = entries.setdefault(entry.id, entry)
        entries[entry.id] = replace(
            known,
            alternatives=tuple(dict.fromkeys(known.alternatives + entry.alternatives)),
            tags=tuple(dict.fromkeys(known.tags + entry.tags)),
        )
    if not entries:
        raise RouterError(f"{path}: there is no entry in it; {_FORMS[path.suffix.lower()][1]}")
    return list(entries.values())


def stored_entries(path: Path) -> dict[str, Entry]:
    """Entries by id of an FAQ's own file, which may be empty. Raises RouterError."""
    return {entry.id: entry for _, entry in _placed(path)}


def _placed(path: Path) -> _Placed:
    if path.suffix.lower() not in _FORMS:
        raise RouterError(f"{path.name}: an FAQ is imported from {', '.join(_FORMS)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RouterError(f"{path}: {error.strerror or type(error).__name__}") from error
    except UnicodeDecodeError as error:
        raise RouterError(f"{path}: this is not UTF-8 text; save it as UTF-8 and try again") from error
    return _FORMS[path.suffix.lower()][0](text, str(path))


def _entry(row: dict[str, Any], where: str) -> tuple[str, Entry]:
    known = {key.strip().lower(): value for key, value in row.items()}
    number = known.get("id")
    try:
        entry = Entry(
            question=_text(known["question"]),
            answer=_text(known["answer"]),
            id=str(number) if isinstance(number, int) and not isinstance(number, bool) else _text(number),
            alternatives=_several(known.get("alternatives")),
            tags=_several(known.get("tags")),
        )
    except KeyError as error:
        raise RouterError(f"{where}: no {error.args[0]}; mend or delete that entry") from None
    except RouterError as error:
        raise RouterError(f"{where}: {error}; mend or delete that entry") from None
    return where, entry


def _text(value: Any) -> Any:
    """Text without spaces around it, nothing as empty text; anything else as it is, for `Entry` to refuse."""
    return value.strip() if isinstance(value, str) else "" if value is None else value


def _several(value: Any) -> Any:
    """Texts of a list or of one text split at `|`; anything else as it is, for `Entry` to refuse."""
    parts = re.split(r"[|\n]", value) if isinstance(value, str) else [] if value is None else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return tuple(parts) if isinstance(parts, list) else parts
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _from_csv(text: str, name: str) -> _Placed:
    lines = csv.reader(io.StringIO(text), strict=True)
    columns, number, line = list[str](), 0, 1
    try:
        for number, row in enumerate(lines, 1):
            line = lines.line_num + 1
            if not any(cell.strip() for cell in row):
                continue
            if not columns:
                columns = [column.strip().lower() for column in row]
                _check_columns(columns, f"{name}, row {number}")
                continue
            if any(cell.strip() for cell in row[len(columns) :]):
                raise RouterError(
                    f"{name}, row {number}: {len(row)} columns, but {len(columns)} headings; put quotes around a text "
                    "with commas in it"
                )
            yield _entry(dict(zip(columns, row, strict=False)), f"{name}, row {number}")
    except csv.Error as error:
        raise RouterError(
            f"{name}, row {number + 1}, from line {line} on: {error}; a quote is left open, or stands inside a quoted "
            "text, where it must be doubled"
        ) from None


def _check_columns(columns: list[str], where: str) -> None:
    missing = [column for column in ("question", "answer") if column not in columns]
    twice = sorted({column for column in columns if column and columns.count(column) > 1})
    if missing or twice:
        wrong = f"no column {' and no column '.join(missing)}" if missing else f"two columns {', '.join(twice)}"
        raise RouterError(f"{where}: {wrong}; headings are question,answer and perhaps alternatives,tags,id")


def _from_jsonl(text: str, name: str) -> _Placed:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise RouterError(f"{name}, line {number}: not a JSON object; mend or delete that line")
        yield _entry(row, f"{name}, line {number}")


_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$")
_ALSO = re.compile(r"^\s*(?:[-*]\s*)?(?:also|也问|又问)\s*[:：]\s*(.+)$", re.IGNORECASE)
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})([^`]*)$")


def _from_markdown(text: str, name: str) -> _Placed:
    """Headings without text under them (a title) are no entries; what looks like one in a code block is none."""
    heading, at, also, body = "", 0, list[str](), list[str]()
    for number, line, code in _marked(text, name):
        if not code and (found := _HEADING.match(line)):
            if heading and "\n".join(body).strip():
                yield _markdown_entry(heading, also, body, f"{name}, line {at}")
            heading, at, also, body = found.group(1), number, [], []
        elif (alternative := _ALSO.match(line)) and not "".join(body).strip():
            also += re.split(r"[|｜]", alternative.group(1))
        else:
            body.append(line)
    if heading and "\n".join(body).strip():
        yield _markdown_entry(heading, also, body, f"{name}, line {at}")


def _markdown_entry(heading: str, also: list[str], body: list[str], where: str) -> tuple[str, Entry]:
    return _entry({"question": heading, "answer": "\n".join(body), "alternatives": also}, where)


def _marked(text: str, name: str) -> Iterator[tuple[int, str, bool]]:
    """Lines by number, and whether they are part of a fenced code block."""
    fence, opened = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        mark = _FENCE.match(line)
        yield number, line, bool(fence or mark)
        if mark and not fence:
            fence, opened = mark.group(1), number
        elif mark and mark.group(1).startswith(fence) and not mark.group(2).strip():
            fence = ""
    if fence:
        raise RouterError(f"{name}, line {opened}: the code block that begins here is not closed; add a line {fence}")


_MARKDOWN = (_from_markdown, "give each question a heading (## ...) with its answer under it")
_FORMS = {
    ".csv": (_from_csv, "the first row names the columns question,answer, each other row is an entry"),
    ".jsonl": (_from_jsonl, 'each line is {"question": ..., "answer": ...}'),
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
}
