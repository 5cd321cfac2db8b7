"""R1: what a decision costs on one core: cold and warm, one request and 64 at once, and memory.

Cold is a fresh process up to its first decision, imports, embedder, classifier and the guard's phrases included; warm
is everything after. Beside the wall clock the processor time of the same calls is given, which other work on the
machine does not lengthen. A decision is features, embedding, classifier, guard and policy, as `CognitiveRouter.decide`
makes it.
"""

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks._router import DATA, SEED, table, write

COLD = """
import json, resource, time
wall, cpu = time.perf_counter(), time.process_time()
from shoal.router.cli.ask import load_settings
from shoal.router.wiring import build_decider
router = build_decider(load_settings(router_only=True))
router.decide("What is the capital of France?")
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu,
                  resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def timed(what: str, call: Callable[[int], Any], n: int) -> dict[str, Any]:
    """Milliseconds of `n` calls, by the wall clock and by the processor's."""
    wall, cpu = [], []
    for i in range(n):
        began, worked = time.perf_counter(), time.thread_time()
        call(i)
        cpu.append((time.thread_time() - worked) * 1e3)
        wall.append((time.perf_counter() - began) * 1e3)
    return {"what": what, "n": n, **_at("cpu", cpu), **_at("wall", wall)}


def _at(name: str, values: list[float]) -> dict[str, float]:
    values = sorted(values)
    return {
        f"{name} p50 ms": values[len(values) // 2],
        f"{name} p99 ms": values[min(len(values) - 1, len(values) * 99 // 100)],
    }


def cold(runs: int = 3) -> list[dict[str, Any]]:
    made = [
        json.loads(subprocess.run([sys.executable, "-c", COLD], check=True, capture_output=True, text=True).stdout)
        for _ in range(runs)
    ]
    best = min(made, key=lambda each: each[1])
    return [
        {"what": "fresh process to its first decision", "cpu s": best[1], "wall s": best[0], "peak memory MB": best[2]}
    ]


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    first = cold()
    print(table(first) + "\n", flush=True)
    from shoal.rag.embed import default_embedder
    from shoal.router.classifier import Classifier
    from shoal.router.decider import Decider
    from shoal.router.decision import Message, Request
    from shoal.router.features import read
    from shoal.router.train.data import collect

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    embed = default_embedder()
    classifier = Classifier.load(embed)
    decider = Decider(embed, classifier=classifier)
    texts = [e.text for e in collect(DATA, seed=SEED, sources=("nq", "cmrc", "banking", "gsm8k")) if e.split == "test"]
    random.Random(SEED).shuffle(texts)
    asked = [Request.of(text) for text in texts[:1000]]

    def decide(i: int) -> None:
        decider.decide(asked[i], decider.read(asked[i]), None)

    decide(999)
    features = [read((Message(role="user", content=t),)) for t in texts[:1000]]
    warm = [
        timed("whole decision, new request", decide, 300),
        timed("whole decision, classifier remembers the request", decide, 300),
        timed("classifier alone, new request", lambda i: classifier.predict(asked[400 + i].messages), 200),
        timed("classifier alone, remembered", lambda i: classifier.predict(asked[400 + i].messages), 200),
        timed(
            "classifier, batch of 64",
            lambda i: classifier.from_features(
                features[64 * i : 64 * i + 64], embed([f.focus for f in features[64 * i : 64 * i + 64]])
            ),
            15,
        ),
    ]
    print(table(warm))
    memory = {"MB before the router": before, "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    print(memory)
    note = "One core. `cpu` is processor time, `wall` the clock on a machine that had other work to do."
    write(
        "router_speed",
        "Time and memory of a decision (R1)",
        {"note": note, "cold": first, "warm": warm, "memory": memory},
    )


if __name__ == "__main__":
    main()
