"""Where records are kept: one SQLite file, tenants apart, bounded in age and size (G7).

Opened when first used, so that a store nobody writes to costs nothing. Knows no models and no pages.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ...gated_llm.errors import TraceError
from ...gated_llm.marks import Answered
from .record import Record

SCHEMA = """
CREATE TABLE IF NOT EXISTS traces (
    tenant TEXT NOT NULL, id TEXT NOT NULL, at REAL NOT NULL, mode TEXT NOT NULL, route TEXT NOT NULL,
    depth REAL NOT NULL, total INTEGER NOT NULL, bytes INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (tenant, id));
CREATE INDEX IF NOT EXISTS traces_at ON traces (at, bytes);
CREATE TABLE IF NOT EXISTS thumbs (
    tenant TEXT NOT NULL, id TEXT NOT NULL, up INTEGER NOT NULL, PRIMARY KEY (tenant, id));
"""
_LISTED = ("id", "tenant", "at", "mode", "route", "depth", "total", "bytes")
_ROW = 200  # bytes of a row beside its body, about
_EVERY = 64  # records between two looks at age and size


class TraceStore:
    """Records by tenant and id. Safe from any thread and from several processes.

    What is older than `max_age_s` seconds goes, and the oldest as soon as all take more than `max_bytes`. Raises
    TraceError when the file is not a store or cannot be used.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_age_s: float = 7 * 86_400.0,
        max_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path, self._max_age_s, self._max_bytes, self.clock = path, max_age_s, max_bytes, clock
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._puts = 0

    def put(self, record: Record) -> None:
        """Keeps a record; one of the same tenant and id is replaced."""
        body, depth = record.pack(), record.trace["depth"]
        row = (
            record.tenant, record.id, record.at, record.mode.value, record.trace["route"], depth["max"], depth["total"],
            len(body) + _ROW, body,
        )  # fmt: skip
        self._run(f"INSERT OR REPLACE INTO traces VALUES ({','.join('?' * len(row))})", row)
        self._puts += 1
        if self._puts % _EVERY == 1:
            self.prune()

    def get(self, trace_id: str, *, tenant: str | None) -> Record | None:
        """The record, of this tenant only; `tenant` None looks at all and takes the newest."""
        rows = self._run(
            "SELECT body, tenant FROM traces WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY at DESC LIMIT 1",
            (trace_id, tenant),
        )
        return Record.unpack(rows[0][0], tenant=rows[0][1]) if rows else None

    def newest(self, *, tenant: str | None = None, limit: int = 20) -> list[dict[str, Any]]:
        """The newest records in short, newest first: id, tenant, at, mode, route, depth, total, bytes."""
        rows = self._run(
            f"SELECT {','.join(_LISTED)} FROM traces WHERE ?1 IS NULL OR tenant = ?1 "
            "ORDER BY at DESC, rowid DESC LIMIT ?2",
            (tenant, limit),
        )
        return [dict(zip(_LISTED, row, strict=True)) for row in rows]

    def judge(self, trace_id: str, *, tenant: str, up: bool) -> None:
        """Notes what people thought of an answer (G15), if its record is kept; the last word counts."""
        self._run(
            "INSERT OR REPLACE INTO thumbs SELECT tenant, id, ?3 FROM traces WHERE id = ?1 AND tenant = ?2",
            (trace_id, tenant, up),
        )

    def answers(self) -> Iterator[Answered]:
        """The kept answers of every tenant, newest first, with what people thought of them (G15); no text. Records that
        cannot be read are passed over.
        """
        thumb = "SELECT 1 FROM thumbs AS t WHERE t.tenant = traces.tenant AND t.id = traces.id AND NOT t.up"
        rows = self._run(f"SELECT body, tenant, EXISTS ({thumb}) FROM traces ORDER BY at DESC, rowid DESC", ())
        for body, tenant, disliked in rows:
            with suppress(TraceError):
                record = Record.unpack(body, tenant=tenant)
                yield Answered(
                    caller=tenant,
                    prompt=str(record.prompt.get("sha256")),
                    kind=str(record.trace["route"]),
                    disliked=bool(disliked),
                    depth=record.trace["depth"],
                )

    def prompts(self, most: int) -> list[list[dict[str, str]]]:
        """Messages of the newest requests whose text was kept, `most` in all and each question once; callers take
        turns, so that none fills the list.
        """
        asked: dict[str, list[list[dict[str, str]]]] = {}
        seen: set[tuple[str, str]] = set()
        for body, tenant in self._run("SELECT body, tenant FROM traces ORDER BY at DESC, rowid DESC", ()):
            with suppress(TraceError):
                prompt = Record.unpack(body, tenant=tenant).prompt
                key = tenant, str(prompt.get("sha256"))
                if prompt.get("messages") and key not in seen:
                    seen.add(key)
                    asked.setdefault(tenant, []).append(prompt["messages"])
        turns = zip_longest(*asked.values())
        return [messages for turn in turns for messages in turn if messages is not None][:most]

    def prune(self) -> None:
        """Drops what is too old, then the oldest until the rest fits."""
        self._run("DELETE FROM traces WHERE at < ?", (self.clock() - self._max_age_s,))
        self._run(
            "DELETE FROM traces WHERE rowid IN (SELECT rowid FROM ("
            "SELECT rowid, sum(bytes) OVER (ORDER BY at DESC, rowid DESC) AS upto FROM traces) WHERE upto > ?)",
            (self._max_bytes,),
        )
        self._run("DELETE FROM thumbs WHERE (tenant, id) NOT IN (SELECT tenant, id FROM traces)", ())
        self._run("PRAGMA incremental_vacuum", ())

    def close(self) -> None:
        """Closes the file; using the store again opens it again."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _run(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        """One statement, which is one transaction."""
        try:
            with self._lock:
                self._db = self._db or self._open()
                return self._db.execute(sql, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise TraceError(
                f"The trace store {self.path} cannot be used ({error}): move it away or free space."
            ) from error

    def _open(self) -> sqlite3.Connection:
        if str(self.path) != ":memory:":
            path = Path(self.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                path.touch(mode=0o600, exist_ok=False)
        db = sqlite3.connect(str(self.path), timeout=5, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.executescript(SCHEMA)
        except BaseException:
            db.close()
            raise
        return db
