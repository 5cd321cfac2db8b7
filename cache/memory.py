"""L1 (C1, C5): entries in memory, bounded by number and by bytes, with absolute expiry. Thread-safe.

Eviction is S3-FIFO (Yang et al., SOSP 2023): a small first-in-first-out queue takes newcomers, what is asked for
again moves to the main queue, and a ghost list of hashes lets a returning key straight into the main queue.
`benchmarks/cache_policy.py` shows its hit rate beside LRU on a Zipf trace. Knows nothing of Redis, similarity or
prompts.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock

from .bucket import upgrades
from .entry import Entry, encode
from .errors import CacheInputError
from .tier import Selector

_Slot = tuple[str, str, int]
_OVERHEAD = 700  # bytes of Python objects per entry beside its text, measured with tracemalloc
_SMALL_SHARE = 0.1


@dataclass(slots=True)
class _Node:
    entry: Entry
    size: int
    hits: int = 0


def size_of(entry: Entry) -> int:
    """Bytes an entry is counted as."""
    return len(encode(entry)) + _OVERHEAD


class MemoryTier:
    """Entries in this process. `on_evict` is told of every entry that leaves, for whatever reason."""

    def __init__(
        self,
        *,
        max_entries: int = 10_000,
        max_bytes: int = 64 * 2**20,
        clock: Callable[[], float] = time.time,
        on_evict: Callable[[Entry], None] | None = None,
    ) -> None:
        if max_entries < 1 or max_bytes < 1:
            raise CacheInputError(f"max_entries and max_bytes must be positive, got {max_entries} and {max_bytes}")
        self._max_entries, self._max_bytes, self._clock, self._on_evict = max_entries, max_bytes, clock, on_evict
        self._small: OrderedDict[_Slot, _Node] = OrderedDict()
        self._main: OrderedDict[_Slot, _Node] = OrderedDict()
        self._ghost: OrderedDict[_Slot, None] = OrderedDict()
        self._ranks: dict[tuple[str, str], set[int]] = {}
        self._bytes = 0
        self._lock = RLock()
        self.evictions = 0
        self.generation = 0  # counts drops: lets a reader of a slower tier see that its copy may be stale by now

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    @property
    def bytes(self) -> int:
        """Bytes counted at present."""
        return self._bytes

    def put(self, entry: Entry, *, generation: int | None = None) -> bool:
        """Store, unless a fresh deeper entry of this bucket is there, or drops happened since `generation`."""
        size = size_of(entry)
        now = self._clock()
        if size > self._max_bytes or now >= entry.expires:
            return False
        with self._lock:
            if generation is not None and generation != self.generation:
                return False
            slot = (entry.tenant, entry.key, entry.rank)
            old = self._node(slot)
            if (
                old is not None
                and old.entry.fresh(now)
                and not upgrades(entry.rank, entry.budget, old.entry.rank, old.entry.budget)
            ):
                return False
            hits = old.hits if old else 0
            returning = slot in self._main or slot in self._ghost
            self._remove(slot)
            self._ghost.pop(slot, None)
            for rank in [r for r in self._ranks.get(slot[:2], ()) if r < entry.rank]:
                self._remove((*slot[:2], rank))
            (self._main if returning else self._small)[slot] = _Node(entry, size, hits)
            self._ranks.setdefault(slot[:2], set()).add(entry.rank)
            self._bytes += size
            while len(self) > self._max_entries or self._bytes > self._max_bytes:
                self._evict()
            return True

    def get(self, tenant: str, key: str, *, rank: int, max_age_s: float | None = None) -> Entry | None:
        now = self._clock()
        with self._lock:
            for stored in sorted(self._ranks.get((tenant, key), ()), reverse=True):
                if stored < rank:
                    break
                slot = (tenant, key, stored)
                node = self._node(slot)
                if node is None:
                    continue
                if not node.entry.fresh(now):
                    self._remove(slot)
                elif node.entry.fresh(now, max_age_s):
                    node.hits = min(node.hits + 1, 3)
                    return node.entry
        return None

    def drop(self, selector: Selector) -> int:
        with self._lock:
            self.generation += 1
            slots = [
                s for queue in (self._small, self._main) for s, node in queue.items() if selector.matches(node.entry)
            ]
            for slot in slots:
                self._remove(slot)
            return len(slots)

    def holds(self, entry: Entry) -> bool:
        """Whether exactly this entry is stored now."""
        with self._lock:
            node = self._node((entry.tenant, entry.key, entry.rank))
            return node is not None and node.entry.id == entry.id

    def entries(self) -> list[Entry]:
        """All fresh entries, in no particular order."""
        now = self._clock()
        with self._lock:
            return [n.entry for queue in (self._small, self._main) for n in queue.values() if n.entry.fresh(now)]

    def close(self) -> None:
        self.drop(Selector())

    def _node(self, slot: _Slot) -> _Node | None:
        return self._small.get(slot) or self._main.get(slot)

    def _remove(self, slot: _Slot) -> None:
        node = self._small.pop(slot, None) or self._main.pop(slot, None)
        if node is None:
            return
        self._bytes -= node.size
        ranks = self._ranks[slot[:2]]
        ranks.discard(slot[2])
        if not ranks:
            del self._ranks[slot[:2]]
        if self._on_evict is not None:
            self._on_evict(node.entry)

    def _evict(self) -> None:
        """One step of S3-FIFO: from the small queue when it holds more than its share, else from the main queue."""
        if self._small and (len(self._small) > _SMALL_SHARE * self._max_entries or not self._main):
            slot, node = next(iter(self._small.items()))
            if node.hits > 1:
                self._small.pop(slot)
                node.hits = 0
                self._main[slot] = node
                return
            self._remove(slot)
            self._ghost[slot] = None
            while len(self._ghost) > self._max_entries:
                self._ghost.popitem(last=False)
        else:
            slot, node = next(iter(self._main.items()))
            if node.hits > 0:
                node.hits -= 1
                self._main.move_to_end(slot)
                return
            self._remove(slot)
        self.evictions += 1
