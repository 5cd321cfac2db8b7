"""One suite for every tier: memory, Redis, the cold log."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.cache.bucket import name_of, rank_of, serves
from shoal.cache.cold import ColdLog
from shoal.cache.entry import Entry
from shoal.cache.memory import MemoryTier
from shoal.cache.redis_link import RedisLink
from shoal.cache.shared import RedisTier
from shoal.cache.tier import Selector, Tier


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis", "cold"])
def tier(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Iterator[Tier]:
    if request.param == "memory":
        made: Tier = MemoryTier(clock=clock)
    elif request.param == "redis":
        link = RedisLink(request.getfixturevalue("redis_url"), deadline_s=5)
        made = RedisTier(link, namespace=f"test-{token_hex(6)}", clock=clock)
    else:
        made = ColdLog(tmp_path / "cold", clock=clock)
    yield made
    made.close()


def entry(clock: Clock, key: str = "k", *, budget: float = 30, ttl: float = 100, **fields: Any) -> Entry:
    rank = rank_of(budget, 30)
    values = {
        "id": f"{key}.{rank}.{token_hex(4)}", "key": key, "scope": "s", "tenant": "t", "kb": "",
        "text": f"{key}@{budget}",
        "prompt": "q", "budget": float(budget), "depth": float(budget), "rank": rank, "bucket": name_of(rank, 30),
        "created": clock.now, "expires": clock.now + ttl,
    }  # fmt: skip
    return Entry(**{**values, **fields})


def test_what_is_put_is_found(tier: Tier, clock: Clock) -> None:
    stored = entry(clock, text="die Antwort 答案 \ud83d 😀\n", tags=("a", "b"), meta={"n": [1, {"x": None}]}, kb="kb1")
    assert tier.put(stored)
    found = tier.get("t", "k", rank=2)
    assert found is not None
    assert replace(found, tier="l1") == stored


def test_what_is_not_there_is_none(tier: Tier, clock: Clock) -> None:
    tier.put(entry(clock))
    assert tier.get("t", "other", rank=0) is None
    assert tier.get("other tenant", "k", rank=0) is None


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stored=st.floats(0, 30), wanted=st.floats(0, 30))
def test_deeper_serves_shallower_never_the_reverse(tier: Tier, clock: Clock, stored: float, wanted: float) -> None:
    key = token_hex(4)
    assert tier.put(entry(clock, key, budget=stored))
    found = tier.get("t", key, rank=rank_of(wanted, 30))
    assert (found is not None) == serves(rank_of(stored, 30), rank_of(wanted, 30))


def test_a_deeper_answer_takes_the_place_of_shallower_ones(tier: Tier, clock: Clock) -> None:
    tier.put(entry(clock, budget=10))
    tier.put(entry(clock, budget=20))
    tier.put(entry(clock, budget=29))
    found = tier.get("t", "k", rank=0)
    assert found is not None
    assert found.text == "k@29"


def test_a_shallower_answer_does_not_replace_a_deeper_one(tier: Tier, clock: Clock) -> None:
    tier.put(entry(clock, budget=29))
    assert not tier.put(entry(clock, budget=27))
    found = tier.get("t", "k", rank=0)
    assert found is not None
    assert found.text == "k@29"


def test_the_same_depth_again_is_newer_and_wins(tier: Tier, clock: Clock) -> None:
    tier.put(entry(clock, text="old"))
    tier.put(entry(clock, text="new"))
    found = tier.get("t", "k", rank=2)
    assert found is not None
    assert found.text == "new"


def test_time_to_live_is_absolute(tier: Tier, clock: Clock) -> None:
    tier.put(entry(clock, ttl=100))
    for _ in range(3):
        clock.now += 33
        assert tier.get("t", "k", rank=0) is not None  # a hit does not prolong it
    clock.now += 2
    assert tier.get("t", "k", rank=0) is None


def test_an_expired_entry_is_not_stored(tier: Tier, clock: Clock) -> None:
    assert not tier.put(entry(clock, ttl=0))
    assert not tier.put(entry(clock, ttl=-1))


def test_age_is_counted_from_creation(tier: Tier, clock: Clock) -> None:
    tier.put(entry(clock))
    clock.now += 10
    assert tier.get("t", "k", rank=0, max_age_s=5) is None
    assert tier.get("t", "k", rank=0, max_age_s=11) is not None


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        (Selector(tenant="t", key="a"), "bcd"),
        (Selector(tenant="t", tag="x"), "cd"),
        (Selector(tenant="t", kb="kb1"), "ad"),
        (Selector(tenant="t", tag="x", kb="kb1"), "acd"),
        (Selector(tenant="t"), "d"),
        (Selector(tenant="u"), "abc"),
        (Selector(tag="x"), "c"),
        (Selector(), ""),
        (Selector(before=0.0), "abcd"),
    ],
)
def test_drops(tier: Tier, clock: Clock, selector: Selector, left: str) -> None:
    stored = [
        entry(clock, "a", tags=("x",)),
        entry(clock, "b", tags=("x", "y"), kb="kb1"),
        entry(clock, "c", kb="kb1"),
        entry(clock, "d", tenant="u", tags=("x",)),
    ]
    for one in stored:
        tier.put(one)
    clock.now += 1
    assert tier.drop(selector) == 4 - len(left)
    assert "".join(e.key for e in stored if tier.get(e.tenant, e.key, rank=0)) == left


def test_drop_by_id_spares_a_newer_answer(tier: Tier, clock: Clock) -> None:
    old, new = entry(clock, text="old"), entry(clock, text="new")
    tier.put(old)
    assert tier.drop(Selector(tenant="another", entry_id=old.id)) == 0
    assert tier.drop(Selector(tenant="t", entry_id=old.id)) == 1
    clock.now += 1
    tier.put(replace(new, created=clock.now))
    assert tier.drop(Selector(tenant="t", entry_id=old.id)) == 0
    assert tier.get("t", "k", rank=0) is not None


def test_drop_of_an_epoch(tier: Tier, clock: Clock) -> None:
    tier.put(entry(clock, "old"))
    clock.now += 10
    tier.put(entry(clock, "new"))
    assert tier.drop(Selector(tenant="t", before=clock.now - 5)) == 1
    assert tier.get("t", "old", rank=0) is None
    assert tier.get("t", "new", rank=0) is not None


def test_eight_threads(tier: Tier, clock: Clock) -> None:
    errors: list[Exception] = []

    def work(n: int) -> None:
        try:
            for i in range(20):
                tier.put(entry(clock, f"k{i % 5}", budget=27 + n % 3))
                found = tier.get("t", f"k{i % 5}", rank=2)
                assert found is None or found.key == f"k{i % 5}"
                if i % 10 == 9:
                    tier.drop(Selector(tenant="t", key=f"k{n % 5}"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
