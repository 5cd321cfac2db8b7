"""What every request cost in layer-tokens (S5): one row each, prepaid quotas, sums by tenant, route, bucket and day.

SQLite in WAL mode, so that many threads and processes may write. Layer-tokens come from the engine's own counters and
are never estimated, except for a reservation, which is given back when the true number is known. A reservation is a
lease that its process renews: one that was killed gives it back within `LEASE_S`. Knows no HTTP.
"""

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from .decision import Answer
from .errors import RouterError

SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    id TEXT PRIMARY KEY, at REAL NOT NULL, tenant TEXT NOT NULL, account TEXT NOT NULL, route TEXT NOT NULL,
    bucket TEXT NOT NULL, tier TEXT NOT NULL, finish TEXT NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, layer_tokens REAL NOT NULL, charged REAL NOT NULL, depth REAL NOT NULL,
    total INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS requests_at ON requests (tenant, at);
CREATE TABLE IF NOT EXISTS accounts (
    account TEXT PRIMARY KEY, granted REAL NOT NULL, spent REAL NOT NULL DEFAULT 0, reserved REAL NOT NULL DEFAULT 0,
    CHECK (reserved >= 0 AND spent >= 0 AND spent + reserved <= granted + 1e-6)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holds (
    id TEXT PRIMARY KEY, account TEXT NOT NULL, amount REAL NOT NULL, owner TEXT NOT NULL, expires REAL NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ledger (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
"""
FORM = 1  # of the file; SQLite's user_version, 0 in a new file
LEASE_S = 15.0  # of a reservation and of a slot held in Redis; renewed every `BEAT_S` while its process lives
BEAT_S = 4.0
GROUPS = {
    "tenant": "tenant", "route": "route", "bucket": "bucket", "tier": "tier", "account": "account",
    "day": "date(at, 'unixepoch')",
}  # fmt: skip
DEEPEST = "cast(depth AS INTEGER) + (depth > cast(depth AS INTEGER))"  # rounded up


class QuotaExceeded(RouterError):
    """The prepaid layer-tokens do not cover what the request may need at most."""

    @classmethod
    def by(cls, amount: float) -> Self:
        """For a request that may need so many."""
        return cls(
            f"This needs up to {amount:.0f} layer-tokens, more than are left: lower max_tokens or add to the quota."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request. `charged` is what the account paid: `layer_tokens`, or less where it had reserved less."""

    id: str
    at: float
    tenant: str
    account: str
    route: str
    bucket: str
    tier: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    layer_tokens: float
    charged: float
    depth: float
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """A prepaid account in layer-tokens."""

    granted: float
    spent: float
    reserved: float

    @property
    def left(self) -> float:
        return self.granted - self.spent - self.reserved


class Ledger:
    """The ledger in one file (":memory:" for none). Every method is one transaction and safe from any thread."""

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._db = sqlite3.connect(str(path), timeout=10, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        if (form := self._db.execute("PRAGMA user_version").fetchone()[0]) not in (0, FORM):
            self._db.close()
            raise RouterError(
                f"{path} is a ledger of form {form}; this version of Shoal reads form {FORM}. Go on with the version "
                "that made it, or move the file away."
            )
        self._db.executescript(f"{SCHEMA} PRAGMA user_version = {FORM};")
        self._owner = uuid.uuid4().hex
        self._db.execute("INSERT OR IGNORE INTO ledger VALUES (1, ?)", (self._owner,))
        self.id: str = self._db.execute("SELECT id FROM ledger").fetchone()[0]  # of the file, for all its processes

    def recover(self) -> None:
        """Gives back reservations of services that ended without settling, once their lease is over."""
        with self._write() as db:
            self._expire(db)

    def renew(self) -> None:
        """Prolongs the reservations of this process; to be called several times in `LEASE_S`."""
        with self._write() as db:
            db.execute("UPDATE holds SET expires = ? WHERE owner = ?", (self._clock() + LEASE_S, self._owner))

    def _expire(self, db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM holds WHERE expires <= ?", (self._clock(),))
        db.execute(
            "UPDATE accounts SET reserved = "
            "(SELECT coalesce(sum(amount), 0) FROM holds WHERE holds.account = accounts.account) WHERE reserved > 0"
        )

    def grant(self, account: str, granted: float) -> None:
        """Sets what the account has been granted in all; never below what it has spent or reserved."""
        with self._write() as db:
            db.execute(
                "INSERT INTO accounts (account, granted) VALUES (?1, ?2) ON CONFLICT (account) "
                "DO UPDATE SET granted = max(?2, spent + reserved)",
                (account, granted),
            )

    def balance(self, account: str) -> Balance | None:
        """None for an account that is not prepaid."""
        with self._lock:
            row = self._db.execute(
                "SELECT granted, spent, reserved FROM accounts WHERE account = ?", (account,)
            ).fetchone()
        return Balance(granted=row[0], spent=row[1], reserved=row[2]) if row else None

    def reserve(self, account: str, amount: float, request_id: str) -> None:
        """Holds `amount` of a prepaid account, before the work. Raises `QuotaExceeded`, then nothing is held."""
        with self._write() as db:
            self._expire(db)
            held = db.execute(
                "UPDATE accounts SET reserved = reserved + ?1 WHERE account = ?2 AND granted - spent - reserved >= ?1",
                (amount, account),
            ).rowcount
            if held:
                db.execute(
                    "INSERT INTO holds VALUES (?, ?, ?, ?, ?)",
                    (request_id, account, amount, self._owner, self._clock() + LEASE_S),
                )
        if not held:
            raise QuotaExceeded.by(amount)

    def release(self, request_id: str) -> None:
        """Gives a reservation back; nothing was done for it."""
        with self._write() as db:
            db.execute("DELETE FROM holds WHERE id = ?", (request_id,))
            self._expire(db)

    def settle(
        self, request_id: str, *, tenant: str, account: str, answer: Answer | None, reserved: float | None = None
    ) -> Row:
        """Writes the request down, gives its reservation back and charges the account what was used, at most that.

        Without an answer the request failed and cost nothing. A second call for the same request changes nothing.
        """
        row = _row(request_id, self._clock(), tenant, account, answer, reserved)
        columns = asdict(row)
        with self._write() as db:
            fresh = db.execute(
                f"INSERT OR IGNORE INTO requests ({','.join(columns)}) VALUES ({','.join('?' * len(columns))})",
                tuple(columns.values()),
            ).rowcount
            if fresh and reserved is not None:
                db.execute("DELETE FROM holds WHERE id = ?", (request_id,))
                self._expire(db)
                db.execute(  # never below zero, also where the lease was lost to others meanwhile
                    "UPDATE accounts SET spent = min(spent + ?, granted - reserved) WHERE account = ?",
                    (row.charged, account),
                )
        return row

    def report(
        self, by: Sequence[str] = ("tenant", "route"), *, tenant: str | None = None, since: float = 0.0
    ) -> list[dict[str, Any]]:
        """Sums by any of tenant, route, bucket, tier, account, day. `full_depth` is the same tokens at every layer."""
        sums = (
            "count(*) AS requests, sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens, "
            "sum(layer_tokens) AS layer_tokens, sum((prompt_tokens + completion_tokens) * total) AS full_depth, "
            "avg(depth) AS mean_depth"
        )
        return self._sums(by, sums, "layer_tokens DESC", tenant, since)

    def depths(
        self, by: Sequence[str] = ("day",), *, tenant: str | None = None, since: float = 0.0
    ) -> list[dict[str, Any]]:
        """How many answers had which depth: rows of the groups, `depth` (layers, rounded up), `total`, `requests`."""
        groups = [*by, "depth"]
        return self._sums(groups, "max(total) AS total, count(*) AS requests", ",".join(groups), tenant, since)

    def _sums(self, by: Sequence[str], sums: str, order: str, tenant: str | None, since: float) -> list[dict[str, Any]]:
        unknown = [name for name in by if name not in GROUPS and name != "depth"]
        if unknown:
            raise ValueError(f"cannot group by {', '.join(unknown)}; choose from {', '.join(GROUPS)}")
        groups = "".join(f"{GROUPS.get(name, DEEPEST)} AS {name}, " for name in by)
        sql = f"SELECT {groups}{sums} FROM requests WHERE at >= ?1 AND (?2 IS NULL OR tenant = ?2)"
        if by:
            sql += f" GROUP BY {','.join(str(i + 1) for i in range(len(by)))} ORDER BY {order}"
        with self._lock:
            cursor = self._db.execute(sql, (since, tenant))
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return [row for row in rows if row["requests"]]

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


def _row(request_id: str, at: float, tenant: str, account: str, answer: Answer | None, reserved: float | None) -> Row:
    used = answer.trace.layer_tokens if answer else 0.0
    return Row(
        id=request_id,
        at=at,
        tenant=tenant,
        account=account,
        route=answer.route.value if answer else "none",
        bucket=answer.trace.decision.bucket if answer else "",
        tier=(answer.trace.tier or "") if answer else "",
        finish=answer.finish_reason if answer else "failed",
        prompt_tokens=answer.prompt_tokens if answer else 0,
        completion_tokens=answer.completion_tokens if answer else 0,
        layer_tokens=used,
        charged=used if reserved is None else min(used, reserved),
        depth=float(answer.trace.depth["max"]) if answer else 0.0,
        total=int(answer.trace.depth["total"]) if answer else 0,
    )
