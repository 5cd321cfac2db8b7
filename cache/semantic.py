"""Look-up by meaning (C4): nearest stored questions by cosine, inside one scope and one depth bucket.

Each `(scope, rank)` is a partition of its own, so no search ever crosses tenants, models, conversations or buckets.
Small partitions are scanned exactly; past `GRAPH_FROM` vectors a FAISS HNSW graph takes over where faiss is
installed. Knows nothing of thresholds or guards: it proposes, `match` decides.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .entry import Entry

log = logging.getLogger(__name__)
FloatArray = NDArray[np.float32]

GRAPH_FROM = 4096
_LINKS = 16  # of a graph node, twice that at its base
_SPARE = 0.25  # share of dead vectors at which a graph is built anew


class Embed(Protocol):
    """Texts to unit row vectors [n, dim]; `fingerprint` names the embedder."""

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, texts: Sequence[str], /) -> FloatArray: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored entry near the question, and its cosine."""

    entry: Entry
    cosine: float


class Partition:
    """Vectors of one scope and bucket: rows with holes, then, once there are many, a graph in half precision."""

    def __init__(self, dim: int) -> None:
        self._rows = np.zeros((8, dim), dtype=np.float32)
        self._entries: list[Entry | None] = []  # by row, or by graph node
        self._place: dict[str, int] = {}
        self._free: list[int] = []
        self._graph: Any = None

    def __len__(self) -> int:
        return len(self._place)

    @property
    def bytes(self) -> int:
        """Bytes of the vectors and links."""
        return self._rows.nbytes + (len(self._entries) * (self._rows.shape[1] * 2 + 8 * _LINKS) if self._graph else 0)

    def add(self, entry: Entry, vector: FloatArray) -> None:
        self.remove(entry.id)
        if self._graph is not None:
            self._place[entry.id] = len(self._entries)
            self._entries.append(entry)
            self._graph.add(vector[None, :])
            return
        if self._free:
            row = self._free.pop()
            self._entries[row] = entry
        else:
            row = len(self._entries)
            self._entries.append(entry)
            if row == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[row] = vector
        self._place[entry.id] = row
        if len(self) >= GRAPH_FROM:
            self._build(lambda places: self._rows[places])

    def remove(self, entry_id: str) -> None:
        place = self._place.pop(entry_id, None)
        if place is None:
            return
        self._entries[place] = None
        if self._graph is None:
            self._rows[place] = 0
            self._free.append(place)
        elif len(self._entries) - len(self) > _SPARE * len(self._entries) + 64:
            old = self._graph
            self._build(lambda places: np.stack([old.reconstruct(place) for place in places]))

    def search(self, vector: FloatArray, k: int) -> list[Candidate]:
        """The `k` nearest, best first."""
        if not self._place:
            return []
        if self._graph is not None:
            scores, nodes = self._graph.search(vector[None, :], 2 * k + 16)
            pairs = zip(nodes[0].tolist(), scores[0].tolist(), strict=True)
        else:
            cosines = self._rows[: len(self._entries)] @ vector
            top = np.argpartition(-cosines, min(k, len(cosines) - 1))[: k + 1]
            pairs = zip(top.tolist(), cosines[top].tolist(), strict=True)
        found = [Candidate(entry, cosine) for place, cosine in pairs if place >= 0 and (entry := self._entries[place])]
        return sorted(found, key=lambda c: -c.cosine)[:k]

    def _build(self, vectors: Callable[[list[int]], FloatArray]) -> None:
        faiss = _faiss()
        if faiss is None:
            return
        places = sorted(self._place.values())
        live = np.ascontiguousarray(vectors(places), dtype=np.float32)
        graph = faiss.IndexHNSWSQ(live.shape[1], faiss.ScalarQuantizer.QT_fp16, _LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction, graph.hnsw.efSearch = 60, 64
        graph.train(live)
        graph.add(live)
        self._graph, self._rows, self._free = graph, np.zeros((0, live.shape[1]), dtype=np.float32), []
        self._entries = [self._entries[place] for place in places]
        self._place = {entry.id: node for node, entry in enumerate(self._entries) if entry is not None}


_told = False


def _faiss() -> Any:
    global _told
    try:
        import faiss
    except ImportError:
        if not _told:
            _told = True
            log.warning(
                "faiss is not installed: large caches are searched row by row; run: pip install 'shoal[search]'"
            )
        return None
    return faiss


class SemanticIndex:
    """All partitions. Thread-safe."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._scopes: dict[str, int] = {}  # scope -> partitions it has
        self._lock = RLock()

    def add(self, entry: Entry, vector: FloatArray) -> None:
        """Make the entry findable by its question's unit vector [dim]."""
        with self._lock:
            where = (entry.scope, entry.rank)
            if where not in self._partitions:
                self._partitions[where] = Partition(len(vector))
                self._scopes[entry.scope] = self._scopes.get(entry.scope, 0) + 1
            self._partitions[where].add(entry, vector)

    def remove(self, entry: Entry) -> None:
        with self._lock:
            part = self._partitions.get((entry.scope, entry.rank))
            if part is not None:
                part.remove(entry.id)
                if not len(part):
                    del self._partitions[(entry.scope, entry.rank)]
                    self._scopes[entry.scope] -= 1
                    if not self._scopes[entry.scope]:
                        del self._scopes[entry.scope]

    def search(self, scope: str, rank: int, ranks: int, vector: FloatArray, k: int = 5) -> list[Candidate]:
        """The `k` nearest entries of the scope whose bucket rank is at least `rank`, best first."""
        with self._lock:
            found = [
                c for r in range(rank, ranks) if (p := self._partitions.get((scope, r))) for c in p.search(vector, k)
            ]
        return sorted(found, key=lambda c: -c.cosine)[:k]

    def holds(self, scope: str) -> bool:
        """Whether anything is stored under this scope, at any depth."""
        with self._lock:
            return scope in self._scopes

    def __len__(self) -> int:
        with self._lock:
            return sum(len(p) for p in self._partitions.values())

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(p.bytes for p in self._partitions.values())
