"""Files to documents: text, Markdown, HTML, PDF, Word, JSON lines and CSV, each to plain text for spans to point into.

A text or Markdown file's text is the file's, character for character; a row of JSONL or CSV is a document of its own.
Knows nothing of chunks or indexes. Raises DocumentError for what cannot be read (A1).
"""

import codecs
import hashlib
import html.parser
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import field as data_field
from pathlib import Path
from typing import Any, Literal, get_args

from .errors import DocumentError
from .office import docx_text, pdf_text
from .rows import Report, json_lines, refuse, table

MAX_BYTES = 128 * 1024 * 1024  # of a file
MAX_CHARS = 8 * 1024 * 1024  # of one document, some 2,000 pages; a table or JSONL may hold many
TEXT_FIELDS = ("text", "content", "body", "passage", "context")
_ID_FIELDS = ("id", "doc_id", "_id")
Kind = Literal["text", "html", "pdf", "docx", "jsonl", "csv", "tsv"]
_SUFFIXES: dict[str, Kind] = {
    ".txt": "text", ".text": "text", ".md": "text", ".markdown": "text", ".rst": "text",
    ".html": "html", ".htm": "html", ".pdf": "pdf", ".docx": "docx", ".docm": "docx",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv",
}  # fmt: skip
_ROWS = ("jsonl", "csv", "tsv")  # kinds that hold many documents
_DESCRIBES = 200  # characters of a row's field that may describe its document


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text with its name. `source` is the file it came from, "" for none; `labels` are its scenarios."""

    doc_id: str
    text: str
    title: str = ""
    source: str = ""
    labels: tuple[str, ...] = ()
    meta: dict[str, Any] = data_field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("doc_id", "text", "title", "source"):
            if not isinstance(value := getattr(self, name), str):
                raise TypeError(f"a document's {name} is text, not {type(value).__name__}")
        object.__setattr__(self, "labels", label_tuple(self.labels))
        if not self.doc_id or len(self.doc_id) > 1024:
            raise DocumentError("a document needs an id of 1 to 1024 characters")
        if not self.text.strip():
            raise DocumentError(f"{self.doc_id:.80}: no text in it")
        if len(self.text) > MAX_CHARS:
            raise DocumentError(f"a text of {len(self.text):,} characters; the limit is {MAX_CHARS:,}: split it")
        try:
            json.dumps(self.meta, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise DocumentError(f"{self.doc_id:.80}: its metadata is not JSON: {error}") from None
        for name in ("doc_id", "text", "title", "source"):  # lone surrogates cannot be stored
            object.__setattr__(self, name, re.sub("[\ud800-\udfff]", "\ufffd", getattr(self, name)))

    @property
    def digest(self) -> str:
        """Hash of the content: text, title, labels and metadata, not where it came from."""
        parts = [self.text, self.title, list(self.labels), self.meta]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def label_tuple(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels. Raises TypeError for what is no list of texts; a bare text would be read letter by letter."""
    given = () if isinstance(labels, str) else tuple(labels)
    if isinstance(labels, str) or not all(isinstance(one, str) for one in given):
        raise TypeError("labels are a list of texts; wrap a single one in a list")
    return given


def file_name(doc_id: str, source: str) -> str:
    """The part of a document's id that names its file: all of it, but for a row's key."""
    if not source:  # a text, or rows that came as data
        return doc_id.partition("#")[0]
    if _SUFFIXES.get(Path(source).suffix.lower()) not in _ROWS:
        return doc_id
    own = re.match(rf".*?{re.escape(Path(source).name)}(?:~[0-9a-f]{{8}})?(?=#)", doc_id)
    return own[0] if own else doc_id.partition("#")[0]


def find_files(paths: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """(file, folder its name is told from), in a fixed order; hidden files and unknown suffixes are left out.

    A file named by itself is always given, whatever its suffix. A pattern such as `docs/*.md` is expanded. Links to
    folders are followed, each folder once. A folder that cannot be listed is given as if it were a file.
    """
    for path in paths:
        if any(mark in str(path) for mark in "*?[") and not path.exists():
            root = Path(path.anchor or ".")
            found = sorted(root.glob(str(path.relative_to(path.anchor) if path.anchor else path)))
            yield from find_files(found)
        elif path.is_dir():
            yield from ((file, path) for file in _walk(path, set()))
        else:
            yield path, path.parent


def _walk(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    try:
        known = folder.stat()
        entries = sorted(folder.iterdir())
    except OSError:
        yield folder  # reading it will say why not
        return
    if (known.st_dev, known.st_ino) in seen:
        return
    seen.add((known.st_dev, known.st_ino))
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(entry, seen)
        elif entry.suffix.lower() in _SUFFIXES and (entry.is_file() or entry.is_symlink()):
            yield entry


def read_file(path: Path, name: str, report: Report = refuse) -> Iterator[Document]:
    """The documents of a file, called `name`, or `name#key` for rows. Raises DocumentError saying what is wrong.

    `report` hears of each row that cannot be read, and the others are given; without it such a row is an error.
    """
    try:
        about = path.stat()
        if stat.S_ISDIR(about.st_mode):
            os.listdir(path)
        if not stat.S_ISREG(about.st_mode):
            raise DocumentError("not a file: a folder, pipe or device")
        if about.st_size > MAX_BYTES:
            raise DocumentError(f"{about.st_size:,} bytes; the limit is {MAX_BYTES:,}: split the file")
        data = path.read_bytes()
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror or error}") from error
    yield from read_bytes(data, name, _SUFFIXES.get(path.suffix.lower(), "text"), os.path.realpath(path), report)


def read_bytes(data: bytes, name: str, kind: Kind, source: str = "", report: Report = refuse) -> Iterator[Document]:
    """The documents in what a file of that kind holds; see `read_file`. PDF and Word are known by how they begin."""
    if not isinstance(data, bytes):
        raise TypeError(f"what a file holds is bytes, not {type(data).__name__}; for a text there is add_text")
    if kind not in get_args(Kind):
        raise DocumentError(f"{kind!r} is no kind of file that is read; give {', '.join(get_args(Kind))}")
    if not data.strip():
        raise DocumentError("the file is empty")
    if data.startswith(b"%PDF-"):
        text, title = pdf_text(data)
    elif data.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")) or kind == "docx":
        text, title = docx_text(data)
    elif kind == "pdf":
        raise DocumentError("damaged: it does not begin as a PDF does")
    else:
        text, title = decode(data), ""
    if kind in _ROWS:
        rows = json_lines(text, report) if kind == "jsonl" else table(text, "\t" if kind == "tsv" else ",", report)
        yield from _documents(rows, name, source, report)
        return
    if kind == "html":
        text, title = html_text(text)
    yield Document(doc_id=name, text=text, title=title or _first_heading(text), source=source)


def decode(data: bytes) -> str:
    """Bytes to text: UTF-8, UTF-16 with its mark, GB18030 for Chinese, else Windows-1252. Binary data is refused."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encodings = ["utf-16"]
    elif b"\0" in data[:65536]:
        raise DocumentError("not text: it holds zero bytes (if it is UTF-16, save it as UTF-8)")
    else:
        encodings = ["utf-8-sig", "gb18030", "cp1252"]
    for encoding in encodings:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if encoding == "gb18030" and not _plausible_chinese(text):
            continue
        odd = sum(1 for char in text[:65536] if char < " " and char not in "\t\n\r\f")
        if odd > 0.02 * min(len(text), 65536):
            raise DocumentError("not text: too many control characters")
        return text
    raise DocumentError("its encoding is not known; save it as UTF-8")


def _plausible_chinese(text: str) -> bool:
    beyond = [char for char in text[:65536] if char > "\x7f"]
    common = sum(
        1
        for char in beyond
        if "\u4e00" <= char <= "\u9fa5" or "\u3000" <= char <= "\u303f" or char in "，。！？：；（）“”"
    )
    simplified = len("".join(beyond).encode("gb2312", "ignore")) / 2  # an accent and a letter are no pair of GB2312
    return common > 0.9 * len(beyond) and simplified > 0.5 * len(beyond)


def _first_heading(text: str) -> str:
    match = re.search(r"^#[ \t]+(.+?)[ \t#]*$", text[:4096], re.MULTILINE)
    return match[1].strip() if match else ""


def _is_hidden(attributes: dict[str, str | None]) -> bool:
    style = re.sub(r"\s", "", attributes.get("style") or "").lower()
    return "hidden" in attributes or "display:none" in style or "visibility:hidden" in style


_VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"]
)
_BLOCKS = """p div section article ul ol table tr br hr blockquote pre dl dt dd header footer main aside figure
figcaption form fieldset legend address details summary caption option"""
_BREAKS = frozenset(_BLOCKS.split())
_CELL = frozenset(["td", "th", "tr", "tbody", "tfoot"])
_ENDED_BY = {  # elements whose end tag may be left out: the tags that begin after them
    "p": _BREAKS | {"h1", "h2", "h3", "h4", "h5", "h6", "li"},
    "li": {"li"}, "dt": {"dt", "dd"}, "dd": {"dt", "dd"}, "option": {"option", "optgroup"},
    "td": _CELL, "th": _CELL, "tr": {"tr", "tbody", "tfoot"},
}  # fmt: skip
_HOLDERS = frozenset(["ul", "ol", "dl", "table", "select"])  # in one of these such a tag is of another element
_SPACE = "\ue0fe"  # a space of preformatted text, until the others are run together
_END = "\ue0ff"  # the end of a block: a line feed, if none comes anyhow


class _HtmlText(html.parser.HTMLParser):
    """Visible text with headings and preformatted text as Markdown, so that the splitter sees them."""

    _HIDDEN = frozenset({"script", "style", "template", "noscript", "svg", "nav"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title = ""
        self._hidden: list[str] = []  # the tag that hides, and those open in it
        self._in_title, self.pre = False, 0

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """`<![` is a comment up to the next `>`, as browsers have it; the base class fails on most of these."""
        return self.parse_bogus_comment(i)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden and (tag not in _ENDED_BY.get(self._hidden[0], ()) or _HOLDERS & set(self._hidden)):
            self._hidden += () if tag in _VOID else (tag,)
            return
        self._hidden = []
        if tag in self._HIDDEN or (tag not in _VOID and _is_hidden(dict(attrs))):
            self._hidden = [tag]
        elif tag == "title":
            self._in_title = True
        elif tag == "pre":
            self.pre += 1
            self.parts.append("\n\n```\n" if self.pre == 1 else "")
        elif re.fullmatch("h[1-6]", tag):
            self.parts.append("\n\n" + "#" * int(tag[1]) + " ")
        elif tag == "li":
            self.parts.append("\n- ")
        elif tag in ("td", "th"):
            self.parts.append(" | ")
        elif tag in _BREAKS:
            self.parts.append("\n\n" if tag in ("p", "table", "section", "article", "pre") else "\n")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden and (tag in self._hidden or self._hidden[0] not in _ENDED_BY):
            self._hidden = self._hidden[: _last_place(tag, self._hidden)]
            return
        self._hidden = []  # what holds it ends, and it with that
        if tag == "title":
            self._in_title = False
        elif tag == "pre":
            self.parts.append("\n```\n\n" if self.pre == 1 else "")
            self.pre = max(0, self.pre - 1)
        elif re.fullmatch("h[1-6]", tag) or tag in ("p", "table"):
            self.parts.append("\n\n")
        elif tag in _BREAKS:
            self.parts.append(_END)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif self.pre and not self._hidden:
            self.parts.append(data.expandtabs(4).replace(" ", _SPACE))
        elif not self._hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def _last_place(tag: str, tags: list[str]) -> int:
    """Where it last stands in a list; the length where it does not."""
    return next((place for place in reversed(range(len(tags))) if tags[place] == tag), len(tags))


def html_text(markup: str) -> tuple[str, str]:
    """(visible text, title) of an HTML page; scripts, styles and navigation are left out."""
    parser = _HtmlText()
    parser.feed(markup)
    parser.close()
    if parser.pre:
        parser.parts.append("\n```")
    joined = re.sub(f"[{_END} ]*{_END}[{_END} ]*\n?", "\n", "".join(parser.parts))
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in joined.split("\n"))
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    return re.sub("```\n+(?=.)", "```\n", text).replace(_SPACE, " "), " ".join(parser.title.split())


def _documents(
    rows: Iterable[tuple[int, dict[str, Any]]], name: str, source: str, report: Report
) -> Iterator[Document]:
    """A row's text is its text field, or all its fields as "name: value" lines when it has none or several. Its other
    short fields describe the document (`meta`).
    """
    count, rows = 0, list(rows)
    own = {_own_id(row) for _, row in rows}
    for number, row in rows:
        strings = {key: value for key, value in row.items() if isinstance(value, str) and value.strip()}
        key = _own_id(row) or (str(number) if str(number) not in own else f"row-{number}")
        body = next((strings[field] for field in TEXT_FIELDS if field in strings), "")
        if not body:
            shown = (pair for pair in strings.items() if pair[0] not in (*_ID_FIELDS, "title", "label"))
            body = "\n".join(f"{field}: {value}" for field, value in shown)
        if not body.strip():
            continue
        try:
            document = Document(
                doc_id=f"{name}#{key}", text=body, title=strings.get("title", ""), source=source, labels=_labels(row),
                meta={field: value for field, value in row.items() if _describes(field, value)},
            )  # fmt: skip
        except DocumentError as error:
            report(f"row {number}: {error}")
            continue
        yield document
        count += 1
    if not count:
        raise DocumentError("no row with text in it")


def _own_id(row: dict[str, Any]) -> str:
    return next((str(row[field]) for field in _ID_FIELDS if row.get(field) not in (None, "")), "")


def _labels(row: dict[str, Any]) -> tuple[str, ...]:
    """A row's labels: text, or a list of texts. Raises DocumentError for anything else."""
    labels = row.get("labels") or row.get("label") or ()
    if isinstance(labels, str):
        return (labels,)
    if not isinstance(labels, list | tuple) or not all(isinstance(label, str) for label in labels):
        raise DocumentError("labels must be text or a list of texts")
    return tuple(labels)


def _describes(field: str, value: object) -> bool:
    if field in (*TEXT_FIELDS, *_ID_FIELDS, "title", "label", "labels"):
        return False
    if isinstance(value, float):
        return math.isfinite(value)  # NaN stands for nothing
    return isinstance(value, bool | int) or (isinstance(value, str) and 0 < len(value) <= _DESCRIBES)
