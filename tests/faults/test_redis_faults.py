"""Whatever is wrong with Redis, the caller sees a miss in time, one log line, and nothing leaks (C6)."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal.cache import DepthCache
from shoal.cache.entry import VERSION

BUDGET_S = 0.05
SLACK_S = 0.15  # for a loaded test machine; `benchmarks/cache_faults.py` shows the real figures
ASKED = 30


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def caches() -> Iterator[Callable[..., DepthCache]]:
    made: list[DepthCache] = []

    def make(url: str, **fields: Any) -> DepthCache:
        made.append(DepthCache(url, **fields))
        return made[-1]

    yield make
    for cache in made:
        cache.close()


def ask(cache: DepthCache, about: str = "new question") -> float:
    """`ASKED` look-ups and stores of new questions; the slowest of them in seconds."""
    slowest = 0.0
    for i in range(ASKED):
        began = time.perf_counter()
        assert cache.get(f"{about} {i}", budget=30) is None
        middle = time.perf_counter()
        cache.put(f"{about} {i}", "answer", budget=30, depth=30)
        slowest = max(slowest, middle - began, (time.perf_counter() - middle) / 2)
    return slowest


def outages(caplog: pytest.LogCaptureFixture) -> int:
    return sum("does not answer" in r.message for r in caplog.records if r.levelno >= logging.WARNING)


def test_down_at_start(redis_server: Any, caches: Any, caplog: pytest.LogCaptureFixture) -> None:
    redis_server.kill()
    cache = caches(redis_server.url)
    assert ask(cache) < BUDGET_S + SLACK_S
    assert outages(caplog) == 1
    assert cache.get("new question 3", budget=30).tier == "l1"


def test_killed_and_back(redis_server: Any, caches: Any, caplog: pytest.LogCaptureFixture) -> None:
    cache = caches(redis_server.url)
    cache.put("before", "answer", budget=30, depth=30)
    redis_server.kill()
    assert ask(cache) < BUDGET_S + SLACK_S
    assert outages(caplog) == 1
    assert cache.stats()["redis"] == "open"
    redis_server.restart()
    until(lambda: cache.get("poke", budget=30) is None and cache.stats()["redis"] == "closed")
    other = caches(redis_server.url)
    cache.put("after", "answer", budget=30, depth=30)
    assert other.get("after", budget=30).text == "answer"
    assert any("is back" in r.message for r in caplog.records)


def test_frozen(redis_server: Any, caches: Any, caplog: pytest.LogCaptureFixture) -> None:
    cache = caches(redis_server.url)
    cache.put("before", "answer", budget=30, depth=30)
    redis_server.freeze()
    assert ask(cache) < BUDGET_S + SLACK_S
    assert outages(caplog) == 1
    redis_server.thaw()
    until(lambda: cache.get("poke", budget=30) is None and cache.stats()["redis"] == "closed")


def test_client_pause(redis_server: Any, caches: Any, caplog: pytest.LogCaptureFixture) -> None:
    import redis

    cache = caches(redis_server.url)
    cache.put("before", "answer", budget=30, depth=30)
    with redis.Redis.from_url(redis_server.url) as client:
        client.client_pause(800)
    assert ask(cache) < BUDGET_S + SLACK_S
    assert outages(caplog) == 1
    until(lambda: cache.get("poke", budget=30) is None and cache.stats()["redis"] == "closed")


def test_slow(proxy: Any, caches: Any, caplog: pytest.LogCaptureFixture) -> None:
    proxy.delay_s = 0.2
    cache = caches(proxy.url)
    assert ask(cache) < BUDGET_S + SLACK_S
    assert outages(caplog) == 1
    proxy.delay_s = 0.0
    until(lambda: cache.get("poke", budget=30) is None and cache.stats()["redis"] == "closed")


def test_reset_in_mid_reply(proxy: Any, redis_server: Any, caches: Any) -> None:
    good = caches(redis_server.url)
    good.put("known", "x" * 1000, budget=30, depth=30)
    proxy.cut_after = 100
    cache = caches(proxy.url)
    assert cache.get("known", budget=30) is None
    assert ask(cache) < BUDGET_S + SLACK_S
    proxy.cut_after = -1
    until(lambda: cache.get("known", budget=30) is not None)


def test_wrong_password(redis_server: Any, caches: Any, caplog: pytest.LogCaptureFixture) -> None:
    import redis

    with redis.Redis.from_url(redis_server.url) as client:
        client.config_set("requirepass", "secret")
        wrong = caches(redis_server.url.replace("127", ":not-it@127"))
        assert ask(wrong) < BUDGET_S + SLACK_S
        assert outages(caplog) == 1
        assert not any("not-it" in r.getMessage() for r in caplog.records)
        url = redis_server.url.replace("127", ":secret@127")
        caches(url).put("q", "answer", budget=30, depth=30)
        assert caches(url).get("q", budget=30).text == "answer"
        client.config_set("requirepass", "")


def test_full_memory_stops_writing_not_reading(
    redis_server: Any, caches: Any, caplog: pytest.LogCaptureFixture
) -> None:
    import redis

    cache, reader = caches(redis_server.url), caches(redis_server.url)
    cache.put("before", "answer", budget=30, depth=30)
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        assert ask(cache) < BUDGET_S + SLACK_S
        assert outages(caplog) <= 2  # one line for writing; the reader may tell of its own
        assert cache.stats()["redis"] == "closed"
        assert reader.get("before", budget=30).text == "answer"
        client.config_set("maxmemory", 0)
    until(lambda: cache.put("later", "answer", budget=30, depth=30) and reader.get("later", budget=30) is not None)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"garbage",
        b"b30 shoal%d 00000000 {}" % VERSION,
        b"b30 shoal99 00000000 {}",
        b"\xff\xfe\x00",
        b"b30 ",
        b"{}" * 999,
    ],
)
def test_values_that_are_not_ours(redis_server: Any, caches: Any, value: bytes) -> None:
    import redis

    cache = caches(redis_server.url)
    cache.put("q", "answer", budget=30, depth=30)
    with redis.Redis.from_url(redis_server.url) as client:
        (name,) = client.keys("*:e:*")
        client.set(name, value)
        other = caches(redis_server.url)
        assert other.get("q", budget=30) is None
        assert other.put("q", "anew", budget=30, depth=30) is not None
        assert caches(redis_server.url).get("q", budget=30).text == "anew"
        client.delete(name)
        client.lpush(name, "a list where a string belongs")
        assert caches(redis_server.url).get("q", budget=30) is None


def test_a_retraction_while_down_is_honoured_at_once_and_sent_later(redis_server: Any, caches: Any) -> None:
    mine = caches(redis_server.url)
    stored = mine.put("q", "a bad answer", budget=30, depth=30)
    redis_server.freeze()
    mine.retract(stored.id)
    assert mine.get("q", budget=30) is None
    redis_server.thaw()
    assert mine.get("q", budget=30) is None  # Redis still has it
    other = caches(redis_server.url)
    until(lambda: other.get("q", budget=30) is None)


def test_nothing_leaks(redis_server: Any, caches: Any) -> None:
    cache = caches(redis_server.url)
    cache.put("q", "answer", budget=30, depth=30)
    redis_server.kill()
    before = threading.active_count()
    for n in range(5):
        ask(cache, f"round {n} question")
    assert threading.active_count() <= before + 8
    assert len(cache._flights) == 0
    cache.close()
    until(lambda: not any(t.name.startswith("shoal-") for t in threading.enumerate() if t.is_alive()))


def test_a_server_that_lost_its_data_empties_the_memory_of_those_it_served(redis_server: Any, caches: Any) -> None:
    cache = caches(redis_server.url)
    cache.put("q", "answer", budget=30, depth=30)
    until(cache._events.connected.is_set)
    redis_server.kill()
    redis_server.restart()
    until(lambda: cache.get("q", budget=30) is None)
