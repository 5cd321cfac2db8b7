from pathlib import Path

import pytest

from shoal.gated_llm import GatedError, GatedLLM
from shoal.gated_llm.skim import LONGEST, Skim

from .conftest import MakeModel

TEXTS = ["The pump weighs 40 kg and runs on weekdays.", "泵的重量是40公斤，它在周末停机。", "a"]


def test_scores_are_shares_that_length_and_company_do_not_change(tiny: GatedLLM) -> None:
    skim = Skim(tiny)
    scores = skim([*TEXTS, TEXTS[0]])
    assert all(0 < score <= 1 for score in scores)
    assert scores[0] == scores[3] == skim([TEXTS[0]])[0]
    assert skim([TEXTS[0] + " word" * (2 * LONGEST)]) == skim([TEXTS[0] + " word" * (3 * LONGEST)])
    assert skim([""]) == [1.0]


def test_a_question_before_the_text_counts(tiny: GatedLLM) -> None:
    skim = Skim(tiny)
    assert skim.read(TEXTS[0]).score == skim([TEXTS[0]])[0]
    asked = skim.read(TEXTS[0], "How heavy is the pump?")
    assert asked != skim.read(TEXTS[0])
    assert asked.surprise > 0
    assert 0 < asked.sure <= 1


def test_nothing_is_lost_where_nothing_is_left_out(tiny: GatedLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.gated_llm.skim.NEUTRAL", 1.0)
    assert Skim(tiny)(TEXTS) == pytest.approx([1.0] * 3, abs=1e-5)


def test_the_fingerprint_follows_the_plan(tiny: GatedLLM, make_model: MakeModel) -> None:
    with GatedLLM.load(make_model(hidden_size=48), dtype="fp32") as other:
        assert Skim(other).fingerprint != Skim(tiny).fingerprint
    assert Skim(tiny).fingerprint == Skim(tiny).fingerprint


def test_a_model_without_a_plan_cannot_score(make_model: MakeModel) -> None:
    folder: Path = make_model(plan=False)
    with GatedLLM.load(folder, dtype="fp32") as llm, pytest.raises(GatedError, match="gates calibrate"):
        Skim(llm)
