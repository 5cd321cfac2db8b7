"""L3 (C1): an append-only log on disk of every request in the deepest bucket, for analysis, replay and refilling the
cache.

One record is one line, `crc32 json`, written with a single append, so a process killed in mid-write loses at most
that record; reading skips what does not check and says so. Every process writes its own segments; segments rotate by
size, and the oldest go when the log is over its cap. Prompts are stored as they are, redacted (mail addresses,
numbers of five digits and more), or not at all. Knows nothing of memory or Redis.
"""

import json
import logging
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from threading import RLock
from typing import Any, Literal

from .entry import Entry, decode, encode
from .errors import CacheInputError, MissingExtraError
from .tier import Selector

log = logging.getLogger(__name__)
Privacy = Literal["plain", "redacted", "hashed"]

_REDACT = ((re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+"), "<mail>"), (re.compile(r"\d(?:[ -]?\d){4,}"), "<number>"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    path: Path
    offset: int
    length: int
    at: float


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        for pattern, label in _REDACT:
            value = pattern.sub(label, value)
        return value
    if isinstance(value, Mapping):
        return {k: _redacted(v) for k, v in value.items()}
    return [_redacted(v) for v in value] if isinstance(value, list) else value


def _line(record: Mapping[str, Any]) -> bytes:
    body = json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _parse(line: bytes) -> dict[str, Any] | None:
    head, _, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or head != b"%08x" % zlib.crc32(body):
        return None
    try:
        record = json.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


class ColdLog:
    """The log in folder `path`. `segment_bytes` and `max_bytes` bound a file and the whole."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        segment_bytes: int = 16 * 2**20,
        max_bytes: int = 2**30,
        privacy: Privacy = "plain",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if segment_bytes < 1 or max_bytes < segment_bytes:
            raise CacheInputError(f"max_bytes ({max_bytes}) must hold at least one segment of {segment_bytes} bytes")
        if privacy not in ("plain", "redacted", "hashed"):
            raise CacheInputError(f"privacy must be plain, redacted or hashed, got {privacy!r}")
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._segment_bytes, self._max_bytes, self._privacy, self._clock = segment_bytes, max_bytes, privacy, clock
        self._lock = RLock()
        self._index: dict[tuple[str, str], dict[int, _Place]] = {}
        self._file: int | None = None
        self._current: Path | None = None
        self._size = 0
        self.skipped = 0
        self._scan()

    # writing ---------------------------------------------------------------------------------------------------------

    def record(
        self, entry: Entry, *, request: Mapping[str, Any] | None = None, stored: bool = True, reason: str = ""
    ) -> None:
        """Append one answered request. `request` is what replay needs: messages and parameters, JSON-ready."""
        if self._privacy == "hashed":
            request, prompt = None, ""
        else:
            prompt = entry.prompt
        if self._privacy == "redacted":
            request, prompt = _redacted(dict(request or {})), _redacted(prompt)
        wire = encode(entry if prompt == entry.prompt else replace(entry, prompt=prompt)).decode("ascii")
        line = {"at": self._clock(), "entry": wire, "request": request, "stored": stored, "reason": reason}
        with self._lock:  # a tombstone written in between must not be overtaken by the index
            place = self._append(line)
            if stored:
                self._index.setdefault((entry.tenant, entry.key), {})[entry.rank] = place

    def put(self, entry: Entry) -> bool:
        """Append the entry, unless it has expired or the log holds a fresh deeper one of its bucket."""
        now = self._clock()
        if now >= entry.expires:
            return False
        with self._lock:
            old = self._at(entry.tenant, entry.key, entry.rank)
            if old is not None and old.fresh(now) and old.budget > entry.budget:
                return False
            self.record(entry)
            ranks = self._index[(entry.tenant, entry.key)]
            for rank in [r for r in ranks if r < entry.rank]:
                del ranks[rank]
        return True

    def drop(self, selector: Selector) -> int:
        """Append a tombstone; what it matches is never found, refilled or replayed again."""
        with self._lock:
            self._append({"at": self._clock(), "drop": {k: v for k, v in asdict(selector).items() if v is not None}})
            return self._forget(selector)

    def _append(self, record: Mapping[str, Any]) -> _Place:
        line = _line(record)
        with self._lock:
            if self._file is None or self._size + len(line) > self._segment_bytes:
                self._rotate()
            assert self._file is not None
            assert self._current is not None
            offset = self._size
            written = os.write(self._file, line)
            self._size += written
            if written < len(line):
                raise OSError("the disk took only part of a record")
            return _Place(path=self._current, offset=offset, length=len(line), at=float(record["at"]))

    def _rotate(self) -> None:
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
        self._current = self.path / f"{time.time_ns():020d}-{os.getpid()}-{token_hex(3)}.log"
        self._file = os.open(self._current, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        self._size = 0
        self._trim()

    def _trim(self) -> None:
        """Remove the oldest segments until the rest and one full segment fit the cap."""
        old = [p for p in self.segments() if p != self._current]
        sizes = {p: p.stat().st_size for p in old if p.exists()}
        while old and sum(sizes.values()) + self._segment_bytes > self._max_bytes:
            gone = old.pop(0)
            sizes.pop(gone, None)
            gone.unlink(missing_ok=True)
            for ranks in self._index.values():
                for rank in [r for r, place in ranks.items() if place.path == gone]:
                    del ranks[rank]

    # reading ---------------------------------------------------------------------------------------------------------

    def segments(self) -> list[Path]:
        """The files of the log, oldest first."""
        return sorted(self.path.glob("*.log"))

    def _lines(self) -> Iterator[tuple[_Place, dict[str, Any]]]:
        """Every record that checks, with its place; counts and reports the others."""
        skipped = 0
        for segment in self.segments():
            offset = 0
            try:
                with segment.open("rb") as file:
                    for line in file:
                        record = _parse(line)
                        if record is None:
                            skipped += 1
                        else:
                            yield (
                                _Place(path=segment, offset=offset, length=len(line), at=float(record.get("at", 0))),
                                record,
                            )
                        offset += len(line)
            except FileNotFoundError:
                continue  # trimmed by another process meanwhile
        self.skipped = skipped
        if skipped:
            log.warning("cold log %s: skipped %d damaged or unfinished records", self.path, skipped)

    def _scan(self) -> None:
        for place, entry, record in self._live():
            if record.get("stored", True):
                ranks = self._index.setdefault((entry.tenant, entry.key), {})
                ranks[entry.rank] = place
                for rank in [r for r in ranks if r < entry.rank]:
                    del ranks[rank]

    def _live(self) -> Iterator[tuple[_Place, Entry, dict[str, Any]]]:
        """Entries not dropped later, oldest first, across the segments of all processes."""
        drops: list[tuple[float, Selector]] = []
        kept: list[tuple[_Place, dict[str, Any]]] = []
        for place, record in self._lines():
            if "drop" in record:
                drops.append((place.at, Selector(**record["drop"])))
            else:
                kept.append((place, {k: v for k, v in record.items() if k != "entry"}))
        for place, rest in sorted(kept, key=lambda item: item[0].at):
            entry = self._read(place)
            if entry is not None and not any((s.entry_id or at >= place.at) and s.matches(entry) for at, s in drops):
                yield place, entry, rest

    def _read(self, place: _Place) -> Entry | None:
        try:
            with place.path.open("rb") as file:
                file.seek(place.offset)
                record = _parse(file.read(place.length))
        except OSError:
            return None
        return decode(record.get("entry"), tier="l3") if record else None

    def _at(self, tenant: str, key: str, rank: int) -> Entry | None:
        with self._lock:
            place = self._index.get((tenant, key), {}).get(rank)
        return self._read(place) if place else None

    def get(self, tenant: str, key: str, *, rank: int, max_age_s: float | None = None) -> Entry | None:
        """The deepest fresh entry at or below `rank` in depth; reads one record from disk."""
        now = self._clock()
        with self._lock:
            ranks = sorted((r for r in self._index.get((tenant, key), {}) if r >= rank), reverse=True)
        for stored in ranks:
            entry = self._at(tenant, key, stored)
            if entry is not None and entry.fresh(now, max_age_s):
                return entry
        return None

    def _forget(self, selector: Selector) -> int:
        gone = 0
        for slot, ranks in list(self._index.items()):
            for rank, place in list(ranks.items()):
                entry = self._read(place)
                if entry is None or selector.matches(entry):
                    del ranks[rank]
                    gone += entry is not None
            if not ranks:
                del self._index[slot]
        return gone

    def entries(self) -> Iterator[Entry]:
        """Live, fresh, stored entries, oldest first: what L1 and L2 can be refilled with."""
        now = self._clock()
        for _, entry, record in self._live():
            if record.get("stored", True) and entry.fresh(now):
                yield entry

    def requests(self) -> Iterator[dict[str, Any]]:
        """Every logged request that was not dropped, for replay: `{at, request, prompt, budget, depth, text, ...}`."""
        for place, entry, record in self._live():
            fields = asdict(entry)
            yield {"at": place.at, "request": record.get("request"), "stored": record.get("stored", True),
                   "reason": record.get("reason", ""), **{k: fields[k] for k in _EXPORTED}}  # fmt: skip

    def export(self, target: str | os.PathLike[str]) -> int:
        """Write `requests()` as JSONL, or as Parquet when the name ends in `.parquet` (needs pyarrow); rows written."""
        rows = list(self.requests())
        target = Path(target)
        if target.suffix == ".parquet":
            try:
                pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
            except ImportError as error:
                raise MissingExtraError(
                    "writing Parquet needs pyarrow; run: pip install pyarrow, or export to .jsonl"
                ) from error
            flat = [
                {
                    **{name: _storable(value) for name, value in row.items()},
                    "request": json.dumps(row["request"]), "meta": json.dumps(row["meta"]),
                    "tags": [_storable(tag) for tag in row["tags"]],
                }
                for row in rows
            ]  # fmt: skip
            pq.write_table(pa.Table.from_pylist(flat), target)
            return len(rows)
        with target.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=True) + "\n")
        return len(rows)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.fsync(self._file)
                os.close(self._file)
                self._file = self._current = None


def _storable(value: Any) -> Any:
    """Lone surrogates as escapes: Parquet holds UTF-8 only."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


_EXPORTED = (
    "id",
    "key",
    "tenant",
    "kb",
    "prompt",
    "text",
    "budget",
    "depth",
    "bucket",
    "created",
    "expires",
    "tags",
    "meta",
)
