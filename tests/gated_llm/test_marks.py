"""What a thumbs-down marks, and that the next calibration lets marked branches leave later (G15)."""

from pathlib import Path
from typing import Any

import pytest

from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.marks import marks_of
from shoal.gated_llm.model import Decoder
from shoal.gated_llm.train.bench import Bench
from shoal.gated_llm.train.samples import Sample
from shoal.gated_llm.train.search import Search


def report(runs: list[tuple[int, int]], tokens: int = 4) -> dict[str, Any]:
    return {"branch_runs": [list(pair) for pair in runs], "per_token": [1.0] * tokens}


def test_what_disliked_answers_skipped_beyond_the_others_is_marked() -> None:
    bad = [report([(4, 4), (0, 4), (4, 0)]), report([(4, 4), (2, 4), (4, 0)])]
    usual = [report([(4, 4), (4, 4), (4, 0)]), report([], tokens=0)]
    assert marks_of(bad, usual) == {("attention", 1): 0.75}  # everyone skips MLP 2
    assert marks_of(bad, []) == {("attention", 1): 0.75, ("mlp", 2): 1.0}
    assert marks_of([], usual) == {}
    assert marks_of([report([(4, 4)] * 3)], usual) == {}
    assert marks_of([report([(0, 0)] * 3), report([(0, 0)] * 2)], usual) == {}  # answers of two models


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
