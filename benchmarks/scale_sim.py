"""Queueing of shallow and deep requests as a discrete-event simulation (simpy), checked against a real `shoal serve`.

    python -m benchmarks.scale_sim [measure] [simulate]

`measure` (about five minutes on a quiet machine): how long either kind takes alone, and how much more a model's process
gets done with 2, 4 and 8 requests at once, from callers who ask again as soon as they are answered; then the times of
requests that come at random at three loads, half of them shallow. `simulate`: the same arrivals through a model of the
engine, which shares its speed among what is under way; the error of its mean times; and what a pool of their own does
for shallow requests. Nothing of the simulation is fitted to the points it is checked against. Needs `simpy`.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from benchmarks._router import OUT, SEED, table, write
from benchmarks._service import Served, percentile
from benchmarks.service import Caller

NAME, TITLE = "scale_sim", "Queueing, simulated and measured"
KINDS = {"shallow": {"max_depth": 16, "max_tokens": 12}, "deep": {"max_depth": 30, "max_tokens": 48}}
AT_ONCE = (1, 2, 4, 8)
CLOSED_S = 15.0  # of each number of callers
LOADS = (0.3, 0.5, 0.7)  # of what the process gets done at most
POINT_S = 45.0  # of arrivals at each load
SIMULATED = 4000  # requests of a simulated row
PROCESSES = 5  # of the model, for the comparison of pools
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "queueing.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request of a kind, `at` seconds from the start."""

    at: float
    kind: str


def arrivals(rate: float, *, seconds: float = float("inf"), count: int = 10**9, seed: int = SEED) -> list[Arrival]:
    """At random, `rate` a second in the mean, half of them shallow."""
    draw, at, found = random.Random(seed), 0.0, list[Arrival]()
    while len(found) < count and (at := at + draw.expovariate(rate)) < seconds:
        found.append(Arrival(at=at, kind=draw.choice(list(KINDS))))
    return found


# measured


def body(kind: str, number: int) -> dict[str, Any]:
    text = f"Write a long story about ship number {number} and the storm it met."
    return {"model": "shoal", "messages": [{"role": "user", "content": text}], "cache": False, "seed": number,
            "temperature": 1.0, **KINDS[kind]}  # fmt: skip


async def closed(port: int, callers: int, seconds: float) -> dict[str, Any]:
    """`callers` that ask again once answered, the kinds in turns: seconds of each request, requests a second."""
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    numbers, began = iter(range(callers * 100_000, (callers + 1) * 100_000)), time.perf_counter()

    async def one() -> None:
        async with Caller(port) as caller:
            while time.perf_counter() - began < seconds:
                number = next(numbers)
                kind = list(KINDS)[number % 2]
                took[kind].append(await caller.post(body(kind, number)))

    await asyncio.gather(*(one() for _ in range(callers)))
    return {"took": took, "a second": sum(map(len, took.values())) / (time.perf_counter() - began)}


async def opened(port: int, coming: Sequence[Arrival]) -> dict[str, list[float]]:
    """Seconds of each request, sent when it is to come, whatever is still under way."""
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    began = time.perf_counter()

    async def one(number: int, arrival: Arrival) -> None:
        await asyncio.sleep(began + arrival.at - time.perf_counter())
        async with Caller(port) as caller:
            took[arrival.kind].append(await caller.post(body(arrival.kind, number)))

    await asyncio.gather(*(one(10**7 + number, arrival) for number, arrival in enumerate(coming)))
    return took


def measure() -> dict[str, Any]:
    """What the simulation is given, and what it is checked against."""
    with Served(options={"concurrent": AT_ONCE[-1], "queue": 1000, "queue_s": 500.0}) as served:
        asyncio.run(closed(served.port, 1, 3.0))  # warm
        found = {callers: asyncio.run(closed(served.port, callers, CLOSED_S)) for callers in AT_ONCE}
        alone = {kind: statistics.fmean(found[1]["took"][kind]) for kind in KINDS}
        given = {"alone": alone, "a second": {callers: one["a second"] for callers, one in found.items()}}
        print(json.dumps(given), flush=True)
        points = []
        for load in LOADS:
            rate = load * given["a second"][AT_ONCE[-1]]
            took = asyncio.run(opened(served.port, arrivals(rate, seconds=POINT_S)))
            points.append({"load": load, "rate": rate, "took": took})
            print(load, {kind: round(statistics.fmean(times), 3) for kind, times in took.items()}, flush=True)
    return {"given": given, "points": points}


# simulated


class Engine:
    """A model's process: `at_once` requests share its speed, the others wait in line."""

    def __init__(self, env: simpy.Environment, speed: Callable[[int], float], at_once: int) -> None:
        self._env, self._speed = env, speed
        self.room = simpy.Resource(env, at_once)
        self._left: dict[simpy.Event, float] = {}
        self._changed = env.event()
        env.process(self._run())

    def work(self, seconds_alone: float) -> simpy.Event:
        """Happens when work that takes so long alone is done."""
        done = self._env.event()
        self._left[done] = seconds_alone
        self._changed.succeed()
        self._changed = self._env.event()
        return done

    def _run(self) -> Iterator[simpy.Event]:
        while True:
            began, here = self._env.now, len(self._left)
            if not here:
                yield self._changed
                continue
            each = self._speed(here) / here
            before = dict(self._left)
            yield self._env.timeout(min(before.values()) / each) | self._changed
            for done, left in before.items():
                self._left[done] = left - (self._env.now - began) * each
                if self._left[done] <= 1e-9:
                    del self._left[done]
                    done.succeed()


def simulate(
    coming: Sequence[Arrival],
    alone: dict[str, float],
    speed: Callable[[int], float],
    *,
    pools: dict[str, int],
    at_once: int = AT_ONCE[-1],
) -> dict[str, list[float]]:
    """Seconds of each request. `pools`: the kind each engine takes, "any" for both, to how many engines."""
    env = simpy.Environment()
    engines = {kind: [Engine(env, speed, at_once) for _ in range(count)] for kind, count in pools.items()}
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}

    def one(arrival: Arrival) -> Iterator[simpy.Event]:
        yield env.timeout(arrival.at)
        pool = engines.get(arrival.kind) or engines["any"]
        engine = min(pool, key=lambda each: each.room.count + len(each.room.queue))
        with engine.room.request() as place:
            yield place
            yield engine.work(alone[arrival.kind])
        took[arrival.kind].append(env.now - arrival.at)

    for arrival in coming:
        env.process(one(arrival))
    env.run()
    return took


def speed_of(given: dict[str, Any]) -> Callable[[int], float]:
    """Seconds of lone work that get done in a second with n requests at once, from the callers who asked again."""
    mean = statistics.fmean(given["alone"].values())
    counts = [int(callers) for callers in given["a second"]]
    done = [rate * mean for rate in given["a second"].values()]
    return lambda here: float(np.interp(here, counts, done))


def checked(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Measured and simulated mean times at each load, of the same arrivals."""
    given, rows = measured["given"], []
    for point in measured["points"]:
        coming = arrivals(point["rate"], seconds=POINT_S)
        found = simulate(coming, given["alone"], speed_of(given), pools={"any": 1})
        row: dict[str, Any] = {"load": point["load"], "requests a second": round(point["rate"], 2),
                               "requests": len(coming)}  # fmt: skip
        real, made = (statistics.fmean([t for one in took.values() for t in one]) for took in (point["took"], found))
        row |= {"measured mean, s": round(real, 3), "simulated": round(made, 3), "error": round(made / real - 1, 3)}
        for kind in KINDS:
            real, made = statistics.fmean(point["took"][kind]), statistics.fmean(found[kind])
            row |= {f"{kind}, s": round(real, 3), f"{kind} simulated": round(made, 3)}
        rows.append(row)
    return rows


def pooled(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Model processes that each take everything, against some for either kind by its share of the work, simulated."""
    given, rows = measured["given"], []
    most = PROCESSES * max(given["a second"].values())
    share = given["alone"]["shallow"] / sum(given["alone"].values())
    few = max(1, round(share * PROCESSES))
    for load in (*LOADS, 0.85):
        coming = arrivals(load * most, count=SIMULATED)
        row: dict[str, Any] = {"load": load, "processes for shallow": f"{few} of {PROCESSES}"}
        for name, pools in (("shared", {"any": PROCESSES}), ("apart", {"shallow": few, "deep": PROCESSES - few})):
            took = simulate(coming, given["alone"], speed_of(given), pools=pools)
            for kind in KINDS:
                row |= {f"{kind} {name} p50, ms": percentile(took[kind], 0.5)}
                row |= {f"{kind} {name} p95, ms": percentile(took[kind], 0.95)}
        rows.append(row)
    return rows


def curve(measured: dict[str, Any]) -> list[dict[str, float]]:
    """Simulated mean times over the load, for the picture."""
    given, rows = measured["given"], []
    for load in np.arange(0.1, 0.96, 0.05):
        coming = arrivals(float(load) * max(given["a second"].values()), count=SIMULATED)
        took = simulate(coming, given["alone"], speed_of(given), pools={"any": 1})
        rows.append({"load": round(float(load), 2)} | {kind: round(statistics.fmean(took[kind]), 4) for kind in KINDS})
    return rows


def draw(measured: dict[str, Any], line: Sequence[dict[str, float]]) -> None:
    """The curve with the measured points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for kind, colour in zip(KINDS, ("#2f6f9f", "#a6453c"), strict=True):
        axes.plot([row["load"] for row in line], [row[kind] for row in line], color=colour, label=f"{kind}, simulated")
        means = [statistics.fmean(point["took"][kind]) for point in measured["points"]]
        axes.plot(LOADS, means, "o", color=colour, label=f"{kind}, measured")
    axes.set(xlabel="share of what one process gets done at most", ylabel="mean seconds of a request", ylim=0)
    axes.legend(frameon=False)
    figure.savefig(PICTURE, dpi=150, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["measure", "simulate"])
    parts, kept = parser.parse_args().parts, OUT / "scale_sim_measured.json"
    if "measure" in parts:
        found = json.dumps(measure())
        OUT.mkdir(exist_ok=True)
        kept.write_text(found, "utf-8")
    if "simulate" not in parts:
        return
    measured = json.loads(kept.read_text("utf-8"))
    points, pools = checked(measured), pooled(measured)
    print(table(points), table(pools), sep="\n\n")
    given = measured["given"]
    note = (
        f"One `shoal serve`, {AT_ONCE[-1]} requests at once, half of them shallow ({KINDS['shallow']}), half deep "
        f"({KINDS['deep']}), arriving at random for {POINT_S:g} s at each load. Alone they take "
        + " and ".join(f"{seconds:.3f} s ({kind})" for kind, seconds in given["alone"].items())
        + "; requests a second with 1, 2, 4 and 8 callers: "
        + ", ".join(f"{rate:.2f}" for rate in given["a second"].values())
        + f". The simulation knows only these. Pools: {PROCESSES} processes, simulated."
    )
    write(NAME, TITLE, {"note": note, "measured and simulated": points, "a pool for each kind": pools})
    draw(measured, curve(measured))


if __name__ == "__main__":
    main()
