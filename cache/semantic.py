"""Look-up by meaning (C4): nearest stored questions by cosine, inside one scope and one depth bucket.

Each `(scope, rank)` is a partition of its own, so no search ever crosses tenants, models, conversations or buckets.
Small partitions are scanned exactly; past `GRAPH_FROM` vectors a FAISS HNSW graph takes over where faiss is
installed. Knows nothing of thresholds or guards: it proposes, `match` decides.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .entry import Entry

log = logging.getLogger(__name__)
FloatArray = NDArray[np.float32]

GRAPH_FROM = 4096
_SPARE = 0.25  # share of dead vectors at which a graph is built anew


class Embed(Protocol):
    """Texts to unit row vectors [n, dim]; `fingerprint` names the embedder."""

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, texts: Sequence[str], /) -> FloatArray: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored entry near the question, with its vector and cosine."""

    entry: Entry
    cosine: float
    vector: FloatArray


class Partition:
    """Vectors of one scope and bucket: rows with holes, and a graph over them once there are many."""

    def __init__(self, dim: int) -> None:
        self._rows = np.zeros((8, dim), dtype=np.float32)
        self._entries: list[Entry | None] = []
        self._place: dict[str, int] = {}
        self._free: list[int] = []
        self._graph: Any = None
        self._labels: list[int] = []  # graph node -> row, -1 where the vector is gone
        self._node: dict[int, int] = {}
        self._dead = 0

    def __len__(self) -> int:
        return len(self._place)

    @property
    def bytes(self) -> int:
        """Bytes of vectors and graph, roughly."""
        return self._rows.nbytes * (1 if self._graph is None else 2)

    def add(self, entry: Entry, vector: FloatArray) -> None:
        self.remove(entry.id)
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
        if self._graph is not None:
            self._link(row)
        elif len(self) >= GRAPH_FROM:
            self._build()

    def remove(self, entry_id: str) -> None:
        row = self._place.pop(entry_id, None)
        if row is None:
            return
        self._entries[row] = None
        self._rows[row] = 0
        self._free.append(row)
        if self._graph is not None:
            self._labels[self._node.pop(row)] = -1
            self._dead += 1
            if self._dead > _SPARE * len(self._labels):
                self._build()

    def search(self, vector: FloatArray, k: int) -> list[Candidate]:
        """The `k` nearest, best first."""
        if not self._place:
            return []
        rows, cosines = self._nearest(vector, k)
        found = [(row, cosine) for row, cosine in zip(rows, cosines, strict=True) if self._entries[row] is not None]
        return [Candidate(self._entries[r], float(c), self._rows[r].copy()) for r, c in found[:k]]  # type: ignore[arg-type]

    def _nearest(self, vector: FloatArray, k: int) -> tuple[list[int], list[float]]:
        if self._graph is not None:
            scores, nodes = self._graph.search(vector[None, :], k + 16)
            pairs = [
                (self._labels[n], float(s))
                for n, s in zip(nodes[0], scores[0], strict=True)
                if n >= 0 and self._labels[n] >= 0
            ]
            return [row for row, _ in pairs], [score for _, score in pairs]
        cosines = self._rows[: len(self._entries)] @ vector
        top = (
            np.argsort(-cosines)[:k] if len(cosines) <= 64 else np.argpartition(-cosines, min(k, len(cosines) - 1))[:k]
        )
        top = top[np.argsort(-cosines[top])]
        return top.tolist(), cosines[top].tolist()

    def _build(self) -> None:
        faiss = _faiss()
        if faiss is None:
            return
        self._graph = faiss.IndexHNSWFlat(self._rows.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
        self._graph.hnsw.efConstruction, self._graph.hnsw.efSearch = 60, 64
        rows = sorted(self._place.values())
        self._graph.add(self._rows[rows])
        self._labels = list(rows)
        self._node = {row: node for node, row in enumerate(rows)}
        self._dead = 0

    def _link(self, row: int) -> None:
        self._node[row] = len(self._labels)
        self._labels.append(row)
        self._graph.add(self._rows[row : row + 1])


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
