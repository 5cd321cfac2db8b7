import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.rag import KnowledgeBase, RagError
from shoal.rag.chunk import Span
from shoal.rag.depth import LIMIT, MIN_KEEP, RELEVANT, SIDECAR, Depths, default_depth_model, filter_hits
from shoal.rag.errors import ModelError
from shoal.rag.reading import default_reader
from shoal.rag.retrieve import Hit

QUESTIONS = ("When does the shop open?", "公司的总部在哪里？")


class Scorer:
    """Real numbers from nowhere; counts the texts that it reads."""

    def __init__(self, fingerprint: str, value: float = 0.7) -> None:
        self.fingerprint, self.value, self.read = fingerprint, value, 0

    def __call__(self, texts: Sequence[str], /) -> list[float]:
        self.read += len(texts)
        return [self.value] * len(texts)


def hits(scores: Sequence[tuple[float, float | None]]) -> list[Hit]:
    found = [
        Hit(text="x", doc_id="d", span=Span(0, 1), score=score, chunk_id=str(place), depth_score=depth)
        for place, (score, depth) in enumerate(scores)
    ]
    return sorted(found, key=lambda hit: -hit.score)


CHANCE = st.floats(0, 1)


@given(st.lists(st.tuples(CHANCE, st.none() | CHANCE), max_size=8), CHANCE, st.integers(0, 4))
def test_the_filter_never_empties_a_context(scores: list[tuple[float, float | None]], limit: float, keep: int) -> None:
    found = hits(scores)
    kept, out = filter_hits(found, limit, min_keep=keep)
    assert [hit for hit in found if hit in kept] == kept
    assert len(kept) + len(out) == len(found)
    assert bool(kept) == bool(found)
    assert kept[: max(1, keep)] == found[: max(1, keep)]
    for hit in out:
        assert hit.depth_score is not None
        assert hit.depth_score < limit
        assert hit.score < RELEVANT


def test_what_is_clearly_relevant_stays_however_hard() -> None:
    found = hits([(0.9, 0.1), (0.8, 0.1), (0.7, 0.1), (0.2, 0.1), (0.2, 0.9)])
    kept, out = filter_hits(found, LIMIT)
    assert [hit.score for hit in out] == [0.2]
    assert len(kept) == 4
    assert MIN_KEEP == 2


@pytest.mark.parametrize("question", QUESTIONS)
def test_hits_carry_raw_and_calibrated_depth(base: KnowledgeBase, question: str, tmp_path: Path) -> None:
    plain = base.search(question, 6)
    scorer = Scorer(default_depth_model().scorer)
    base.depth_probe = depths = Depths(default_reader(), folder=tmp_path, scorer=scorer)
    depths.score(base.texts())
    assert scorer.read == len(base) == len(base.texts())
    try:
        found = base.search(question, 6)
    finally:
        base.depth_probe = None
    assert [hit.chunk_id for hit in found] == [hit.chunk_id for hit in plain]
    for hit in found:
        assert hit.depth_raw is not None
        assert hit.depth_score is not None
        assert 0 <= hit.depth_raw <= 1
        assert 0 <= hit.depth_score <= 1
    order = sorted((hit for hit in found if hit.text.isascii()), key=lambda hit: hit.depth_raw or 0.0)
    assert sorted(hit.depth_score or 0.0 for hit in order) == [hit.depth_score for hit in order]


def test_what_cannot_be_told_without_the_model_has_no_depth_and_stays(base: KnowledgeBase) -> None:
    model = default_depth_model()
    nothing = replace(model.alone["zh"], weights=0 * model.alone["zh"].weights)
    blind = replace(model, alone={"en": nothing, "zh": nothing})
    base.depth_probe = Depths(default_reader(), folder=base.path, model=blind)
    try:
        assert {hit.depth_score for hit in base.search(QUESTIONS[1], 6)} == {None}
        context = base.context(QUESTIONS[1], k=6, min_score=0.0, token_budget=600, depth_limit=LIMIT)
    finally:
        base.depth_probe = None
    assert "depth" not in {one.reason for one in context.dropped}


def test_a_probe_may_give_one_number(base: KnowledgeBase) -> None:
    base.depth_probe = lambda question, passages: [0.25] * len(passages)
    try:
        (hit,) = base.search(QUESTIONS[0], 1)
    finally:
        base.depth_probe = None
    assert (hit.depth_score, hit.depth_raw) == (0.25, 0.25)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_hard_passage_is_dropped_with_its_reason(base: KnowledgeBase, question: str) -> None:
    base.depth_probe = lambda question, passages: [0.0] * len(passages)
    try:
        context = base.context(question, k=6, min_score=0.0, token_budget=600, depth_limit=LIMIT)
        whole = base.context(question, k=6, min_score=0.0, token_budget=600)
    finally:
        base.depth_probe = None
    assert {one.reason for one in context.dropped} == {"depth"}
    assert len(context.kept) >= MIN_KEEP
    assert len(whole.kept) == 6


def test_scores_are_kept_by_text_and_scorer(tmp_path: Path) -> None:
    model = default_depth_model()
    texts = ["The pump weighs 40 kg.", "泵的重量是40公斤。"]
    scorer = Scorer(model.scorer)
    depths = Depths(default_reader(), folder=tmp_path, scorer=scorer)
    predicted = depths.judge(texts)
    assert scorer.read == 0
    assert [one is not None for one in predicted] == [model.knows("en"), model.knows("zh")]
    depths.score(texts)
    depths.score([*texts, texts[0]])
    assert scorer.read == 2
    assert [one and one.raw for one in depths.judge(texts)] == [0.7, 0.7]
    again = Depths(default_reader(), folder=tmp_path, scorer=Scorer(model.scorer, 0.1))
    assert [one and one.raw for one in again.judge(texts)] == [0.7, 0.7]
    changed = Depths(default_reader(), folder=tmp_path, scorer=Scorer("other gates", 0.4), model=model)
    assert changed.judge(texts) == predicted
    changed.score(texts)
    assert [one and one.raw for one in changed.judge(texts)] == [0.4, 0.4]
    assert len({depths.fingerprint, changed.fingerprint}) == 2


def test_scoring_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(RagError, match="there is none"):
        Depths(default_reader(), folder=tmp_path).score(["a"])


def test_the_calibration_keeps_order_and_its_ends() -> None:
    model = default_depth_model()
    draw = random.Random(0)
    for language in ("en", "zh"):
        values = sorted(draw.random() for _ in range(50))
        found = [model.calibrated(value, language) for value in values]
        assert found == sorted(found)
        assert model.calibrated(0.0, language) == 0.0
        assert model.calibrated(1.0, language) == 1.0
        low, high = model.quantiles[language][[0, -1]]
        assert model.calibrated((low + high) / 2, language) not in (0.0, 1.0)


def test_a_damaged_predictor_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "depth.json"
    path.write_text("{}", "utf-8")
    with pytest.raises(ModelError, match="install the package again"):
        type(default_depth_model()).read(path)
    narrow = replace(default_depth_model().shift["en"], weights=default_depth_model().shift["en"].weights[:2])
    with pytest.raises(ModelError, match="features"):
        narrow(default_depth_model().shift["en"].mean[None])


def test_a_damaged_sidecar_fails_no_search_and_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / SIDECAR).write_bytes(b"no database" * 100)
    depths = Depths(default_reader(), folder=tmp_path, scorer=Scorer(default_depth_model().scorer))
    plain = Depths(default_reader(), folder=tmp_path)
    assert depths.judge(["The pump weighs 40 kg."]) == plain.judge(["The pump weighs 40 kg."])
    assert "delete it" in caplog.text
    with pytest.raises(RagError, match="score again"):
        depths.score(["a"])


def test_looking_writes_nothing(tmp_path: Path) -> None:
    depths = Depths(default_reader(), folder=tmp_path, scorer=Scorer(default_depth_model().scorer))
    depths.judge(["The pump weighs 40 kg."])
    assert list(tmp_path.iterdir()) == []
