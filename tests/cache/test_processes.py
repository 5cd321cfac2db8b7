"""Two processes and one Redis: answers are shared, retractions reach both, one of them generates."""

import subprocess
import sys
import time
from secrets import token_hex
from typing import Any

import pytest

from shoal.cache import DepthCache

OTHER = """
import sys, time
from shoal.cache import DepthCache
cache = DepthCache(sys.argv[1], namespace=sys.argv[2])
cache._events.connected.wait(20)
cache._l2.link._deadline_s = 5
for line in sys.stdin:
    what, *words = line.split()
    if what == "get":
        entry = cache.get(" ".join(words), budget=30)
        print(entry.text if entry else "none", flush=True)
    elif what == "put":
        print(cache.put(words[0], words[1], budget=30, depth=30).id, flush=True)
    elif what == "retract":
        print(cache.retract(words[0]), flush=True)
    elif what == "lead":
        with cache.single_flight("slow question", budget=30) as flight:
            print("leads" if flight.leader else flight.result.text, flush=True)
            if flight.leader:
                time.sleep(0.5)
                cache.put("slow question", "made-once", budget=30, depth=30, fence=flight.fence)
    elif what == "count":
        for n in range(int(words[0])):
            cache.put("counted", "x", budget=30, depth=10 + n % 20, latency_ms=100)
        print("done", flush=True)
"""


class Other:
    def __init__(self, url: str, namespace: str) -> None:
        command = [sys.executable, "-c", OTHER, url, namespace]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        self.send(line)
        return self.read()

    def close(self) -> None:
        self._process.communicate(timeout=20)


@pytest.fixture
def pair(redis_url: str) -> Any:
    namespace = f"test-{token_hex(6)}"
    mine = DepthCache(redis_url, namespace=namespace)
    assert mine._events is not None
    assert mine._l2 is not None
    mine._events.connected.wait(20)
    mine._l2.link._deadline_s = 5
    other = Other(redis_url, namespace)
    yield mine, other
    other.close()
    mine.close()


def eventually_none(cache: DepthCache, prompt: str) -> None:
    end = time.monotonic() + 10
    while cache.get(prompt, budget=30) is not None:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_answers_are_shared_and_retractions_reach_both(pair: tuple[DepthCache, Other]) -> None:
    mine, other = pair
    entry_id = other.ask("put q answer")
    found = mine.get("q", budget=30)
    assert found is not None
    assert found.tier == "l2"
    assert mine.get("q", budget=30).tier == "l1"  # type: ignore[union-attr]
    other.ask(f"retract {entry_id}")
    eventually_none(mine, "q")
    mine.put("r", "mine", budget=30, depth=30)
    assert other.ask("get r") == "mine"
    mine.invalidate(tenant="default")
    time.sleep(0.3)
    assert other.ask("get r") == "none"


def test_one_of_two_processes_generates(pair: tuple[DepthCache, Other]) -> None:
    mine, other = pair
    assert other.ask("get warm") == "none"
    other.send("lead")
    assert other.read() == "leads"
    with mine.single_flight("slow question", budget=30, wait_s=20) as flight:
        assert not flight.leader
        assert flight.result.text == "made-once"


def test_a_leader_that_was_overtaken_does_not_store(redis_url: str) -> None:
    namespace = f"test-{token_hex(6)}"
    one, other = (DepthCache(redis_url, namespace=namespace) for _ in range(2))
    for cache in (one, other):
        cache._l2.link._deadline_s = 5  # type: ignore[union-attr]
    with one.single_flight("q", budget=30, lease_s=0.05) as slow:
        time.sleep(0.1)
        with other.single_flight("q", budget=30) as fast:
            assert fast.leader
            assert fast.fence > slow.fence
            other.put("q", "fresh", budget=30, depth=30, fence=fast.fence)
        assert one.put("q", "late", budget=30, depth=30, fence=slow.fence) is None
    with DepthCache(redis_url, namespace=namespace) as third:
        third._l2.link._deadline_s = 5  # type: ignore[union-attr]
        assert third.get("q", budget=30).text == "fresh"  # type: ignore[union-attr]
    one.close()
    other.close()


def test_counts_from_two_processes_add_up(pair: tuple[DepthCache, Other]) -> None:
    mine, other = pair
    other.ask("get warm")
    other.send("count 100")
    for n in range(100):
        mine.put("counted", "x", budget=30, depth=5 + n % 20, latency_ms=300)
    assert other.read() == "done"
    stats = mine.depth_stats("counted")
    assert stats is not None
    assert (stats["count"], stats["min_depth"], stats["max_depth"]) == (200, 5, 29)
    assert stats["avg_latency"] == pytest.approx(200, rel=0.001)
    assert [row for _, row in mine.depth_table()] == [stats]
