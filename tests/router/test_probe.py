"""The layer probe: gone from the prompt and answered where it is on, plain text where it is off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.router import CognitiveRouter, InvalidRequest, Request
from shoal.router.probe import probed, take_probes

from .conftest import ScriptedModel

ASKED = "Prove that 2 + 2 is 4 <LAYER_TEST:3> and say why.<LAYER_TEST:17> <LAYER_TEST:3>"


def test_marks_are_taken_out_and_answered(model: ScriptedModel) -> None:
    router = CognitiveRouter(llm=model, layer_probe=True)
    answer = router.ask(ASKED, max_depth=20)
    assert "LAYER_TEST" not in str(model.calls[0].prompt)
    assert "Prove that 2 + 2 is 4 and say why." in str(model.calls[0].prompt)
    assert probed(answer.trace) == {3: "active", 17: "active"}
    again = router.ask("Prove that 2 + 2 is 4 and say why.<LAYER_TEST:5>", max_depth=20)
    assert again.trace.tier == "l1"  # the same question, from the cache: no layer ran
    assert probed(again.trace) == {5: "pruned"}


def test_off_they_are_plain_text(model: ScriptedModel) -> None:
    answer = CognitiveRouter(llm=model).ask(ASKED)
    assert "<LAYER_TEST:17>" in str(model.calls[0].prompt)
    assert probed(answer.trace) == {}


@pytest.mark.parametrize("text", ["hi <LAYER_TEST:30>", "<LAYER_TEST:3> <LAYER_TEST:4>"])
def test_a_layer_that_is_not_there_or_an_empty_question_is_refused(model: ScriptedModel, text: str) -> None:
    with pytest.raises(InvalidRequest):
        CognitiveRouter(llm=model, layer_probe=True).ask(text)


@given(st.text(min_size=1).filter(lambda text: text.strip() and "<LAYER_TEST:" not in text))
def test_what_holds_no_mark_is_left_as_it_is(text: str) -> None:
    request = Request.of(text) if not any("\ud800" <= c <= "\udfff" for c in text) else Request.of("x")
    assert take_probes(request, 30) == (request, ())
