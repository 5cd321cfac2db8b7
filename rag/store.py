"""Documents, chunks, vectors and the word index of a knowledge base in one SQLite file: the truth of what is in it.

Every change is one transaction, so whatever ends the process, the file holds the state before or after it. Words are
searched by BM25 through SQLite's own full-text index, which grows with the same transaction. Knows nothing of
embedders or FAISS.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chunk import Chunk
from .document import Document, label_tuple
from .errors import RagError
from .words import content_terms, terms

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS documents (
    doc_id TEXT PRIMARY KEY, source TEXT NOT NULL, digest TEXT NOT NULL, title TEXT NOT NULL, labels TEXT NOT NULL,
    meta TEXT NOT NULL, text TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS documents_source ON documents (source);
CREATE TABLE IF NOT EXISTS chunks (
    row INTEGER PRIMARY KEY AUTOINCREMENT, chunk_id TEXT NOT NULL UNIQUE, doc_id TEXT NOT NULL,
    ordinal INTEGER NOT NULL, start INTEGER NOT NULL, end INTEGER NOT NULL, heading TEXT NOT NULL,
    text TEXT NOT NULL, vector BLOB NOT NULL, reading BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS chunks_doc ON chunks (doc_id, ordinal);
CREATE TABLE IF NOT EXISTS aside (
    chunk_id TEXT PRIMARY KEY, doc_id TEXT NOT NULL, ordinal INTEGER NOT NULL, start INTEGER NOT NULL,
    end INTEGER NOT NULL, heading TEXT NOT NULL, text TEXT NOT NULL, vector BLOB NOT NULL, reading BLOB NOT NULL,
    score REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS aside_doc ON aside (doc_id);
CREATE TABLE IF NOT EXISTS restored (chunk_id TEXT PRIMARY KEY, doc_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scenarios (
    chunk_id TEXT PRIMARY KEY, doc_id TEXT NOT NULL, label TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS scenarios_doc ON scenarios (doc_id);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (terms, tokenize = "unicode61 remove_diacritics 0");
CREATE VIRTUAL TABLE IF NOT EXISTS vocabulary USING fts5vocab (words, row);
"""
_LABELLED = (  # documents by their own labels, passages by their scenario
    "(chunk_id IN (SELECT chunk_id FROM scenarios WHERE label IN ({marks})) OR "
    "doc_id IN (SELECT doc_id FROM documents, json_each(labels) WHERE json_each.value IN ({marks})))"
)
_DESCRIBED = "doc_id IN (SELECT doc_id FROM documents, json_each(meta) WHERE json_each.key = ? AND json_each.value = ?)"
_COLUMNS = "chunk_id, doc_id, ordinal, start, end, heading, text, vector, reading"
_MARKS = ", ".join("?" * 9)
_MAX_TERMS = 48  # of a question; a pasted page is searched by its rarest words


Where = Mapping[str, str | float | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """Which chunks are searched: those with one of `labels`, and whose document's metadata has all of `where`."""

    labels: Sequence[str] = ()
    where: Where = field(default_factory=dict)

    def __post_init__(self) -> None:
        label_tuple(self.labels)
        if not isinstance(self.where, Mapping) or not all(
            isinstance(key, str) and isinstance(value, str | int | float) for key, value in self.where.items()
        ):
            raise TypeError('a filter is a dict of texts, numbers, true or false by name, such as {"lang": "zh"}')

    def __bool__(self) -> bool:
        return bool(self.labels or self.where)

    def condition(self) -> tuple[str, list[str | float | bool]]:
        """A condition on the table of chunks, and the values for its marks."""
        parts, values = list[str](), list[str | float | bool]()
        if self.labels:
            parts.append(_LABELLED.format(marks=",".join("?" * len(self.labels))))
            values += [*self.labels, *self.labels]
        for key, value in self.where.items():
            parts.append(_DESCRIBED)
            values += [key, value]
        return " AND ".join(parts), values


EVERYTHING = Only()


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A chunk with what is kept for it: its unit vector [dim] and its packed reading."""

    chunk: Chunk
    vector: NDArray[np.float32]
    reading: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A stored chunk. `vector`: [dim] unit row of the store's embedder; `terms`: its index terms; `reading`: packed."""

    row: int
    chunk_id: str
    doc_id: str
    ordinal: int
    start: int
    end: int
    heading: str
    text: str
    title: str
    labels: tuple[str, ...]
    terms: frozenset[str]
    vector: NDArray[np.float32]
    reading: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """A quarantined passage: in the store and out of every search. `score`: its depth score when it was set aside."""

    chunk_id: str
    doc_id: str
    start: int
    end: int
    text: str
    score: float


class Store:
    """One SQLite file in WAL mode. Reads run beside each other and beside one writer; each sees one committed state."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._pool_lock, self._write_lock = Lock(), RLock()
        self._closed = False
        with self._wrapped(), self._connection() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)

    # connections

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=30.0, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._pool_lock:
            if self._closed:
                raise RagError("the knowledge base is closed; open it again")
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._open()
        try:
            yield connection
        finally:
            with self._pool_lock:
                if self._closed:
                    connection.close()
                else:
                    self._idle.append(connection)

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RagError(
                f"{self._path}: {error}. Nothing of the last step was kept; check free space and permissions, and if "
                "the file is damaged, move it away and add the documents again"
            ) from error
        except (UnicodeEncodeError, OverflowError) as error:
            raise RagError(f"nothing stored can be called or valued so: {error}") from error

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._wrapped(), self._connection() as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._write_lock, self._wrapped(), self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute(
                    "INSERT INTO meta VALUES ('generation', '1') "
                    "ON CONFLICT DO UPDATE SET value = CAST(value AS INTEGER) + 1"
                )
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    @property
    def closed(self) -> bool:
        """Whether it has been let go of."""
        return self._closed

    def close(self) -> None:
        """Let go of the file. Later calls raise RagError."""
        with self._pool_lock:
            self._closed = True
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    # what it is

    def meta(self) -> dict[str, str]:
        """All settings: generation, embedder, dim, splitter."""
        return dict(self._read("SELECT key, value FROM meta"))

    def set_meta(self, values: dict[str, str]) -> None:
        """Store settings, in one transaction."""
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def generation(self) -> int:
        """Grows by one with every committed change."""
        found = self._read("SELECT value FROM meta WHERE key = 'generation'")
        return int(found[0][0]) if found else 0

    def counts(self) -> tuple[int, int]:
        """(documents, chunks)."""
        row = self._read("SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM chunks)")[0]
        return int(row[0]), int(row[1])

    def contents(self) -> list[tuple[str, ...]]:
        """What is searched: `digests`, then what audits made of it. Equal lists, equal answers."""
        audited = "SELECT doc_id FROM aside UNION SELECT doc_id FROM restored UNION SELECT doc_id FROM scenarios"
        changed = f"SELECT chunk_id FROM chunks WHERE doc_id IN ({audited}) ORDER BY chunk_id"
        return [*self.digests(), *self._read(changed), *((label,) for _, _, label in self.scenarios())]

    def digests(self) -> list[tuple[str, str]]:
        """(doc_id, content digest) of every document, by doc_id."""
        return self._read("SELECT doc_id, digest FROM documents ORDER BY doc_id")

    # documents

    def document(self, doc_id: str) -> Document | None:
        """The document as it was put in."""
        found = self._read("SELECT text, title, source, labels, meta FROM documents WHERE doc_id = ?", (doc_id,))
        if not found:
            return None
        text, title, source, labels, meta = found[0]
        return Document(
            doc_id=doc_id,
            text=text,
            title=title,
            source=source,
            labels=tuple(json.loads(labels)),
            meta=json.loads(meta),
        )

    def digest(self, doc_id: str) -> str | None:
        """Content digest of a document, None when there is none of that name."""
        found = self._read("SELECT digest FROM documents WHERE doc_id = ?", (doc_id,))
        return found[0][0] if found else None

    def source_of(self, name: str) -> str | None:
        """The file behind a document, or behind the rows `name#key`; None when the name is free."""
        found = self._read(
            "SELECT source FROM documents WHERE doc_id = ? OR (doc_id > ? AND doc_id < ?) LIMIT 1",
            (name, f"{name}#", f"{name}$"),
        )
        return found[0][0] if found else None

    def sources(self, source: str) -> list[str]:
        """Ids of the documents that came from a file."""
        return [
            row[0] for row in self._read("SELECT doc_id FROM documents WHERE source = ? ORDER BY doc_id", (source,))
        ]

    def encoded(self, doc_id: str) -> dict[str, tuple[NDArray[np.float32], bytes]]:
        """(vector, reading) of a document's chunks by chunk id, so that unchanged chunks need not be read again."""
        found = self._read("SELECT chunk_id, vector, reading FROM chunks WHERE doc_id = ?", (doc_id,))
        return {chunk_id: (np.frombuffer(vector, np.float32), reading) for chunk_id, vector, reading in found}

    def replace(
        self,
        documents: Iterable[tuple[Document, Sequence[Encoded]]],
        gone: Iterable[str] = (),
        settings: dict[str, str] | None = None,
        aside: Mapping[str, float] | None = None,
    ) -> None:
        """Put documents in with their chunks, in place of earlier forms; drop those `gone`; all of it or nothing.

        Chunks whose ids are in `aside`, with their depth scores, are kept but not searched.
        """
        prepared = [
            (document, chunks, [_indexed(document.title, one.chunk) for one in chunks])
            for document, chunks in documents
        ]
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", (settings or {}).items())
            for doc_id in gone:
                _drop(connection, doc_id)
            for document, chunks, indexed in prepared:
                _drop(connection, document.doc_id)
                labels, meta = json.dumps(document.labels), json.dumps(document.meta)
                connection.execute(
                    "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (document.doc_id, document.source, document.digest, document.title, labels, meta, document.text),
                )
                for ordinal, (one, words) in enumerate(zip(chunks, indexed, strict=True)):
                    chunk, vector = one.chunk, np.ascontiguousarray(one.vector, np.float32).tobytes()
                    place = (chunk.start, chunk.end, chunk.heading, chunk.text)
                    values = (chunk.chunk_id, document.doc_id, ordinal, *place, vector, one.reading)
                    if aside and chunk.chunk_id in aside:
                        score = aside[chunk.chunk_id]
                        connection.execute(
                            f"INSERT INTO aside ({_COLUMNS}, score) VALUES ({_MARKS}, ?)", (*values, score)
                        )
                    else:
                        _insert(connection, values, words)

    def delete(self, doc_id: str) -> bool:
        """Take a document out. False when there was none."""
        if not self._read("SELECT 1 FROM documents WHERE doc_id = ?", (doc_id,)):
            return False
        with self._transaction() as connection:
            _drop(connection, doc_id)
            connection.execute("DELETE FROM restored WHERE doc_id = ?", (doc_id,))
        return True

    # quarantine and scenarios

    def quarantined(self) -> list[Aside]:
        """The passages set aside, by document and place."""
        found = self._read("SELECT chunk_id, doc_id, start, end, text, score FROM aside ORDER BY doc_id, ordinal")
        return [Aside(**dict(zip(Aside.__dataclass_fields__, values, strict=True))) for values in found]

    def restored(self) -> frozenset[str]:
        """Ids of the passages that were brought back, which no audit sets aside again while their text is the same."""
        return frozenset(row[0] for row in self._read("SELECT chunk_id FROM restored"))

    def restore(self, ids: Sequence[str] | None = None) -> list[str]:
        """Bring passages back into the search, by their own ids or their documents'; None: all. Gives their ids."""
        wanted = None if ids is None else set(ids)
        back = []
        with self._transaction() as connection:
            query = f"SELECT {', '.join(f'a.{name}' for name in _COLUMNS.split(', '))}, d.title "
            rows = connection.execute(f"{query} FROM aside a JOIN documents d USING (doc_id)").fetchall()
            for *values, title in rows:
                if wanted is not None and not wanted & {values[0], values[1]}:
                    continue
                chunk = Chunk(
                    **dict(zip(("chunk_id", "start", "end", "heading", "text"), (values[0], *values[3:7]), strict=True))
                )
                _insert(connection, values, _indexed(title, chunk))
                connection.execute("INSERT OR REPLACE INTO restored VALUES (?, ?)", values[:2])
                connection.execute("DELETE FROM aside WHERE chunk_id = ?", values[:1])
                back.append(chunk.chunk_id)
        return back

    def placed(self) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
        """Of every document that has chunks, (ids of those searched, ids of those set aside)."""
        found: dict[str, tuple[set[str], set[str]]] = {}
        query = "SELECT doc_id, chunk_id, 0 FROM chunks UNION ALL SELECT doc_id, chunk_id, 1 FROM aside"
        for doc_id, chunk_id, out in self._read(query):
            found.setdefault(doc_id, (set(), set()))[out].add(chunk_id)
        return {doc_id: (frozenset(kept), frozenset(out)) for doc_id, (kept, out) in found.items()}

    def size(self, *, aside: bool = False) -> dict[str, int]:
        """What is searched, or what is set aside: documents with a passage there, passages, characters of them."""
        table = "aside" if aside else "chunks"
        row = self._read(f"SELECT count(DISTINCT doc_id), count(*), coalesce(sum(length(text)), 0) FROM {table}")[0]
        return dict(zip(("documents", "passages", "characters"), map(int, row), strict=True))

    def passages(self) -> Iterator[tuple[str, str, str, NDArray[np.float32]]]:
        """(chunk id, doc_id, text, unit vector [dim]) of every passage, searched or set aside, in order of id."""
        query = (
            "SELECT * FROM (SELECT chunk_id, doc_id, text, vector FROM chunks UNION ALL "
            "SELECT chunk_id, doc_id, text, vector FROM aside) WHERE chunk_id > ? ORDER BY chunk_id LIMIT 2048"
        )
        last = ""
        while found := self._read(query, (last,)):
            last = found[-1][0]
            for chunk_id, doc_id, text, vector in found:
                yield chunk_id, doc_id, text, np.frombuffer(vector, np.float32)

    def set_scenarios(self, labels: Iterable[tuple[str, str, str]]) -> None:
        """Give passages (chunk id, doc_id, label) their scenario labels, in place of all earlier ones."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM scenarios")
            connection.executemany("INSERT INTO scenarios VALUES (?, ?, ?)", labels)

    def scenarios(self) -> list[tuple[str, str, str]]:
        """(chunk id, doc_id, scenario label) of every passage that has one."""
        return self._read("SELECT chunk_id, doc_id, label FROM scenarios ORDER BY chunk_id")

    # chunks

    def rows(self, ids: Sequence[int]) -> dict[int, Row]:
        """Stored chunks by row number; numbers no longer there are left out."""
        marks = ",".join("?" * len(ids))
        found = self._read(
            "SELECT c.row, c.chunk_id, c.doc_id, c.ordinal, c.start, c.end, c.heading, c.text, d.title, d.labels, "
            "w.terms, c.vector, c.reading, s.label "
            "FROM chunks c JOIN documents d USING (doc_id) JOIN words w ON w.rowid = c.row "
            "LEFT JOIN scenarios s USING (chunk_id) "
            f"WHERE c.row IN ({marks})",
            [int(number) for number in ids],
        )
        names = list(Row.__dataclass_fields__)
        return {
            values[0]: Row(
                **dict(zip(names[:9], values[:9], strict=True)),
                labels=tuple(dict.fromkeys((*json.loads(values[9]), *([values[13]] if values[13] else ())))),
                terms=frozenset(values[10].split()),
                vector=np.frombuffer(values[11], np.float32),
                reading=values[12],
            )
            for values in found
        }

    def around(self, chunk_id: str, before: int, after: int) -> list[Row]:
        """The chunk with those up to so many places before and after it in its document, in order."""
        found = self._read(
            "SELECT b.row FROM chunks a JOIN chunks b USING (doc_id) "
            "WHERE a.chunk_id = ? AND b.ordinal BETWEEN a.ordinal - ? AND a.ordinal + ?",
            (chunk_id, before, after),
        )
        return sorted(self.rows([row[0] for row in found]).values(), key=lambda row: row.ordinal)

    def row_numbers(self, only: Only = EVERYTHING) -> NDArray[np.int64]:
        """Row numbers of all chunks, or of those asked for."""
        condition, values = only.condition()
        found = self._read(f"SELECT row FROM chunks{f' WHERE {condition}' if only else ''}", values)
        return np.fromiter((row[0] for row in found), np.int64, len(found))

    def vectors_after(self, row: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """(row numbers [n], vectors [n, dim]) of the chunks put in after a row number, some thousands at a time."""
        while found := self._read("SELECT row, vector FROM chunks WHERE row > ? ORDER BY row LIMIT 4096", (row,)):
            row = found[-1][0]
            numbers = np.fromiter((pair[0] for pair in found), np.int64, len(found))
            yield numbers, np.stack([np.frombuffer(pair[1], np.float32) for pair in found])

    # words

    def bm25(self, question: str, k: int, only: Only = EVERYTHING) -> list[tuple[int, float]]:
        """(row number, BM25 score) of the k best chunks by the question's words, best first."""
        wanted = content_terms(question)
        if len(wanted) > _MAX_TERMS:
            wanted = sorted(wanted, key=self.document_frequencies(wanted).__getitem__)[:_MAX_TERMS]
        if not wanted:
            return []
        query = " OR ".join(f'"{term}"' for term in wanted)
        condition, values = only.condition()
        if only:
            sql = (
                "SELECT w.rowid, bm25(words) AS s FROM words w JOIN chunks c ON c.row = w.rowid WHERE words MATCH ? "
                f"AND c.row IN (SELECT row FROM chunks WHERE {condition}) ORDER BY s LIMIT ?"
            )
        else:
            sql = "SELECT rowid, bm25(words) AS s FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?"
        return [(row, -score) for row, score in self._read(sql, [query, *values, k])]

    def rarity(self, wanted: Sequence[str]) -> dict[str, float]:
        """Inverse document frequency of each term: ln(1 + chunks / (1 + chunks with it))."""
        chunks = self.counts()[1]
        return {term: math.log(1 + chunks / (1 + count)) for term, count in self.document_frequencies(wanted).items()}

    def document_frequencies(self, wanted: Sequence[str]) -> dict[str, int]:
        """In how many chunks each term occurs."""
        query = "SELECT term, doc FROM vocabulary WHERE term IN (SELECT value FROM json_each(?))"  # of any number
        found = dict(self._read(query, (json.dumps(list(wanted)),)))
        return {term: int(found.get(term, 0)) for term in wanted}


def _indexed(title: str, chunk: Chunk) -> str:
    above = " ".join(part for part in (title, chunk.heading) if part and part not in chunk.text)
    return " ".join(terms(f"{above} {chunk.text}"))


def _insert(connection: sqlite3.Connection, values: Sequence[Any], words: str) -> None:
    cursor = connection.execute(f"INSERT INTO chunks ({_COLUMNS}) VALUES ({_MARKS})", values)
    connection.execute("INSERT INTO words (rowid, terms) VALUES (?, ?)", (cursor.lastrowid, words))


def _drop(connection: sqlite3.Connection, doc_id: str) -> None:
    connection.execute("DELETE FROM words WHERE rowid IN (SELECT row FROM chunks WHERE doc_id = ?)", (doc_id,))
    connection.execute("DELETE FROM chunks WHERE doc_id = ?", (doc_id,))
    for table in ("aside", "scenarios", "documents"):
        connection.execute(f"DELETE FROM {table} WHERE doc_id = ?", (doc_id,))
