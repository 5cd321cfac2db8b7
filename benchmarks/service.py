"""What the HTTP layer costs and how it holds under load (S1, S2): hits per second, what HTTP adds to the bare pipeline,
and thirty streams at once over the gated model with its queue bounded.

`shoal serve` in a process of its own, callers in this one, everything over loopback; the bare pipeline is the same
router in this process, in turns with the service. `[PART ...]` runs some parts only. About three minutes.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from benchmarks._router import table
from benchmarks._service import FAQ, Served, ask, percentile, save
from shoal.router.decision import CacheControl
from shoal.router.settings import load_settings
from shoal.router.wiring import build_router

CAPITAL = "Name the capital of France, please."  # has an answer that ends by itself, so that it is cached
TURNS = int(os.environ.get("SHOAL_TURNS", "10"))
EACH = 50  # requests of one turn
CALLERS = 16
Row = dict[str, Any]


class Caller:
    """One connection that is kept: a request's whole answer, with as little work as it can be had."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Caller":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def post(self, body: dict[str, Any]) -> float:
        """Seconds to the whole answer, which must be a 200."""
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n"
        began = time.perf_counter()
        self._writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        assert b" 200 " in lines[0], lines[0]
        size = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        await self._reader.readexactly(size)
        return time.perf_counter() - began


async def times(port: int, body: dict[str, Any], count: int) -> list[float]:
    async with Caller(port) as caller:
        return [await caller.post(body) for _ in range(count)]


async def crowd(port: int, body: dict[str, Any], each: int) -> tuple[list[float], float]:
    """`CALLERS` at once; all their times, and the seconds it took."""
    began = time.perf_counter()
    found = await asyncio.gather(*(times(port, body, each) for _ in range(CALLERS)))
    return [one for many in found for one in many], time.perf_counter() - began


def bare(router: Any, question: str, count: int, **more: Any) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        router.ask(question, max_tokens=16, **more)
        found.append(time.perf_counter() - began)
    return found


def row(what: str, how: str, seconds: list[float], whole: float | None = None) -> Row:
    per_s = round(len(seconds) / (whole or sum(seconds)), 1)
    return {"answer": what, "": how, "requests": len(seconds), "per s": per_s, "p50 ms": percentile(seconds, 0.5),
            "p99 ms": percentile(seconds, 0.99)}  # fmt: skip


def hits(served: Served) -> list[Row]:
    """FAQ, cache and model answers: bare and over HTTP in turns, then sixteen callers at once."""
    home = served.home / "bare"
    home.mkdir()
    for name in ("models", "native"):
        (home / name).symlink_to(served.home / name)
    router = build_router(load_settings(home=home, faq=served.home / "faq", threads=1, cold_log=False))
    rivers, none = "Tell me about rivers.", CacheControl(read=False, write=False)
    kinds: dict[str, tuple[int, dict[str, Any], Callable[[int], list[float]]]] = {
        "FAQ": (EACH, ask(FAQ), lambda n: bare(router, FAQ, n)),
        "cache": (EACH, ask(CAPITAL), lambda n: bare(router, CAPITAL, n)),
        "model": (3, ask(rivers, cache=False), lambda n: bare(router, rivers, n, cache=none)),
    }
    rows = []
    for what, (each, body, alone) in kinds.items():
        asyncio.run(times(served.port, body, 3)), alone(3)
        inside, over, ratios, cpu = list[float](), list[float](), list[float](), [0.0, 0.0]
        for _ in range(TURNS):
            before = time.process_time()
            one = alone(each)
            cpu[0] += time.process_time() - before
            before = served.cpu_s
            other = asyncio.run(times(served.port, body, each))
            cpu[1] += served.cpu_s - before
            ratios.append(statistics.median(other) - statistics.median(one))
            inside, over = inside + one, over + other
        rows += [row(what, "bare pipeline", inside), row(what, "over HTTP", over)]
        for each_row, seconds in zip(rows[-2:], cpu, strict=True):
            each_row["CPU ms each"] = round(1000 * seconds / len(inside), 2)
        rows[-1]["HTTP adds, p50 ms"] = round(statistics.median(ratios) * 1000, 2)
        rows[-1]["HTTP adds, p99 ms"] = round(percentile(over, 0.99) - percentile(inside, 0.99), 2)
        if what != "model":
            many, whole = asyncio.run(crowd(served.port, body, each * TURNS // 4))
            rows.append(row(what, f"over HTTP, {CALLERS} callers", many, whole))
    router.close()
    return rows


async def thirty_streams(served: Served) -> list[Row]:
    """Thirty callers at once ask for 24 sampled tokens each; who is over the queue's length is told so at once."""
    first, refused, gaps, ends, deepest = list[float](), list[float](), list[float](), Counter[str](), 0

    async def one(http: httpx.AsyncClient, index: int) -> None:
        asked = ask(f"Story number {index}.", stream=True, temperature=0.8, seed=index, cache=False)
        began = at = time.perf_counter()
        async with http.stream("POST", "/v1/chat/completions", json={**asked, "max_tokens": 24}) as response:
            if response.status_code != 200:
                ends[f"{response.status_code}, Retry-After {response.headers['retry-after']}"] += 1
                refused.append(time.perf_counter() - began)
                return
            last, seen = "", 0
            async for line in response.aiter_lines():
                if line:
                    now = time.perf_counter()
                    (gaps if seen else first).append(now - (at if seen else began))
                    last, at, seen = line, now, seen + 1
        ends["done" if last == "data: [DONE]" else "BROKEN"] += 1

    async def watch(http: httpx.AsyncClient) -> None:
        nonlocal deepest
        while True:
            page = (await http.get("/metrics")).text
            found = next(line for line in page.splitlines() if line.startswith("shoal_queued "))
            deepest = max(deepest, int(float(found.split()[1])))
            await asyncio.sleep(0.1)

    began = time.perf_counter()
    async with httpx.AsyncClient(base_url=served.url, timeout=300, trust_env=False) as http:
        watcher = asyncio.create_task(watch(http))
        await asyncio.gather(*(one(http, index) for index in range(30)))
        watcher.cancel()
    return [
        {
            "streams": 30, "worked on at once": 8, "queue": 16, "ends": dict(ends), "deepest queue": deepest,
            "first token p50 ms": percentile(first, 0.5), "first token max ms": percentile(first, 1.0),
            "between chunks p50 ms": percentile(gaps, 0.5), "between chunks p99 ms": percentile(gaps, 0.99),
            "refused within ms": percentile(refused, 1.0), "seconds": round(time.perf_counter() - began, 1),
            "in flight after": served.quiet(),
        }
    ]  # fmt: skip


NOTE = (
    "`shoal serve` in a process of its own, the default model on one thread; callers in another process on the same "
    "two cores, so their cost is part of every number. What HTTP adds: over the same router asked in Python, in turns; "
    "the median over turns of the difference of medians, and the difference of the 99th percentiles. CPU: of the "
    "process that answers, without the callers."
)


def main() -> None:
    parts: dict[str, Callable[[Served], list[Row]]] = {
        "hits": hits, "thirty streams": lambda served: asyncio.run(thirty_streams(served)),
    }  # fmt: skip
    with Served(options={"concurrent": 8, "queue": 16, "queue_s": 120}, threads="1") as served:
        for part in [name.replace("_", " ") for name in sys.argv[1:]] or parts:
            rows = parts[part](served)
            print(
                table([{**dict.fromkeys(rows[1] if len(rows) > 1 else rows[0], ""), **each} for each in rows]),
                flush=True,
            )
            save("service", "The service under load", NOTE, part, rows)


if __name__ == "__main__":
    main()
