"""Every fault of Redis, in turn: requests sent, errors seen by the caller, added latency, lines logged (C6).

python benchmarks/cache_faults.py
"""

import json
import logging
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from shoal.cache import DepthCache
from tests.conftest import RedisServer
from tests.faults.conftest import Proxy

ASKED = 200


class Lines(logging.Handler):
    """Counts lines."""

    n = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.n += 1


def drive(cache: DepthCache, about: str) -> dict[str, float]:
    """`ASKED` new questions looked up and stored; times of the look-ups in ms."""
    times, errors = [], 0
    for i in range(ASKED):
        began = time.perf_counter()
        try:
            assert cache.get(f"{about} {i}", budget=30) is None
        except Exception:
            errors += 1
        times.append((time.perf_counter() - began) * 1000)
        try:
            cache.put(f"{about} {i}", "answer", budget=30, depth=30)
        except Exception:
            errors += 1
    times.sort()
    return {"errors": errors, "p50": times[ASKED // 2], "p99": times[int(ASKED * 0.99)], "max": times[-1]}


def client(server: RedisServer) -> Any:
    return redis.Redis.from_url(server.url)


def corrupt(server: RedisServer, value: bytes) -> None:
    with client(server) as c:
        for name in c.keys("*:e:*"):
            c.set(name, value)


def config(server: RedisServer, **values: Any) -> None:
    with client(server) as c:
        for name, value in values.items():
            c.config_set(name.replace("_", "-"), value)


def cases() -> list[tuple[str, Callable[[RedisServer, Proxy], str]]]:
    """Name, and what does the damage; returns the URL to use."""

    def case(damage: Callable[[RedisServer, Proxy], Any], proxied: bool = False) -> Callable[[RedisServer, Proxy], str]:
        def run(server: RedisServer, proxy: Proxy) -> str:
            damage(server, proxy)
            return proxy.url if proxied else server.url

        return run

    def password(server: RedisServer, proxy: Proxy) -> str:
        config(server, requirepass="secret")
        return server.url.replace("127", ":wrong@127")

    return [
        ("none (healthy)", case(lambda s, p: None)),
        ("down at start", case(lambda s, p: s.kill())),
        ("killed", case(lambda s, p: s.kill())),
        ("process frozen", case(lambda s, p: s.freeze())),
        ("CLIENT PAUSE 5 s", case(lambda s, p: client(s).client_pause(5000))),
        ("slow, 200 ms", case(lambda s, p: setattr(p, "delay_s", 0.2), proxied=True)),
        ("reset in mid-reply", case(lambda s, p: setattr(p, "cut_after", 2), proxied=True)),
        ("wrong password", password),
        ("memory full", case(lambda s, p: config(s, maxmemory=1, maxmemory_policy="noeviction"))),
        ("values corrupted", case(lambda s, p: corrupt(s, b"b30 shoal1 00000000 {}"))),
        ("another version", case(lambda s, p: corrupt(s, b"b30 shoal99 00000000 {}"))),
        ("host does not answer", lambda s, p: "redis://10.255.255.1:6379/0"),
    ]


def main() -> None:
    rows = []
    print(f"{'fault':22} {'requests':>8} {'errors':>7} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'lines':>6}  breaker")
    for name, damage in cases():
        server = RedisServer()
        proxy = Proxy(server.port)
        lines = Lines()
        logging.getLogger("shoal.cache").addHandler(lines)
        late = name in (
            "killed",
            "process frozen",
            "CLIENT PAUSE 5 s",
            "memory full",
            "values corrupted",
            "another version",
        )
        cache = DepthCache(server.url if late else damage(server, proxy))
        if late:
            drive(cache, "before")
            damage(server, proxy)
        if "corrupted" in name or "version" in name:  # ask for what is damaged, with an empty memory
            cache.close()
            cache = DepthCache(server.url)
        found = drive(cache, "before" if "corrupted" in name or "version" in name else "question")
        state = cache.stats()["redis"]
        logging.getLogger("shoal.cache").removeHandler(lines)
        print(
            f"{name:22} {2 * ASKED:8} {found['errors']:7} {found['p50']:8.3f} {found['p99']:8.2f} "
            f"{found['max']:8.2f} {lines.n:6}  {state}"
        )
        rows.append({"fault": name, "requests": 2 * ASKED, **found, "lines": lines.n, "breaker": state})
        cache.close()
        proxy.close()
        server.close()
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    head = {"machine": platform.machine(), "date": time.strftime("%Y-%m-%d")}
    (out / "cache_faults.json").write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    logging.getLogger("shoal.cache").propagate = False
    main()
