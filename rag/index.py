"""The dense index: FAISS over the vectors of a store, exact while small, HNSW beyond, kept in step by generation.

The store is the truth; the FAISS file and its manifest only spare the time to build the index again, and any doubt
about them (missing, damaged, too new) means that it is built from the store. Knows nothing of texts.
"""

import json
import logging
import os
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import need
from .store import EVERYTHING, Only, Store

HNSW_FROM = 50_000  # chunks; below, exact search over all vectors takes under 10 ms
MANIFEST = "manifest.json"
FORMAT = 1  # of the manifest
_log = logging.getLogger(__name__)


class DenseIndex:
    """Nearest chunks by inner product. Safe to search from many threads while the store grows."""

    def __init__(self, folder: Path, store: Store, dim: int) -> None:
        self._faiss = need("faiss", "search")
        self._folder, self._store, self._dim = folder, store, dim
        self._lock = Lock()
        self._generation = self._saved = -1
        self._build(0)
        self._load()

    def search(self, vector: NDArray[np.float32], k: int, only: Only = EVERYTHING) -> list[tuple[int, float]]:
        """(row number, cosine) of the k nearest chunks to a unit vector [dim], best first."""
        with self._lock:
            self._refresh()
            live = len(self._known) - len(self._dead)
            if not live:
                return []
            selector: Any = None
            if only:
                selector = self._faiss.IDSelectorBatch(self._store.row_numbers(only))
            elif self._dead:
                selector = self._faiss.IDSelectorNot(self._dead_batch)
            scores, rows = self._index.search(vector[None], min(k, live), params=self._parameters(selector))
        return [(int(row), float(score)) for row, score in zip(rows[0], scores[0], strict=True) if row >= 0]

    def save(self, manifest: dict[str, Any]) -> None:
        """Write the FAISS file, then in one step the manifest that names it; older files go. Cheap when current."""
        with self._lock:
            self._refresh()
            if self._generation == self._saved:
                return
            name = f"dense-{self._generation}.faiss"
            partial = self._folder / f".{name}.{os.getpid()}"
            try:
                self._faiss.write_index(self._index, str(partial))
                os.replace(partial, self._folder / name)
                record = {"format": FORMAT, "generation": self._generation, "faiss": name, **manifest}
                draft = self._folder / f".{MANIFEST}.{os.getpid()}"
                draft.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
                os.replace(draft, self._folder / MANIFEST)
            except (OSError, RuntimeError) as error:  # FAISS raises RuntimeError when the disk is full
                partial.unlink(missing_ok=True)
                _log.warning("the FAISS file was not written (%s); the next start builds it again", error)
                return
            self._saved = self._generation
            for old in self._folder.glob("dense-*.faiss"):
                if old.name != name:
                    old.unlink(missing_ok=True)

    def _parameters(self, selector: Any) -> Any:
        if self._hnsw:
            return self._faiss.SearchParametersHNSW(sel=selector, efSearch=128)
        return self._faiss.SearchParameters(sel=selector)

    def _build(self, expected: int) -> None:
        faiss = self._faiss
        self._hnsw = expected >= HNSW_FROM
        inner = (
            faiss.IndexHNSWFlat(self._dim, 32, faiss.METRIC_INNER_PRODUCT)
            if self._hnsw
            else faiss.IndexFlatIP(self._dim)
        )
        self._index = faiss.IndexIDMap2(inner)
        self._known: set[int] = set()
        self._dead: set[int] = set()
        self._last = 0

    def _load(self) -> None:
        try:
            record = json.loads((self._folder / MANIFEST).read_text(encoding="utf-8"))
            if record["format"] != FORMAT or record["generation"] > self._store.generation():
                return
            index = self._faiss.read_index(str(self._folder / Path(record["faiss"]).name))
            numbers = self._faiss.vector_to_array(index.id_map)
            if index.d != self._dim:
                return
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            _log.warning("the FAISS file cannot be used (%s); building it again", type(error).__name__)
            return
        self._index, self._known = index, {int(number) for number in numbers}
        self._hnsw = isinstance(self._faiss.downcast_index(index.index), self._faiss.IndexHNSWFlat)
        self._last = max(self._known, default=0)
        self._saved = record["generation"]

    def _refresh(self) -> None:
        """Take in what other threads or processes committed since the last look. The lock is held."""
        generation = self._store.generation()
        if generation == self._generation:
            return
        current = {int(number) for number in self._store.row_numbers()}
        grown_out = len(current) >= HNSW_FROM and not self._hnsw
        if grown_out or len(self._known - current) > 0.1 * len(self._known):
            self._build(len(current))
        for numbers, vectors in self._store.vectors_after(self._last):
            self._index.add_with_ids(vectors, numbers)
            self._known.update(int(number) for number in numbers)
            self._last = int(numbers[-1])
        self._dead = self._known - current
        self._dead_batch = self._faiss.IDSelectorBatch(np.fromiter(self._dead, np.int64, len(self._dead)))
        self._generation = generation
