import pytest

from shoal.rag import KnowledgeBase
from shoal.rag.extract import factual


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("When does the shop open on weekdays?", "9 am"),
        ("公司的总部设在哪里？", "上海"),
        ("离心泵的额定功率是多少？", "15千瓦"),
        ("Where does the Danube rise?", "Black Forest"),
    ],
)
def test_the_answering_sentence_verbatim_with_its_place(base: KnowledgeBase, question: str, answer: str) -> None:
    found = base.extract(question, threshold=0.3)
    assert found is not None
    assert answer in found.text
    document = base.document(found.doc_id)
    assert document is not None
    assert document.text[found.span.start : found.span.end] == found.text
    assert found.citation == f"[{found.doc_id}, {found.span.start}-{found.span.end}]"
    assert 0.3 <= found.confidence <= 1


@pytest.mark.parametrize(
    "question",
    ["Which team won the 2006 final?", "谁发明了电话？", "What is the melting point of iron?", "火星有几颗卫星？"],
)
def test_abstains_when_the_answer_is_not_there(base: KnowledgeBase, question: str) -> None:
    assert base.extract(question) is None


@pytest.mark.parametrize(
    "question",
    [
        "",
        "  ",
        "Write a poem about the shop.",
        "Why does the shop close early?",
        "请总结公司的情况。",
        "公司为什么设在上海？",
        "Please compare the two pumps.",
        "帮我写一封邮件",
        "x" * 500,
    ],
)
def test_tasks_and_whys_are_not_for_extraction(base: KnowledgeBase, question: str) -> None:
    assert not factual(question)
    assert base.extract(question, threshold=0.0) is None


def test_a_threshold_of_one_never_answers(base: KnowledgeBase) -> None:
    assert base.extract("When does the shop open on weekdays?", threshold=1.0) is None
