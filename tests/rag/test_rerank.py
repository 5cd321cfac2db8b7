import numpy as np
import pytest

from shoal.rag import KnowledgeBase, ModelError
from shoal.rag.reading import Reading, default_reader, match
from shoal.rag.rerank import LightReranker, network


def test_scores_are_chances_and_the_answering_passage_is_first(base: KnowledgeBase) -> None:
    reranker = LightReranker(default_reader())
    for question, doc_id in (("How heavy is a blue whale?", "whales.txt"), ("公司有多少员工？", "company.txt")):
        found = base.candidates(question)
        scores = reranker(question, found)
        assert scores.shape == (len(found),)
        assert ((scores >= 0) & (scores <= 1)).all()
        assert found[int(scores.argmax())].row.doc_id == doc_id
    assert reranker("anything", []).shape == (0,)


def test_an_unrelated_question_scores_low(base: KnowledgeBase) -> None:
    asked = base.search("How heavy is a blue whale?", 1)[0].score
    assert base.search("Which team won the 2006 basketball final?", 1)[0].score < asked


def test_a_reading_survives_packing() -> None:
    reader = default_reader()
    (reading,) = reader.read(
        [("Opening hours", "The shop opens at nine. 周日休息。\n\n| a | b |\n|---|---|\n| 1 | 2 |")]
    )
    packed = reading.pack()
    again = Reading.unpack(packed)
    assert Reading.unpack(bytes(bytearray(packed))) is again  # met again with the next question
    np.testing.assert_array_equal(again.spans, reading.spans)
    np.testing.assert_allclose(again.tokens, reading.tokens, atol=0.02)
    asked = reader.ask("When does the shop open?")
    assert abs(match(asked, again).passage - match(asked, reading).passage) < 0.01
    assert match(asked, again).late.argmax() == match(asked, reading).late.argmax() == 1


def test_any_text_can_be_read() -> None:
    for text in ("x", "\n\n#\n", "中" * 5000, "a. " * 3000, "🙂", "```\ncode\n```"):
        (reading,) = default_reader().read([("", text)])
        assert np.isfinite(match(default_reader().ask("多少？"), reading).late).all()


def test_weights_that_do_not_fit_say_so() -> None:
    with pytest.raises(ModelError, match="features"):
        network(np.zeros((2, 3)), default_reader().weights, "rerank")


def test_other_vectors_leave_the_reader_as_it_is(base: KnowledgeBase) -> None:
    unread = base.candidates("公司有多少员工？")
    scores = LightReranker(default_reader())("公司有多少员工？", unread)
    base._readings._current = False
    try:
        fresh = LightReranker(default_reader())("公司有多少员工？", base.candidates("公司有多少员工？"))
    finally:
        base._readings._current = True
    np.testing.assert_allclose(scores, fresh, atol=0.05)
