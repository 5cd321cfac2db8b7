"""Long documents: nothing is left out, nothing is too long, and every segment reports its own depth (G11)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.gated_llm import GatedLLM, PromptError
from shoal.gated_llm.segments import read_long, split


@given(text=st.text(alphabet="ab .\n!鱼。\u2028", min_size=1, max_size=400), most=st.integers(8, 90))
@settings(max_examples=60, deadline=None)
def test_parts_hold_the_whole_text_in_order_and_fit(tiny: GatedLLM, text: str, most: int) -> None:
    parts = split(tiny, text, most)
    assert "".join(parts) == text
    assert all(tiny.count_tokens(part, raw=True) <= most for part in parts[:-1] if part.strip())


def test_every_segment_answers_and_the_answers_are_combined(tiny: GatedLLM) -> None:
    document = "The tide came in. The boats went out.\n" * 30  # over twice the tiny model's context
    seen: list[float] = []
    made = read_long(
        tiny, document, "What came in?", max_tokens=8, max_depth=5, progress=lambda what, done, total: seen.append(done)
    )
    assert len(made.segments) > 2
    assert made.text == made.rounds[-1].text
    assert all(one.depth.max <= 5 for one in (*made.segments, *made.rounds))
    assert made.usage.layer_tokens == pytest.approx(
        sum(one.usage.layer_tokens for one in (*made.segments, *made.rounds))
    )
    assert len(made.to_dict()["segments"]) == len(made.segments)
    assert seen[: len(made.segments)] == [float(n) for n in range(1, len(made.segments) + 1)]
    assert read_long(tiny, document, "What came in?", max_tokens=8, max_depth=5).text == made.text


def test_a_short_document_takes_one_pass(tiny: GatedLLM) -> None:
    made = read_long(tiny, "The tide came in.", "What came in?", max_tokens=4)
    assert (len(made.segments), made.rounds) == (1, ())


@pytest.mark.parametrize(("document", "question"), [("", "What?"), ("Text.", " "), ("Text.", "What? " * 90)])
def test_what_cannot_be_read(tiny: GatedLLM, document: str, question: str) -> None:
    with pytest.raises(PromptError):
        read_long(tiny, document, question)
