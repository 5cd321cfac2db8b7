"""What keeping traces costs (G7): whole requests with trace off, light and full in turns, and each trace alone.

The same question at the same budget, past the cache, through the whole router over the default model; a ratio is that
of one round to its own `off`, so a busy machine slows all alike. What keeping a trace takes alone is making the record,
packing and writing it. Sizes are those of 200 tokens of 30 layers with drawn decisions, signals at four layers, gates
on every branch: the most that a trace holds.

`--rounds N` (default 40): each takes about a second and a half.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._router import SEED, table, write
from shoal import GatedLLM
from shoal.gated_llm.trace import SIGNALS, DepthTrace, TokenTrace
from shoal.router import CacheControl, CognitiveRouter, Request
from shoal.router.decision import Answer
from shoal.router.traces import Recorder, TraceStore

QUESTION = "Explain step by step how a lighthouse is built, and what each step is for."
DEPTH, NEW = 24, 64
MODES = ("off", "light", "full")
ALONE = 200  # repeats


def asked(router: CognitiveRouter, mode: str) -> tuple[float, Answer]:
    """Seconds of one request and its answer."""
    start = time.perf_counter()
    answer = router.ask(
        QUESTION, max_depth=DEPTH, max_tokens=NEW, trace=mode, cache=CacheControl(read=False, write=False)
    )
    return time.perf_counter() - start, answer


def in_turns(router: CognitiveRouter, rounds: int) -> list[dict[str, Any]]:
    took: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(rounds + 1):
        order = MODES[number % 3 :] + MODES[: number % 3]
        for mode in order:
            seconds, answer = asked(router, mode)
            if number:  # the first round warms up
                took[mode].append(seconds / answer.completion_tokens)
    rows = []
    for mode in MODES:
        ratios = [a / b for a, b in zip(took[mode], took["off"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if mode != "off" else (1.0, 1.0, 1.0)
        rows.append(
            {
                "trace": mode,
                "ms per token, best": 1000 * min(took[mode]),
                "ratio to off, median": middle,
                "quartile": low,
                "quartile above": high,
            }
        )
    return rows


def best_us(job: Callable[[], object]) -> float:
    """Microseconds of the job, the best of many."""
    times = []
    for _ in range(ALONE):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return 1e6 * min(times)


def alone(router: CognitiveRouter, store: TraceStore, per_token_us: float) -> list[dict[str, Any]]:
    """What keeping each trace takes by itself, and that as a share of the request's time."""
    rows, request = [], Request.of(QUESTION)
    for mode in MODES:
        recorder, (_, answer) = Recorder(store, mode=mode), asked(router, mode)
        per_request = best_us(lambda recorder=recorder, answer=answer: recorder.keep(request, answer))
        size = store.newest(limit=1)[0]["bytes"] if mode != "off" else 0
        rows.append(
            {
                "trace": mode,
                "µs per request": per_request,
                "µs per token": per_request / answer.completion_tokens,
                "share of the request": per_request / (per_token_us * answer.completion_tokens),
                "bytes kept": size,
                "tokens": answer.completion_tokens,
            }
        )
    return rows


def sizes() -> list[dict[str, Any]]:
    """Bytes of 200 tokens' decisions, packed as the store packs them."""
    draw = random.Random(SEED)
    rows = []
    for name, probed, gated in (("decisions", 0, 0), ("and signals", 4, 0), ("and gates", 4, 60)):
        tokens = tuple(
            TokenTrace(
                index=i,
                token=" word",
                depth=20.0,
                branches="".join(draw.choice("Nn") for _ in range(54)) + "S" * 6,
                gates=[round(draw.random(), 3) for _ in range(gated)],
                signals={7 * k: {n: round(draw.random(), 3) for n in SIGNALS} for k in range(probed)},
            )
            for i in range(200)
        )
        trace = DepthTrace(
            total=30, policy="hybrid", budget=24.0, prefill=30.0, gate_fingerprint="0123456789ab", tokens=tokens
        )
        start = time.perf_counter()
        packed = zlib.compress(json.dumps(trace.to_dict()).encode(), 6)
        rows.append({"holds": name, "bytes": len(packed), "ms to pack": 1000 * (time.perf_counter() - start)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder, GatedLLM.load() as llm:
        store = TraceStore(Path(folder) / "traces.sqlite")
        router = CognitiveRouter(llm=llm, recorder=Recorder(store))
        whole = in_turns(router, rounds)
        parts = alone(router, store, 1000 * whole[0]["ms per token, best"])
        store.close()
    print(table(whole), "", table(parts), sep="\n")
    note = f"Depth {DEPTH} of 30, {NEW} new tokens, {rounds} rounds in turns; times alone are the best of {ALONE}."
    values = {"note": note, "in turns": whole, "alone": parts, "size of 200 tokens": sizes()}
    print("", table(values["size of 200 tokens"]), sep="\n")
    write("trace_cost", "What keeping traces costs (G7)", values)


if __name__ == "__main__":
    main()
