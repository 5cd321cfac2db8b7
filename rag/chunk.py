"""A text to sentences and to chunks, as spans into it: `text[start:end]` is always the very chunk.

Respects headings, sentences, fenced code and tables, in English and Chinese. Knows nothing of files or vectors (A1).
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .words import length

_HEADING = re.compile(r"(#{1,6})[ \t]+(.+?)[ \t#]*$")
_FENCE = re.compile(r"[ \t]*(```|~~~)")
_ROW = re.compile(r"[ \t]*\|")
_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\d{1,3}[.)、])[ \t]*\S")
_CLOSERS = re.escape("\"'”’」』）)】]》")
_QUOTES = "\"'”’」』"
_END = re.compile(rf"[。！？!?…]+[{_CLOSERS}]*|\.+[{_CLOSERS}]*(?=\s|$)")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'“])(?:[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Gen|Col|Lt|Sgt|Rev|Hon|Jr|Sr|Gov|Sen|Rep|"
    r"vs|etc|e\.g|i\.e|cf|al|Inc|Ltd|Co|Corp|No|Nos|Vol|pp|Fig|Eq|approx|ca|c|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|"
    r"Mt|Ft|U\.S|U\.K)$"
)


class Span(NamedTuple):
    """Half-open range of characters of a text."""

    start: int
    end: int


class Unit(NamedTuple):
    """What a chunk is packed from: a sentence, heading, code block or table."""

    start: int
    end: int
    kind: str  # "sentence", "heading", "code", "table"
    gap: bool  # a blank line, or a change of kind, came before


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A passage of a document. `heading` is the path of headings above it, joined by " > "."""

    chunk_id: str
    start: int
    end: int
    text: str
    heading: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitter:
    """Cuts a text into chunks of at most `size` rough tokens; a single longer sentence is cut at commas or spaces."""

    size: int = 256

    def __post_init__(self) -> None:
        if self.size < 16:
            raise ValueError(f"chunk size is {self.size} tokens; it must be at least 16")

    @property
    def fingerprint(self) -> str:
        """Changes when the same text would be cut another way."""
        return f"headings-sentences-1:{self.size}"

    def split(self, text: str, doc_id: str) -> list[Chunk]:
        """Chunks of the text in order. Ids depend on document, text, place among equals and splitter only."""
        seen: dict[str, int] = {}
        chunks = []
        for start, end, heading in self._spans(text):
            part = text[start:end]
            seen[part] = seen.get(part, 0) + 1
            key = "\0".join((self.fingerprint, doc_id, heading, str(seen[part]), part))
            digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:24]
            chunks.append(Chunk(chunk_id=digest, start=start, end=end, text=part, heading=heading))
        return chunks

    def _spans(self, text: str) -> Iterator[tuple[int, int, str]]:
        path: list[tuple[int, str]] = []
        held: list[Unit] = []
        heading, size = "", 0
        for unit in self._small_units(text):
            cost = length(text[unit.start : unit.end])
            only_headings = all(other.kind == "heading" for other in held)
            new_section = unit.kind == "heading" and not only_headings
            paragraph_end = unit.gap and size > 0.6 * self.size
            if held and not only_headings and (new_section or paragraph_end or size + cost > self.size):
                yield held[0].start, held[-1].end, heading
                held, size = [], 0
            if unit.kind == "heading":
                match = _HEADING.match(text[unit.start : unit.end])
                level, title = (len(match[1]), match[2].strip()) if match else (6, "")
                path = [*(pair for pair in path if pair[0] < level), (level, title)]
                heading = " > ".join(title for _, title in path)
            held.append(unit)
            size += cost
        if held:
            yield held[0].start, held[-1].end, heading

    def _small_units(self, text: str) -> Iterator[Unit]:
        for unit in units(text):
            if length(text[unit.start : unit.end]) <= self.size:
                yield unit
                continue
            for number, (start, end) in enumerate(_cut(text, unit, self.size)):
                yield Unit(start, end, unit.kind, unit.gap and number == 0)


def _cut(text: str, unit: Unit, size: int) -> Iterator[Span]:
    """An overlong unit in pieces that fit, ending at the last line, comma or space that leaves them not too short."""
    start = unit.start
    stops = r"\n" if unit.kind in ("code", "table") else r"[；;，,、：:]|\s"
    while start < unit.end:
        end = min(unit.end, start + size)  # a character is at most one token
        while end < unit.end and length(text[start : end + size]) < size:
            end = min(unit.end, end + size)
        if end < unit.end:
            places = [match.end() for match in re.finditer(stops, text[start:end])]
            good = [place for place in places if place > (end - start) // 2]
            end = start + (good[-1] if good else end - start)
        if text[start:end].strip():
            yield _trim(text, start, end)
        start = end


def _trim(text: str, start: int, end: int) -> Span:
    part = text[start:end]
    return Span(start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip()))


def units(text: str) -> Iterator[Unit]:
    """Sentences, headings, code blocks and tables of the text, in order; blank space between them is left out."""
    for start, end, kind, gap in _blocks(text):
        if kind == "prose":
            for number, span in enumerate(_sentences(text, start, end)):
                yield Unit(span.start, span.end, "sentence", gap and number == 0)
        else:
            span = _trim(text, start, end)
            yield Unit(span.start, span.end, kind, gap)


def sentences(text: str) -> list[Span]:
    """Spans of the sentences of the prose, and rows of the tables, of a text; headings and code are left out."""
    found: list[Span] = []
    for unit in units(text):
        if unit.kind == "sentence":
            found.append(Span(unit.start, unit.end))
        elif unit.kind == "table":
            found.extend(
                _trim(text, unit.start + row.start(), unit.start + row.end())
                for row in re.finditer(r"[^\n]*\w[^\n]*", text[unit.start : unit.end])
            )
    return found


def _blocks(text: str) -> Iterator[tuple[int, int, str, bool]]:
    """(start, end, kind, blank line before): runs of lines of one kind."""
    kind, begin, stop, gap = "", 0, 0, False
    fence, blank = "", False
    for line in re.finditer(r"[^\n]*\n?", text):
        start, end, body = line.start(), line.end(), line.group().rstrip()
        if start == end:
            break
        if fence:
            stop = end
            fence = "" if body.strip() == fence else fence
            continue
        opened = _FENCE.match(body)
        here = (
            "code" if opened
            else "" if not body.strip()
            else "heading" if _HEADING.match(body)
            else "table" if _ROW.match(body)
            else "prose"
        )  # fmt: skip
        joins = here == kind and here in ("table", "prose") and not blank and not _ITEM.match(body)
        if not joins:
            if kind:
                yield begin, stop, kind, gap
            kind, begin, gap = here, start, blank or here != kind
        stop, blank = end, not here
        fence = opened[1] if opened else ""
    if kind:
        yield begin, stop, kind, gap


def _sentences(text: str, start: int, end: int) -> Iterator[Span]:
    begin = start
    for match in _END.finditer(text, start, end):
        if match.start() < begin:
            continue
        if match.group()[0] == "." and _ABBREVIATION.search(text[max(begin, match.start() - 12) : match.start()]):
            continue
        after = text[match.end() : match.end() + 1]
        if match.group()[0] in "!?" and after.isalnum() and after.isascii():
            continue  # inside a name or an address
        if match.group()[-1] in _QUOTES and (after.isalnum() or text[match.end() : match.end() + 2].strip().islower()):
            continue  # speech goes on: "Really?" she asked. “真的吗？”他问。
        span = _trim(text, begin, match.end())
        if span.end > span.start:
            yield span
        begin = match.end()
    span = _trim(text, begin, end)
    if span.end > span.start:
        yield span
