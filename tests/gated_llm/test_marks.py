"""What thumbs-down mark, and what they do not; that the next calibration lets marked branches leave later (G15)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.marks import Answered, marks_of
from shoal.gated_llm.model import Decoder
from shoal.gated_llm.train.bench import Bench
from shoal.gated_llm.train.samples import Sample
from shoal.gated_llm.train.search import Search

LAYERS, TOKENS, BAD = 6, 20, ("mlp", 2)


def answer(disliked: bool, rates: np.ndarray, draw: np.random.Generator, name: str, **changes: Any) -> Answered:
    """An answer of which each branch skips about its rate of the tokens."""
    ran = TOKENS - draw.binomial(TOKENS, rates)
    depth = {"branch_runs": ran.tolist(), "per_token": [1.0] * TOKENS, "budget": 6.0, "policy": "gates"}
    made = {"caller": "default", "prompt": name, "kind": "deep", "depth": depth | {"gate_fingerprint": "plan-abc"}}
    return Answered(**{**made, "disliked": disliked, **changes})


def log(disliked: int = 30, others: int = 120, *, seed: int = 0, harm: float = 0.3, **changes: Any) -> list[Answered]:
    """Answers with rates of their own; `harm`: how much more of BAD the disliked ones skip."""
    draw = np.random.default_rng(seed)
    made = []
    for at in range(disliked + others):
        rates = np.clip(draw.normal(0.3, 0.15, (LAYERS, 2)), 0, 0.7)
        rates[BAD[1], 1] = max(0.0, rates[BAD[1], 1] + harm * (at < disliked))
        made.append(answer(at < disliked, rates, draw, f"{seed}-{at}", **changes))
    return made


def test_the_branch_that_disliked_answers_skipped_more_is_marked_and_no_other() -> None:
    found = marks_of(log(), gates="abc")
    assert list(found.branches) == [BAD]
    assert 0.15 < found.branches[BAD] < 0.45
    assert (found.disliked, found.others, found.why) == (30, 120, "")
    assert "mlp 2" in str(found)
    assert marks_of(log(), gates="abc").branches == found.branches  # repeats
    assert not marks_of(log(), gates="other").branches  # other gates made these answers
    assert not marks_of(log()).branches  # and no plan did
    assert list(marks_of(_planned(log())).branches) == [BAD]
    plan = {"depth": {"branch_runs": [[4, 4]], "per_token": [1.0] * 4, "policy": "plan"}}
    assert "models" in marks_of([*_planned(log()), *log(1, 1, seed=9, **plan)]).why


def _planned(answers: list[Answered]) -> list[Answered]:
    return [
        Answered(
            caller=one.caller, prompt=one.prompt, kind=one.kind, disliked=one.disliked,
            depth={**one.depth, "policy": "plan"},
        )
        for one in answers
    ]  # fmt: skip


def test_a_branch_that_ran_more_or_too_few_answers_mark_nothing() -> None:
    assert not marks_of(log(harm=-0.3), gates="abc").branches
    few = marks_of(log(19, 200), gates="abc")
    assert not few.branches
    assert "19 answers" in few.why
    same = [*log(2, 100), *[one for one in log(2, 0) for _ in range(50)]]  # one thumb pressed again and again
    assert not marks_of(same, gates="abc").branches


def test_random_thumbs_mark_nothing_but_by_chance() -> None:
    marked = sum(bool(marks_of(log(60, 60, seed=seed, harm=0.0), gates="abc").branches) for seed in range(20))
    assert marked <= 3  # 5% of 20 is 1


def test_all_thumbs_down_of_one_kind_or_of_one_caller_say_nothing() -> None:
    """Nothing can be told from a kind of answer, or a caller, that has only one sort of thumb."""
    assert not marks_of(log(200, 0), gates="abc").branches
    kinds = [*log(100, 0, kind="rag"), *log(0, 100, seed=1, harm=0.0, kind="deep")]
    assert not marks_of(kinds, gates="abc").branches
    callers = [*log(100, 0, caller="hater"), *log(0, 100, seed=1, caller="other")]
    assert not marks_of(callers, gates="abc").branches


def _flooded() -> Iterator[Answered]:
    yield from log(200, 200, caller="flood")
    for seed in range(1, 5):
        yield from log(10, 90, seed=seed, harm=0.0, caller=f"user {seed}")


def test_one_caller_alone_marks_nothing_but_several_do() -> None:
    assert not marks_of(_flooded(), gates="abc").branches
    several = [one for seed in range(4) for one in log(10, 90, seed=seed, caller=f"user {seed}")]
    assert list(marks_of(several, gates="abc").branches) == [BAD]
    assert len(several) == 400
    alone = [*log(40, 200), *log(0, 10, seed=5, caller="a trial")]  # a service with one caller of weight
    assert list(marks_of(alone, gates="abc").branches) == [BAD]


@pytest.fixture(scope="module")
def bench(tiny_folder: Path) -> Bench:
    decoder = Decoder(DecoderConfig.from_folder(tiny_folder), read_tensors(tiny_folder), dtype="fp32")
    samples = [Sample(kind="text", prefix=list(range(9 + i, 25 + i)), rest=list(range(40, 56))) for i in range(4)]
    return Bench(decoder, samples)


def test_marked_branches_leave_later(bench: Bench, tiny_folder: Path) -> None:
    config = DecoderConfig.from_folder(tiny_folder)

    def order(**marks: Any) -> list[Any]:
        search = Search(bench, bench, config, min_depth=3, **marks)
        while search.grow():
            pass
        while search.settle():
            pass
        return search.found.order

    plain = order()
    first = plain[0]
    marked = order(marks={first: 1.0})
    assert order(marks={}) == plain
    assert first not in marked or marked.index(first) > 0
