"""Random arrivals, cancellations, streams left early and stop strings on one engine, for as long as asked.

Every greedy request that ends by itself must give the text that it gives alone; afterwards nothing may be open, and
memory, threads and file descriptors must be where they were after the first minute.

`--minutes M` (default 30), `--at-once N` (default 6).
"""

import argparse
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks._router import SEED, table, write
from shoal.gated_llm import GatedLLM
from shoal.gated_llm.weights import DEFAULT_MODEL

WORDS = ("tide", "harbour", "net", "lantern", "storm", "boat", "baker", "灯塔", "海港", "风暴", "渔船")
KINDS = 60  # different requests


def requests(llm: GatedLLM) -> list[dict[str, Any]]:
    """Different requests, every third sampled with a seed."""
    draw, made = random.Random(SEED), []
    for n in range(KINDS):
        topic = " ".join(draw.choices(WORDS, k=draw.choice([2, 5, 20, 120, 350])))
        made.append(
            {
                "prompt": f"Tell me about this: {topic}",
                "max_tokens": draw.randint(1, 64),
                "max_depth": draw.choice(["auto", 30, 26, "60%"]),
                "temperature": draw.choice([0.0, 0.0, 0.9]),
                "seed": n,
                "stop": draw.choice([None, None, ". ", "the sea", "。"]),
                "gate_prefill": draw.random() < 0.1,
            }
        )
    return made


def state() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        "resident, MiB": int(status["VmRSS"].split()[0]) >> 10,
        "threads": threading.active_count(),
        "open files": len(os.listdir("/proc/self/fd")),
    }


class Visitor:
    """What one caller may do to the engine."""

    def __init__(self, llm: GatedLLM, jobs: list[dict[str, Any]], alone: list[Any]) -> None:
        self.llm, self.jobs, self.alone = llm, jobs, alone
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, n: int) -> None:
        draw = random.Random(SEED + n)
        time.sleep(draw.expovariate(8))
        kind, does = draw.randrange(len(self.jobs)), draw.random()
        job = self.jobs[kind]
        if does < 0.15:
            outcome = self._leaves(job, draw)
        elif does < 0.3:
            event = threading.Event()
            timer = threading.Timer(draw.random(), event.set)
            timer.start()
            made = self.llm.generate(**job, cancel=event)
            timer.cancel()
            outcome = "cancelled" if made.finish_reason == "cancelled" else self._same(kind, made)
        else:
            outcome = self._same(kind, self.llm.generate(**job))
        with self._lock:
            self.counts[outcome] += 1

    def _leaves(self, job: dict[str, Any], draw: random.Random) -> str:
        stream = self.llm.stream(**job)
        for _ in range(draw.randint(1, 4)):
            if next(stream, None) is None:
                break
        stream.close()  # type: ignore[attr-defined]
        return "left early"

    def _same(self, kind: int, made: Any) -> str:
        alone = self.alone[kind]
        return "as alone" if (made.text, made.finish_reason) == (alone.text, alone.finish_reason) else "DIFFERENT"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=30)
    arguments.add_argument("--at-once", type=int, default=6)
    asked = arguments.parse_args()
    with GatedLLM.load() as llm:
        jobs = requests(llm)
        alone = [llm.generate(**job) for job in jobs]
        visitor = Visitor(llm, jobs, alone)
        began, rows, made = time.monotonic(), [], 0
        with ThreadPoolExecutor(asked.at_once) as pool:
            while (passed := time.monotonic() - began) < 60 * asked.minutes:
                list(pool.map(visitor, range(made, made + 60)))
                made += 60
                if not rows or passed - rows[-1]["s"] >= 60 * asked.minutes / 10:
                    rows.append({"s": round(passed), "requests": made, **state()})
                    print(rows[-1], dict(visitor.counts), flush=True)
        rows.append({"s": round(time.monotonic() - began), "requests": made, **state()})
        left = {"still open": llm.scheduler.open, "keys and values held": llm.scheduler.kv_bytes}
        steps = {"passes": llm.scheduler.steps, "requests per pass": round(llm.scheduler.rows / llm.scheduler.steps, 2)}
    print(table(rows), dict(visitor.counts), left, steps, sep="\n")
    write(
        "soak",
        "Soak of the engine",
        {
            "note": f"{DEFAULT_MODEL}; {asked.at_once} callers at once, random arrivals; 15% leave their stream "
            "early, 15% cancel after a random time; a third of the requests have stop strings, a third are sampled.",
            "outcomes": dict(visitor.counts),
            "over time": rows,
            "afterwards": left | steps,
        },
    )
    if visitor.counts["DIFFERENT"] or any(left.values()):
        raise SystemExit("The soak found a difference or something left open.")


if __name__ == "__main__":
    main()
