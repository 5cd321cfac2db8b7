"""What every tier promises (C1): one small protocol, one contract suite for all of them.

A tier stores entries by `(tenant, key hash, bucket rank)`. The rules of reuse (C2) are those of `bucket`.
"""

from dataclasses import dataclass
from typing import Protocol

from .entry import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Which entries to drop: all that match every field given. With no field set: all entries of all tenants."""

    tenant: str | None = None
    key: str | None = None
    entry_id: str | None = None
    tag: str | None = None
    kb: str | None = None
    before: float | None = None

    def matches(self, entry: Entry) -> bool:
        """Whether this entry is meant; `before` (seconds since the epoch) takes entries created until then."""
        return (
            self.tenant in (None, entry.tenant)
            and self.key in (None, entry.key)
            and self.entry_id in (None, entry.id)
            and (self.tag is None or self.tag in entry.tags)
            and self.kb in (None, entry.kb)
            and (self.before is None or entry.created <= self.before)
        )


class Tier(Protocol):
    """A place for entries. `get` returns the deepest fresh entry whose bucket rank is at least `rank`."""

    def put(self, entry: Entry) -> bool: ...

    def get(self, tenant: str, key: str, *, rank: int, max_age_s: float | None = None) -> Entry | None: ...

    def drop(self, selector: Selector) -> int: ...

    def close(self) -> None: ...
