"""What the HTTP layer costs and how it holds under load (S1, S2): hits per second, overhead over the bare pipeline,
thirty streams at once over the real model with its queue bounded, and a soak in which nothing grows.

Everything over loopback, server and callers in one process: the callers' own cost is part of every number.
"""

import asyncio
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path
from typing import Any

import httpx

from shoal import CognitiveRouter, DepthCache, GatedLLM, default_embedder
from shoal.router.service.app import create_app
from shoal.router.service.options import ServiceOptions
from shoal.router.service.server import server

OUT = Path(__file__).parent / "out"
SOAK_S = float(os.environ.get("SHOAL_SOAK_S", "30"))
QUESTION = "Name the capital of France, please."


def percentile(values: list[float], share: float) -> float:
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1000, 2)


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "shoal", "messages": [{"role": "user", "content": text}], "max_tokens": 16, **more}


def resources() -> tuple[int, int]:
    """Resident bytes and open file descriptors of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))


async def load(
    url: str, callers: int, count: int, one: Callable[[httpx.AsyncClient], Awaitable[Any]]
) -> dict[str, Any]:
    """`count` requests by `callers` at once; their rate and times."""
    left, times = count, list[float]()
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:

        async def caller() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                began = time.perf_counter()
                await one(http)
                times.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        seconds = time.perf_counter() - began
    return {
        "callers": callers, "requests": count, "per_s": round(count / seconds, 1),
        "p50_ms": percentile(times, 0.5), "p99_ms": percentile(times, 0.99),
    }  # fmt: skip


async def hit(http: httpx.AsyncClient) -> None:
    (await http.post("/v1/chat/completions", json=body(QUESTION))).raise_for_status()


def bare(router: CognitiveRouter, count: int) -> dict[str, Any]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        router.ask(QUESTION, max_tokens=16)
        times.append(time.perf_counter() - began)
    return {"callers": 1, "requests": count, "per_s": round(count / sum(times), 1),
            "p50_ms": percentile(times, 0.5), "p99_ms": percentile(times, 0.99)}  # fmt: skip


async def thirty_streams(url: str, service: Any) -> dict[str, Any]:
    """Thirty callers at once ask for 24 sampled tokens each; who is over the queue's length is told so at once."""
    first, ends, deepest = list[float](), dict[str, int](), 0

    async def one(http: httpx.AsyncClient, index: int) -> None:
        nonlocal deepest
        asked = body(f"Story number {index}.", stream=True, temperature=0.8, seed=index)
        began = time.perf_counter()
        async with http.stream("POST", "/v1/chat/completions", json={**asked, "max_tokens": 24}) as response:
            if response.status_code != 200:
                ends[str(response.status_code)] = ends.get(str(response.status_code), 0) + 1
                return
            last = ""
            async for line in response.aiter_lines():
                if line and not last:
                    first.append(time.perf_counter() - began)
                deepest = max(deepest, service.admission.queued)
                last = line or last
        ends["done" if last == "data: [DONE]" else "broken"] = ends.get("done", 0) + 1

    began = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as http:
        await asyncio.gather(*(one(http, index) for index in range(30)))
    return {"streams": 30, "ends": json.dumps(ends), "seconds": round(time.perf_counter() - began, 1),
            "first_token_p50_ms": percentile(first, 0.5), "first_token_max_ms": percentile(first, 1.0),
            "deepest_queue": deepest, "in_flight_after": service.admission.in_flight}  # fmt: skip


async def soak(url: str) -> dict[str, Any]:
    """Hits, refusals and leavers for SOAK_S seconds; memory and descriptors after the first tenth and at the end."""
    end, count = time.perf_counter() + SOAK_S, 0
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        start = None
        while (now := time.perf_counter()) < end:
            await hit(http)
            await http.post("/v1/chat/completions", json={**body("x"), "temperature": "hot"})
            async with http.stream("POST", "/v1/chat/completions", json=body(QUESTION, stream=True)):
                count += 3  # left before it is read
            if start is None and now > end - 0.9 * SOAK_S:
                start = resources()
    after = resources()
    before = start or after
    return {"seconds": SOAK_S, "requests": count, "rss_growth_mib": round((after[0] - before[0]) / 2**20, 2),
            "descriptors_before": before[1], "descriptors_after": after[1]}  # fmt: skip


def main() -> None:
    embed = default_embedder()
    llm = GatedLLM.load()
    router = CognitiveRouter(llm=llm, embed=embed, cache=DepthCache(embed=embed, total=llm.total))
    options = ServiceOptions(concurrent=8, queue=16, queue_s=120)
    app = create_app(router, options)
    running = server(app, options, host="127.0.0.1", port=0)
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    router.ask(QUESTION, max_tokens=16)
    asyncio.run(load(url, 1, 50, hit))  # warm
    rows = {
        "cache hit, bare pipeline": bare(router, 500),
        "cache hit, over HTTP": asyncio.run(load(url, 1, 500, hit)),
        "cache hit, 16 callers": asyncio.run(load(url, 16, 1000, hit)),
    }
    overhead = statistics.fmean([rows["cache hit, over HTTP"]["p50_ms"] - rows["cache hit, bare pipeline"]["p50_ms"]])
    result = {
        "title": "service",
        "hits": rows,
        "overhead_p50_ms": round(overhead, 2),
        "thirty_streams": asyncio.run(thirty_streams(url, app.state.service)),
        "soak": asyncio.run(soak(url)),
        "command": "python -m benchmarks.service",
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "seed": 0,
        "date": date.today().isoformat(),
    }
    running.should_exit = True
    thread.join()
    OUT.mkdir(exist_ok=True)
    (OUT / "service.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    json.dump(result, sys.stdout, indent=1, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
