import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cache.bucket import bucket_of, limits, name_of, rank_of, serves, upgrades
from shoal.cache.errors import CacheInputError

totals = st.integers(1, 200)


def test_reference_edges_and_their_scaling() -> None:
    assert [bucket_of(b, 40) for b in (0, 20, 20.5, 21, 35, 36, 40)] == [
        "0-20",
        "0-20",
        "21-35",
        "21-35",
        "21-35",
        "36+",
        "36+",
    ]
    assert [bucket_of(b, 30) for b in (15, 16, 26, 27, 30)] == ["0-15", "16-26", "16-26", "27+", "27+"]
    assert bucket_of(3, 10, edges=(0.2,)) == "3+"


@given(totals, st.floats(0, 1), st.floats(0, 1))
def test_a_deeper_budget_never_has_a_shallower_bucket(total: int, x: float, y: float) -> None:
    low, high = sorted((x * total, y * total))
    assert rank_of(low, total) <= rank_of(high, total)
    assert serves(rank_of(high, total), rank_of(low, total))


@given(totals)
def test_every_bucket_has_its_own_name(total: int) -> None:
    names = [name_of(rank, total) for rank in range(len(limits(total)) + 1)]
    assert len(set(names)) == len(names)
    assert all(bucket_of(b, total) in names for b in range(total + 1))


@given(st.integers(0, 2), st.integers(0, 2))
def test_reuse_is_one_way(stored: int, wanted: int) -> None:
    assert serves(stored, wanted) or serves(wanted, stored)
    assert (serves(stored, wanted) and serves(wanted, stored)) == (stored == wanted)


@given(st.tuples(st.integers(0, 2), st.floats(0, 30)), st.tuples(st.integers(0, 2), st.floats(0, 30)))
def test_upgrades_never_lose_depth(new: tuple[int, float], old: tuple[int, float]) -> None:
    assert upgrades(*new, *old) == (new >= old)
    assert upgrades(*new, *old) or upgrades(*old, *new)


@pytest.mark.parametrize("budget", [-1, 31, math.nan, math.inf, True, "20", None])
def test_bad_budgets_name_the_range(budget: object) -> None:
    with pytest.raises(CacheInputError, match="30"):
        bucket_of(budget, 30)  # type: ignore[arg-type]


@pytest.mark.parametrize("edges", [(), (0.5, 0.2), (0,), (1,), (0.5, 0.5)])
def test_bad_edges(edges: tuple[float, ...]) -> None:
    with pytest.raises(CacheInputError):
        limits(30, edges)
