"""Documents into a store: split, embedded and read in batches, committed whole; unchanged ones cost nothing (A1).

Knows nothing of questions.
"""

import hashlib
import os
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Protocol

from .chunk import Chunk, Splitter
from .document import Document, Kind, file_name, read_bytes, read_file
from .embed import Embedder
from .errors import DocumentError
from .reading import Reader, Reading
from .store import Encoded, Row, Store

_BATCH = 256  # chunks embedded and committed together
_WRONG = 20  # bad rows of a file that are told one by one
_KEPT = 4096  # readings kept in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A file that did not go in, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddReport:
    """What `add` did: documents new, changed, as before, gone from their file; chunks written; files skipped."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    chunks: int = 0
    skipped: tuple[Skipped, ...] = ()


def settings_of(embed: Embedder, splitter: Splitter, reader: Reader) -> dict[str, str]:
    """What a store has to be asked with: whose vectors, chunks and readings it holds."""
    return {
        "format": "1",
        "embedder": embed.fingerprint,
        "dim": str(embed.dim),
        "splitter": splitter.fingerprint,
        "reader": reader.fingerprint,
    }


def encode(title: str, chunks: Sequence[Chunk], embed: Embedder, reader: Reader) -> list[Encoded]:
    """A document's chunks with vectors and readings; some at a time, as readings are large before they are packed."""
    out: list[Encoded] = []
    for start in range(0, len(chunks), _BATCH):
        part = chunks[start : start + _BATCH]
        vectors = embed([passage_text(title, chunk) for chunk in part])
        readings = reader.read([(_above(title, chunk.heading, chunk.text), chunk.text) for chunk in part])
        out += [
            Encoded(chunk=chunk, vector=vector, reading=reading.pack())
            for chunk, vector, reading in zip(part, vectors, readings, strict=True)
        ]
    return out


class EncodeAll(Protocol):
    """Has `encode` done for many documents, each given as (title, chunks); results in their order.

    `batch`: how many chunks are worth handing over, and are committed, together.
    """

    @property
    def batch(self) -> int: ...

    def __call__(self, work: Sequence[tuple[str, Sequence[Chunk]]], /) -> Sequence[list[Encoded]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeHere:
    """In this process, one document after the other."""

    embed: Embedder
    reader: Reader
    batch: int = _BATCH

    def __call__(self, work: Sequence[tuple[str, Sequence[Chunk]]], /) -> list[list[Encoded]]:
        return [encode(title, chunks, self.embed, self.reader) for title, chunks in work]


def passage_text(title: str, chunk: Chunk) -> str:
    """The passage with what stands above it: title and headings."""
    top = _above(title, chunk.heading, chunk.text)
    return f"{top}\n{chunk.text}" if top else chunk.text


def _told(wrong: Sequence[str], found: Sequence[Document], name: str) -> list[str]:
    """What was wrong with rows of a file of that name, in short; ids that came twice too."""
    counts = Counter(document.doc_id.removeprefix(f"{name}#") for document in found)
    twice = [f"id {key:.80} came {count} times: the last row counts" for key, count in counts.items() if count > 1]
    told = [*wrong, *twice]
    return told if len(told) <= _WRONG else [*told[:_WRONG], f"and {len(told) - _WRONG} more rows"]


def _last(documents: Sequence[Document]) -> list[Document]:
    """Of documents of one name the last."""
    return list({document.doc_id: document for document in documents}.values())


def _labelled(documents: Iterable[Document], labels: tuple[str, ...], wrong: Sequence[str]) -> list[Document]:
    """The documents as read, with these labels first. A file of which nothing is left says what was `wrong` with it."""
    try:
        found = list(documents)
    except DocumentError as error:
        raise DocumentError("; ".join((str(error), *wrong[:1]))) from error
    return [replace(one, labels=tuple(dict.fromkeys((*labels, *one.labels)))) if labels else one for one in found]


def _above(title: str, heading: str, text: str) -> str:
    """What stands over a passage and is not in it."""
    return "\n".join(dict.fromkeys(part for part in (title, heading) if part and part not in text))


class Readings:
    """Readings of stored chunks: as kept when the store was made by this reader, else read now and remembered."""

    def __init__(self, reader: Reader, *, current: bool) -> None:
        self._reader, self._current = reader, current
        self._kept: OrderedDict[str, Reading] = OrderedDict()
        self._lock = Lock()

    def __call__(self, rows: Sequence[Row]) -> list[Reading]:
        """The readings of the chunks, in their order."""
        if self._current:
            return [Reading.unpack(row.reading) for row in rows]
        missing = [row for row in rows if row.chunk_id not in self._kept]
        made = self._reader.read([(_above(row.title, row.heading, row.text), row.text) for row in missing])
        fresh = {row.chunk_id: reading for row, reading in zip(missing, made, strict=True)}
        with self._lock:
            self._kept.update(fresh)
            out = [self._kept[row.chunk_id] for row in rows]
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return out


class Ingest:
    """Documents gathered until enough chunks are there to be embedded and committed together."""

    def __init__(self, store: Store, splitter: Splitter, encode_all: EncodeAll) -> None:
        self._store, self._splitter, self._encode_all = store, splitter, encode_all
        self._waiting: dict[str, tuple[Document, list[Chunk]]] = {}
        self._names: dict[str, str] = {}  # of files read so far, to where they lie
        self._gone: list[str] = []
        self._done = AddReport()

    def report(self, skipped: Sequence[Skipped] = ()) -> AddReport:
        """What was done so far."""
        return replace(self._done, skipped=tuple(skipped))

    def _count(self, what: str, number: int = 1) -> None:
        self._done = replace(self._done, **{what: getattr(self._done, what) + number})

    def file(self, file: Path, root: Path, labels: tuple[str, ...]) -> list[str]:
        """Read a file and put its documents in; those it no longer holds go. Gives what was wrong with single rows.

        Raises DocumentError. While a row cannot be read, what came from the file before stays: it may be that row.
        """
        source, wrong = os.path.realpath(file), list[str]()
        earlier = self._store.sources(source)
        name = self._name(file, root, source, earlier)
        found = _labelled(read_file(file, name, wrong.append), labels, wrong)
        self._names[name] = source
        if not wrong:
            self._gone += sorted(set(earlier) - {document.doc_id for document in found})
        self.put(_last(found))
        return _told(wrong, found, name)

    def data(self, data: bytes, name: str, kind: Kind, labels: tuple[str, ...]) -> list[str]:
        """Put in what a file of that kind would hold; otherwise as `file`, but nothing goes."""
        wrong: list[str] = []
        found = _labelled(read_bytes(data, name, kind, report=wrong.append), labels, wrong)
        self.put(_last(found))
        return _told(wrong, found, name)

    def _name(self, file: Path, root: Path, source: str, earlier: list[str]) -> str:
        """The file's name below the folder given; a hash of its place is added when another file has that name."""
        if earlier:
            return file_name(earlier[0], source)
        relative = file.relative_to(root).as_posix()
        owner = self._names.get(relative) or self._store.source_of(relative)
        free = owner is None or owner == source
        return relative if free else f"{relative}~{hashlib.sha256(source.encode()).hexdigest()[:8]}"

    def put(self, documents: Sequence[Document]) -> None:
        """Take documents in, committing when enough are waiting; the last of a name counts."""
        for document in documents:
            before = self._store.digest(document.doc_id)
            if before == document.digest and document.doc_id not in self._waiting:
                self._count("unchanged")
                continue
            if document.doc_id not in self._waiting:
                self._count("added" if before is None else "updated")
            self._waiting[document.doc_id] = (document, self._splitter.split(document.text, document.doc_id))
            if sum(len(chunks) for _, chunks in self._waiting.values()) >= self._encode_all.batch:
                self.flush()

    def flush(self) -> None:
        """Embed, read and commit what is waiting."""
        if not self._waiting and not self._gone:
            return
        known = [
            self._store.encoded(document.doc_id) if self._same_title(document) else {}
            for document, _ in self._waiting.values()
        ]
        fresh = self._encode_all(
            [
                (document.title, [chunk for chunk in chunks if chunk.chunk_id not in earlier])
                for (document, chunks), earlier in zip(self._waiting.values(), known, strict=True)
            ]
        )
        ready = []
        for (document, chunks), earlier, made in zip(self._waiting.values(), known, fresh, strict=True):
            new = iter(made)
            ready.append(
                (
                    document,
                    [
                        Encoded(chunk=chunk, vector=earlier[chunk.chunk_id][0], reading=earlier[chunk.chunk_id][1])
                        if chunk.chunk_id in earlier
                        else next(new)
                        for chunk in chunks
                    ],
                )
            )
            self._count("chunks", len(chunks))
        self._store.replace(ready, self._gone)
        self._count("removed", len(self._gone))
        self._waiting, self._gone = {}, []

    def _same_title(self, document: Document) -> bool:
        before = self._store.document(document.doc_id)
        return before is not None and before.title == document.title
