"""One cached answer and its form on the wire: a versioned, checksummed line of JSON (C1, C5). No pickle.

A record of another version, a damaged one, or one with a missing field decodes to None: a miss, never an error.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 1
_MAGIC = b"shoal%d " % VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A stored answer. Times are seconds since the epoch, `budget` and `depth` layers, `score` the cosine of the match.

    `rank` is the bucket's place (0 shallow); `tier` says where this copy was found: `l1`, `l2` or `semantic`;
    `confidence` is the second look's estimate that a semantic match asks the same thing (1.0 for exact hits).
    """

    id: str
    key: str
    scope: str
    tenant: str
    kb: str
    text: str
    prompt: str
    budget: float
    depth: float
    rank: int
    bucket: str
    created: float
    expires: float
    tags: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    tier: str = "l1"
    score: float = 1.0
    confidence: float = 1.0

    def fresh(self, now: float, max_age_s: float | None = None) -> bool:
        """Whether the entry may be served at `now`: TTL is absolute, `max_age_s` counts from creation."""
        return now < self.expires and (max_age_s is None or now - self.created <= max_age_s)


_NAMES = frozenset(Entry.__dataclass_fields__)
_STORED = _NAMES - {"tier", "score", "confidence"}


def encode(entry: Entry) -> bytes:
    """The entry as `magic crc32 json`, ASCII only."""
    fields = {k: v for k, v in asdict(entry).items() if k in _STORED}
    body = json.dumps(fields, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return b"%s%08x %s" % (_MAGIC, zlib.crc32(body), body)


def decode(raw: bytes | str | None, *, tier: str = "l2") -> Entry | None:
    """The entry, or None when the record is absent, damaged, or of another version."""
    if raw is None:
        return None
    data = raw.encode("utf-8", "replace") if isinstance(raw, str) else bytes(raw)
    head = len(_MAGIC) + 9
    if not data.startswith(_MAGIC) or len(data) < head or data[head - 1 : head] != b" ":
        return None
    body = data[head:]
    if data[len(_MAGIC) : head - 1] != b"%08x" % zlib.crc32(body):
        return None
    try:
        fields = json.loads(body)
        fields["tags"] = tuple(fields["tags"])
        return Entry(**fields, tier=tier) if set(fields) == _STORED else None
    except (ValueError, TypeError, KeyError):
        return None
