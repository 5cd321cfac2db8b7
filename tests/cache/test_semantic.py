import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.cache import DepthCache, semantic
from shoal.cache.semantic import Partition, SemanticIndex

Make = Callable[..., Any]


def unit(rng: np.random.Generator, n: int, dim: int = 32) -> Any:
    rows = rng.normal(size=(n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("graph_from", [10**9, 50])
def test_the_nearest_are_found_while_entries_come_and_go(monkeypatch: Any, make_entry: Make, graph_from: int) -> None:
    monkeypatch.setattr(semantic, "GRAPH_FROM", graph_from)
    rng = np.random.default_rng(0)
    part, vectors = Partition(32), unit(rng, 300)
    live: dict[str, Any] = {}
    for i, vector in enumerate(vectors):
        entry = make_entry(f"k{i}", id=str(i))
        part.add(entry, vector)
        live[str(i)] = vector
        if i % 3 == 2:
            gone = rng.choice(sorted(live))
            part.remove(gone)
            del live[gone]
    assert len(part) == len(live)
    found_at_first = 0
    for key, vector in live.items():
        best = part.search(vector, 3)
        assert all(c.entry.id in live for c in best)
        assert [c.cosine for c in best] == sorted((c.cosine for c in best), reverse=True)
        found_at_first += best[0].entry.id == key
    assert found_at_first >= 0.98 * len(live)


def test_an_entry_added_again_is_there_once(make_entry: Make) -> None:
    part, vector = Partition(32), unit(np.random.default_rng(0), 1)[0]
    entry = make_entry()
    part.add(entry, vector)
    part.add(entry, vector)
    assert len(part.search(vector, 5)) == 1


def test_scopes_and_buckets_are_partitions(make_entry: Make) -> None:
    index, vector = SemanticIndex(), unit(np.random.default_rng(0), 1)[0]
    for scope, budget in (("a", 30), ("a", 10), ("b", 30)):
        index.add(make_entry(f"{scope}{budget}", scope=scope, budget=budget), vector)
    assert [c.entry.key for c in index.search("a", 1, 3, vector)] == ["a30"]
    assert sorted(c.entry.key for c in index.search("a", 0, 3, vector)) == ["a10", "a30"]
    assert index.search("c", 0, 3, vector) == []
    assert index.holds("a")
    assert not index.holds("c")


def test_it_works_without_faiss_and_says_so_once(monkeypatch: Any, make_entry: Make, caplog: Any) -> None:
    monkeypatch.setattr(semantic, "GRAPH_FROM", 4)
    monkeypatch.setattr(semantic, "_told", False)
    monkeypatch.setitem(sys.modules, "faiss", None)
    part, vectors = Partition(32), unit(np.random.default_rng(0), 20)
    for i, vector in enumerate(vectors):
        part.add(make_entry(f"k{i}"), vector)
    assert part.search(vectors[7], 1)[0].entry.key == "k7"
    assert sum("shoal[search]" in r.message for r in caplog.records) == 1


def test_redis_is_asked_for_by_its_extra(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ImportError, match=r"shoal\[redis\]"):
        DepthCache("redis://localhost:1")
    DepthCache().close()
