from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cache import CacheInputError
from shoal.cache.entry import Entry
from shoal.cache.memory import MemoryTier, size_of
from shoal.cache.tier import Selector


def plain(key: str, text: str = "", rank: int = 2) -> Entry:
    values = {"scope": "s", "tenant": "t", "kb": "", "prompt": "", "bucket": "27+", "created": 0.0, "expires": 1e12}
    return Entry(id=f"{key}.{rank}", key=key, text=text, budget=30.0, depth=30.0, rank=rank, **values)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefghij"), st.integers(0, 2), st.integers(0, 400), st.booleans()), max_size=80
    )
)
def test_bounds_hold_and_the_books_balance(steps: list[tuple[str, int, int, bool]]) -> None:
    gone: list[Entry] = []
    tier = MemoryTier(max_entries=5, max_bytes=5000, on_evict=gone.append)
    put = 0
    for key, rank, size, read in steps:
        if read:
            tier.get("t", key, rank=0)
        else:
            put += tier.put(plain(key, "x" * size, rank))
        assert len(tier) <= 5
        assert tier.bytes <= 5000
        assert tier.bytes == sum(size_of(e) for e in tier.entries())
    assert put == len(tier) + len(gone)


def test_a_value_over_the_whole_bound_is_not_stored() -> None:
    tier = MemoryTier(max_bytes=2000)
    assert not tier.put(plain("a", "x" * 3000))
    assert len(tier) == 0


def test_what_is_used_survives_a_flood() -> None:
    tier = MemoryTier(max_entries=20)
    tier.put(plain("used"))
    for _ in range(3):
        tier.get("t", "used", rank=0)
    for n in range(200):
        tier.put(plain(f"once{n}"))
    assert tier.get("t", "used", rank=0) is not None


def test_a_copy_read_before_a_drop_is_not_stored_after_it(make_entry: Callable[..., Any]) -> None:
    tier = MemoryTier()
    generation = tier.generation
    tier.drop(Selector())
    assert not tier.put(make_entry(), generation=generation)
    assert tier.put(make_entry(), generation=tier.generation)


@pytest.mark.parametrize("bounds", [{"max_entries": 0}, {"max_bytes": 0}])
def test_bad_bounds(bounds: dict[str, int]) -> None:
    with pytest.raises(CacheInputError):
        MemoryTier(**bounds)
