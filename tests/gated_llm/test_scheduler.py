"""Many requests at once: batched, bounded, cancelled at the next token, and never in each other's way (G8, G17)."""

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shoal.gated_llm import Busy, GatedError, GatedLLM
from shoal.gated_llm.native import available

from .conftest import MakeModel

WIDE = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "initializer_range": 0.1}
LONG: dict[str, Any] = {"max_tokens": 300, "temperature": 1.0, "stop": None}


def until(true: Callable[[], bool]) -> None:
    """Waits for what another thread is about to do."""
    for _ in range(2000):
        if true():
            return
        time.sleep(0.005)
    raise AssertionError("it never came true")


def long_seed(llm: GatedLLM, **settings: Any) -> int:
    """A seed with which the tiny model goes on for long."""
    return next(
        s for s in range(60) if llm.generate("Hi", seed=s, **{**LONG, **settings}).usage.completion_tokens >= 100
    )


@pytest.fixture(scope="module", params=["kernel", "torch"])
def llm(request: pytest.FixtureRequest, make_model: MakeModel) -> GatedLLM:
    if request.param == "kernel" and not available():
        pytest.skip("no C++ compiler here: the kernel is optional")
    folder = make_model(**WIDE, max_position_embeddings=1024)
    return GatedLLM.load(folder, dtype="int8" if request.param == "kernel" else "fp32")


def test_requests_that_run_together_share_passes(llm: GatedLLM) -> None:
    seed, before = long_seed(llm), (llm.scheduler.steps, llm.scheduler.rows)
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda _: llm.generate("Hi", seed=seed, **LONG), range(6)))
    assert len({one.text for one in made}) == 1
    steps, rows = llm.scheduler.steps - before[0], llm.scheduler.rows - before[1]
    assert rows >= 6 * made[0].usage.completion_tokens
    assert steps < rows / 2


def test_a_crowd_gets_what_each_gets_alone(llm: GatedLLM) -> None:
    """Arrivals, budgets, cancellations, stop strings, streams left early: whoever stays gets the same text."""
    draw = random.Random(4)
    jobs = [
        {
            "prompt": "x" * draw.choice([1, 5, 40, 150, 320]),
            "max_tokens": draw.randint(1, 24),
            "max_depth": draw.choice([5, 6, "auto"]),
            "temperature": draw.choice([0.0, 0.0, 1.0]),
            "seed": n,
            "stop": draw.choice([None, "e", "zq"]),
            "gate_prefill": draw.random() < 0.2,
        }
        for n in range(40)
    ]
    alone = [llm.generate(**job) for job in jobs]

    def crowd(n: int) -> Any:
        if n % 5 == 3:
            event = threading.Event()
            threading.Timer(draw.random() / 50, event.set).start()
            return llm.generate(**jobs[n], cancel=event)
        if n % 5 == 4:
            stream = llm.stream(**jobs[n])
            next(stream)
            stream.close()  # type: ignore[attr-defined]
            return None
        return llm.generate(**jobs[n])

    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(crowd, range(40)))
    for n, (one, other) in enumerate(zip(alone, together, strict=True)):
        if n % 5 < 3 or (n % 5 == 3 and other.finish_reason != "cancelled"):
            assert one == other
    assert llm.scheduler.open == 0
    assert llm.scheduler.kv_bytes == 0


def test_a_shared_beginning_is_read_once_and_changes_nothing(llm: GatedLLM) -> None:
    system = {"role": "system", "content": "You know this: " + "lamp " * 110}
    ask = [[system, {"role": "user", "content": word}] for word in ("one", "two", "three")]
    first = llm.generate(ask[0], max_tokens=12)
    fresh = llm.prefix.found
    again = [llm.generate(one, max_tokens=12) for one in ask]
    assert llm.prefix.found - fresh >= 3 * 512
    assert again[0] == first
    llm.prefix.clear()
    for one, made in zip(ask, again, strict=True):
        assert llm.generate(one, max_tokens=12, partition=str(one)) == made
    before = llm.prefix.found
    llm.generate(ask[0], max_tokens=1, partition="another tenant")
    assert llm.prefix.found == before


def test_what_waits_is_bounded_and_memory_too(make_model: MakeModel) -> None:
    folder = make_model(**WIDE, max_position_embeddings=1024)
    with GatedLLM.load(folder, dtype="fp32") as llm:
        seed = long_seed(llm)
        one_request = (
            6 * (llm.count_tokens("Hi") + 300) * 2 * 2 * 32 * 4
        )  # layers, tokens, K and V, heads, head_dim, bytes
    with GatedLLM.load(folder, dtype="fp32", kv_bytes=2 * one_request) as llm:
        streams = [llm.stream("Hi", seed=seed, **LONG) for _ in range(4)]
        threads = [threading.Thread(target=lambda s=stream: next(s)) for stream in streams]
        for thread in threads:
            thread.start()
        until(lambda: llm.scheduler.open == 4)
        assert llm.scheduler.running <= 2
        for thread, stream in zip(threads, streams, strict=True):
            thread.join()
            stream.close()  # type: ignore[attr-defined]
        assert llm.scheduler.open == 0
        with pytest.raises(Busy, match="lower max_tokens"):
            llm.generate("Hi" * 200, max_tokens=500)


def test_too_many_that_wait(make_model: MakeModel) -> None:
    with GatedLLM.load(make_model(**WIDE), dtype="fp32") as llm:
        llm.scheduler.most_waiting = 0
        with pytest.raises(Busy, match="try again later"):
            llm.generate("Hi")


def test_a_caller_who_does_not_read_rests(make_model: MakeModel) -> None:
    """Nothing is made ahead without end, and others go on meanwhile."""
    with GatedLLM.load(make_model(**WIDE, max_position_embeddings=2048), dtype="fp32") as llm:
        seed = next(
            s
            for s in range(60)
            if llm.generate("Hi", seed=s, max_tokens=400, temperature=1.5).usage.completion_tokens >= 400
        )
        stream = llm.stream("Hi", seed=seed, max_tokens=400, temperature=1.5)
        next(stream)
        steps = -1

        def still() -> bool:
            nonlocal steps
            before, steps = steps, llm.scheduler.steps
            time.sleep(0.05)
            return before == steps

        until(still)
        assert llm.scheduler.steps < steps + 400
        assert llm.generate("Hi", max_tokens=3).usage.completion_tokens <= 3
        rest = list(stream)
        assert rest[-1].usage is not None
        assert rest[-1].usage.completion_tokens == 400


def test_closing_ends_what_runs(make_model: MakeModel) -> None:
    llm = GatedLLM.load(make_model(**WIDE), dtype="fp32")
    seed = long_seed(llm)
    stream = llm.stream("Hi", seed=seed, **LONG)
    next(stream)
    llm.close()
    with pytest.raises(GatedError, match="closed while it answered"):
        list(stream)
    with pytest.raises(GatedError, match="load it again"):
        llm.generate("Hi")
    assert "shoal-passes" not in {thread.name for thread in threading.enumerate()} or llm.scheduler.open == 0


def test_a_model_that_is_dropped_leaves_nothing(make_model: MakeModel) -> None:
    llm = GatedLLM.load(make_model(**WIDE), dtype="fp32")
    llm.generate("Hi", max_tokens=2)
    thread = llm.scheduler.thread
    assert thread is not None
    gone = weakref.ref(llm)
    del llm
    gc.collect()
    assert gone() is None
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_one_broken_request_does_not_harm_the_rest(llm: GatedLLM) -> None:
    class Breaks:
        def is_set(self) -> bool:
            raise RuntimeError("asked at a bad time")

    seed = long_seed(llm)
    expected = llm.generate("Hi", seed=seed, **LONG)
    with ThreadPoolExecutor(2) as pool:
        good = pool.submit(llm.generate, "Hi", seed=seed, **LONG)
        with pytest.raises(RuntimeError, match="bad time"):
            llm.generate("Hi", cancel=Breaks(), max_tokens=3)
        assert good.result() == expected


def test_without_a_kernel_reader_the_answers_stay_well_formed(tmp_path: Path, make_model: MakeModel) -> None:
    if not available():
        pytest.skip("no C++ compiler here: the kernel is optional")
    with GatedLLM.load(make_model(**WIDE), dtype="int8", edge=True) as llm:
        made = llm.generate("x" * 200, max_tokens=8)
        assert made.usage.completion_tokens <= 8
        assert llm.prefix.bytes_held == 0


def test_one_thread_serves_requests_that_follow_each_other(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.gated_llm.scheduler._IDLE_S", 60.0)
    with GatedLLM.load(make_model()) as llm:
        threads = set()
        for word in ("boats", "rain", "maps"):
            llm.generate(f"Say {word}.", max_tokens=3)
            threads.add(llm.scheduler.thread)
        assert len(threads) == 1
        assert None not in threads
    assert llm.scheduler.thread is None
