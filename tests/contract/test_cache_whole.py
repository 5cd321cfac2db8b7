"""One suite for `DepthCache` however it is put together, sync and async."""

import asyncio
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import pytest

from shoal.cache import CacheInputError, DepthCache, key_of


class Letters:
    """Bags of letter pairs as unit vectors."""

    fingerprint = "letters:1"

    def __call__(self, texts: Sequence[str]) -> Any:
        rows = np.zeros((len(texts), 256), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for pair in pairwise(re.sub(r"\W+", " ", f" {text.lower()} ")):
                row[zlib.crc32("".join(pair).encode("utf-8", "replace")) % 256] += 1
            row /= np.linalg.norm(row) or 1.0
        return rows


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Make = Callable[..., DepthCache]


@pytest.fixture(params=["memory", "redis", "cold", "all"])
def make(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Iterator[Make]:
    made: list[DepthCache] = []
    parts: dict[str, Any] = {}
    if request.param in ("redis", "all"):
        parts = {"redis_url": request.getfixturevalue("redis_url"), "namespace": f"test-{token_hex(6)}"}
    if request.param in ("cold", "all"):
        parts["cold_path"] = tmp_path / "cold"

    def build(**fields: Any) -> DepthCache:
        cache = DepthCache(**{"embed": Letters(), "threshold": 0.9, "clock": clock, **parts, **fields})
        if cache._l2 is not None:
            cache._l2.link._deadline_s = 5.0  # this suite asks what is right, not what is fast
        made.append(cache)
        return cache

    yield build
    for cache in made:
        cache.close()


@pytest.fixture
def cache(make: Make) -> DepthCache:
    return make()


Q = "How do I reset my password?"


def put(cache: DepthCache, prompt: Any = Q, text: str = "Click here.", **fields: Any) -> Any:
    return cache.put(prompt, text, **{"budget": 30, "depth": 28.5, **fields})


def test_exact(cache: DepthCache) -> None:
    stored = put(cache, tags=["help"], meta={"a": 1}, latency_ms=12)
    found = cache.get(Q, budget=20)
    assert found is not None
    assert (found.id, found.text, found.bucket, found.depth, found.score) == (
        stored.id,
        "Click here.",
        "27+",
        28.5,
        1.0,
    )
    assert found.tier == "l1"
    assert found.tags == ("help",)


def test_by_meaning(cache: DepthCache) -> None:
    stored = put(cache)
    found = cache.get("how do i reset my passwords", budget=30)
    assert found is not None
    assert (found.tier, found.id) == ("semantic", stored.id)
    assert 0.9 <= found.score < 1.0
    assert cache.get("how do i reset my passwords", budget=30, semantic=False) is None
    assert cache.get("When does the library open on Sundays?", budget=30) is None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("turn on the dark mode please", "turn off the dark mode please"),
        ("is it safe within 3 hours of the meal", "is it safe within 5 hours of the meal"),
        ("can guests park in the courtyard", "can guests not park in the courtyard"),
        ("打开手机的深色模式", "关闭手机的深色模式"),
        ("护照办理需要3天吗", "护照办理需要5天吗"),
    ],
)
def test_the_guards_stand_before_every_semantic_hit(make: Make, a: str, b: str) -> None:
    cache = make(threshold=0)
    put(cache, a)
    assert cache.get(b, budget=30) is None
    assert cache.get(a, budget=30) is not None


def test_a_threshold_of_zero_is_a_threshold(make: Make) -> None:
    cache = make(threshold=0)
    put(cache, "where is the station")
    assert cache.get("who is at the station", budget=30) is None  # the guards: who is not where
    assert cache.get("station location", budget=30) is not None


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan"), True, "0.9"])
def test_bad_thresholds(threshold: Any) -> None:
    with pytest.raises(CacheInputError, match="threshold"):
        DepthCache(threshold=threshold)


def test_tenants_never_meet(cache: DepthCache) -> None:
    put(cache, tenant="a")
    assert cache.get(Q, budget=30, tenant="b") is None
    assert cache.get("how do i reset my passwords", budget=30, tenant="b") is None
    assert cache.get("how do i reset my passwords", budget=30, tenant="a") is not None


@pytest.mark.parametrize("field", ["model", "kb"])
def test_fingerprints_part_answers(cache: DepthCache, field: str) -> None:
    put(cache, **{field: "one"})
    assert cache.get(Q, budget=30, **{field: "two"}) is None
    assert cache.get("how do i reset my passwords", budget=30, **{field: "two"}) is None
    assert cache.get("how do i reset my passwords", budget=30, **{field: "one"}) is not None


def test_depth_is_one_way_for_semantic_hits_too(cache: DepthCache) -> None:
    put(cache, budget=20)
    assert cache.get("how do i reset my passwords", budget=30) is None
    assert cache.get("how do i reset my passwords", budget=10) is not None


def test_follow_ups_meet_only_after_the_same_turns(cache: DepthCache) -> None:
    def chat(name: str, last: str) -> list[dict[str, str]]:
        turns = [("user", f"who is {name}"), ("assistant", "a king"), ("user", last)]
        return [{"role": role, "content": content} for role, content in turns]

    put(cache, chat("Louis", "how old is he"), "66")
    put(cache, chat("Louis", "how many children did the king have"), "6")
    assert cache.get(chat("Henry", "how old is he"), budget=30) is None
    assert cache.get("how old is he", budget=30) is None
    assert cache.get(chat("Louis", "how old is he"), budget=30) is not None
    assert cache.get(chat("Henry", "how many children did that king have"), budget=30) is None
    assert cache.get(chat("Louis", "how many children did the king have?"), budget=30) is not None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"finish_reason": "length"}, "refused: finish_reason length"),
        ({"finish_reason": "cancelled"}, "refused: finish_reason cancelled"),
        ({"finish_reason": None}, "refused: finish_reason None"),
        ({"finish_reason": "content_filter"}, "refused: finish_reason content_filter"),
        ({"text": "  \n"}, "refused: empty"),
        ({"ttl_s": 0}, "refused: ttl 0"),
        ({"text": "x" * (2**20 + 1)}, "refused: too large"),
        ({"request": {"temperature": 0.7}}, "refused: sampled"),
    ],
)
def test_what_is_never_stored(cache: DepthCache, fields: dict[str, Any], reason: str) -> None:
    assert cache.put(Q, **{"text": "half an ans", "budget": 30, "depth": 30, **fields}) is None
    assert cache.get(Q, budget=10, request=fields.get("request")) is None
    assert cache.stats()["counts"][reason] == 1


def test_sampled_answers_need_a_seed_or_a_word(cache: DepthCache) -> None:
    for request, fields in [({"temperature": 0.7, "seed": 1}, {}), ({"temperature": 0.8}, {"sampled": True})]:
        assert put(cache, request=request, **fields) is not None
        assert cache.get(Q, budget=30, request=request) is not None
    assert cache.get(Q, budget=30) is None


@pytest.mark.parametrize("ttl", [-1, float("nan"), float("inf"), True, "10"])
def test_bad_times_to_live(cache: DepthCache, ttl: Any) -> None:
    with pytest.raises(CacheInputError, match="ttl_s"):
        put(cache, ttl_s=ttl)


@pytest.mark.parametrize("budget", [-1, 31, float("nan"), True])
def test_bad_budgets(cache: DepthCache, budget: Any) -> None:
    with pytest.raises(CacheInputError, match="30"):
        put(cache, budget=budget)
    with pytest.raises(CacheInputError, match="30"):
        cache.get(Q, budget=budget)


def test_hits_do_not_prolong_life(cache: DepthCache, clock: Clock) -> None:
    put(cache, ttl_s=10)
    clock.now += 9
    assert cache.get(Q, budget=30) is not None
    assert cache.get("how do i reset my passwords", budget=30) is not None
    clock.now += 2
    assert cache.get(Q, budget=30) is None
    assert cache.get("how do i reset my passwords", budget=30) is None


def test_max_age(cache: DepthCache, clock: Clock) -> None:
    put(cache)
    clock.now += 10
    assert cache.get(Q, budget=30, max_age_s=5) is None
    assert cache.get("how do i reset my passwords", budget=30, max_age_s=5) is None
    assert cache.get(Q, budget=30, max_age_s=15) is not None
    with pytest.raises(CacheInputError, match="max_age_s"):
        cache.get(Q, budget=30, max_age_s=-1)


def test_retraction(cache: DepthCache, make: Make, clock: Clock) -> None:
    stored = put(cache)
    clock.now += 1
    assert cache.retract(stored.id, tenant="other") == 0
    assert cache.retract(stored.id) >= 1
    assert cache.get(Q, budget=0) is None
    assert cache.get("how do i reset my passwords", budget=0) is None
    again = make()
    assert again.get(Q, budget=0) is None
    if again.cold() is not None:
        assert again.rehydrate() == 0


@pytest.mark.parametrize(
    ("selector", "gone"),
    [
        ({"tag": "x"}, True),
        ({"tag": "y"}, False),
        ({"kb": "k1"}, True),
        ({"tenant": "default"}, True),
        ({"tenant": "z"}, False),
        ({}, True),
    ],
)
def test_invalidation(cache: DepthCache, clock: Clock, selector: dict[str, str], gone: bool) -> None:
    put(cache, tags=["x"], kb="k1")
    clock.now += 1
    cache.invalidate(**selector)
    assert (cache.get(Q, budget=30, kb="k1") is None) == gone
    assert (cache.get("how do i reset my passwords", budget=30, kb="k1") is None) == gone


def test_invalidation_by_key(cache: DepthCache, clock: Clock) -> None:
    put(cache)
    clock.now += 1
    cache.invalidate(tenant="default", key=key_of(Q).hash)
    assert cache.get(Q, budget=30) is None


def test_surrogates_go_through(cache: DepthCache) -> None:
    put(cache, "odd \ud83d key", "odd \udc00 text")
    found = cache.get("odd \ud83d key", budget=30)
    assert found is not None
    assert found.text == "odd \udc00 text"
    assert cache.get("odd \ud83e key", budget=30, semantic=False) is None


def test_questions_that_keep_coming(cache: DepthCache) -> None:
    put(cache)
    for _ in range(3):
        cache.get("how do i reset my passwords", budget=30)
    cache.get(Q, budget=30)
    cache.get("something else altogether", budget=30)
    assert cache.frequent(at_least=4) == [("default", Q, 4)]


def test_one_generation_for_127_requests(cache: DepthCache) -> None:
    made = []

    def ask() -> None:
        with cache.single_flight(Q, budget=30) as flight:
            if flight.leader:
                made.append(1)
                time.sleep(0.1)
                flight.share(put(cache, fence=flight.fence).text)
                answers.append("Click here.")
            else:
                answers.append(flight.result if isinstance(flight.result, str) else flight.result.text)

    answers: list[str] = []
    threads = [threading.Thread(target=ask) for _ in range(127)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert answers == ["Click here."] * 127
    assert cache.stats()["flights"] == 0


def test_a_crowd_is_no_outage(cache: DepthCache) -> None:
    together = threading.Barrier(100)

    def ask(n: int) -> None:
        together.wait()
        cache.get(f"question {n}", budget=30)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.stats()["redis_outages"] == 0


@pytest.mark.parametrize("entry_id", ["", ".", "x.²y", "k.².z", "k.٣.z", "k.-1.z", "\ud800.1.z"])
def test_an_entry_that_never_was_is_retracted_from_nowhere(cache: DepthCache, entry_id: str) -> None:
    assert cache.retract(entry_id) == 0


def test_a_very_long_life(cache: DepthCache, make: Make) -> None:
    put(cache, ttl_s=1e300)
    assert cache.get(Q, budget=30) is not None
    assert cache.stats()["redis"] in (None, "closed")
    if cache._l2 is not None:
        other = make().get(Q, budget=30)
        assert other is not None
        assert other.tier == "l2"


def test_a_leader_that_fails_lets_the_next_one_lead(cache: DepthCache) -> None:
    def fail() -> None:
        with cache.single_flight(Q, budget=30) as flight:
            assert flight.leader
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with cache.single_flight(Q, budget=30, wait_s=5) as flight:
        assert flight.leader
    assert cache.stats()["flights"] == 0


async def test_async(cache: DepthCache, clock: Clock) -> None:
    stored = await cache.aput(Q, "Click here.", budget=30, depth=30)
    assert stored is not None
    found = await cache.aget(Q, budget=10)
    assert found is not None
    clock.now += 1
    await cache.aretract(stored.id)
    assert await cache.aget(Q, budget=10) is None
    await cache.aput(Q, "Click here.", budget=30, depth=30, tags=["x"])
    clock.now += 1
    assert await cache.ainvalidate(tag="x") >= 1


async def test_eight_tasks_one_generation(cache: DepthCache) -> None:
    made = []

    async def ask() -> str:
        async with cache.asingle_flight(Q, budget=30) as flight:
            if flight.leader:
                made.append(1)
                await asyncio.sleep(0.05)
                flight.share("shared, though it may not be stored")
                return "shared, though it may not be stored"
            return str(flight.result)

    assert await asyncio.gather(*(ask() for _ in range(8))) == ["shared, though it may not be stored"] * 8
    assert len(made) == 1


async def test_a_cancelled_leader_frees_the_flight(cache: DepthCache) -> None:
    entered = asyncio.Event()

    async def lead() -> None:
        async with cache.asingle_flight(Q, budget=30):
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(lead())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cache.stats()["flights"] == 0


def test_eight_threads_on_one_cache(cache: DepthCache) -> None:
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for i in range(25):
                prompt = f"question about subject {chr(97 + (n + i) % 6) * 5}"
                put(cache, prompt, f"answer {prompt}")
                found = cache.get(prompt, budget=30)
                assert found is None or found.text == f"answer {prompt}"
                if i % 8 == 7:
                    cache.invalidate(tenant="default", tag="nothing")
                    if found is not None:
                        cache.retract(found.id)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    stats = cache.stats()
    assert stats["semantic_entries"] == stats["entries"]
