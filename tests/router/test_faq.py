import json
from pathlib import Path

import pytest

from shoal.cache import same_question
from shoal.rag.embed import default_embedder
from shoal.router.errors import RouterError
from shoal.router.faq import Entry, Faq, overlap, read_entries

ENTRIES = [
    Entry(
        question="How do I reset my password?",
        answer="Use the link on the login page.",
        alternatives=("I forgot my password",),
    ),
    Entry(question="How do I turn on dark mode?", answer="Settings, Display, Dark."),
    Entry(question="How long does delivery take?", answer="Three days."),
    Entry(question="退货需要几天？", answer="七天之内都可以退货。", alternatives=("多久可以退货",)),
    Entry(question="Can I return a product within 7 days?", answer="Yes, within seven days."),
]


@pytest.fixture
def faq() -> Faq:
    return Faq(ENTRIES, embed=default_embedder(), conflict=same_question(default_embedder()))


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("How do I reset my password?", "Use the link on the login page."),
        ("how do i reset my PASSWORD", "Use the link on the login page."),
        ("i forgot my password", "Use the link on the login page."),
        ("how do I turn dark mode on?", "Settings, Display, Dark."),
        ("多久可以退货？", "七天之内都可以退货。"),
    ],
)
def test_known_questions_are_answered(faq: Faq, asked: str, answer: str) -> None:
    match = faq.match(asked)
    assert match is not None
    assert match.answer == answer
    assert match.matched
    assert 0.5 < match.score <= 1.0


@pytest.mark.parametrize(
    "asked",
    [
        "How do I turn off dark mode?",
        "Can I return a product within 30 days?",
        "Can't I return a product within 7 days?",
        "What is the capital of France?",
        "Tell me a joke",
        "光合作用是什么",
        "",
    ],
)
def test_opposites_other_numbers_and_strangers_are_not(faq: Faq, asked: str) -> None:
    assert faq.match(asked) is None


def test_an_opposite_does_not_hide_the_right_entry() -> None:
    on, off = (Entry(question=f"How do I turn {way} dark mode?", answer=way) for way in ("on", "off"))
    faq = Faq([on, off], embed=default_embedder(), conflict=same_question(default_embedder()))
    match = faq.match("How can I turn off the dark mode?")
    assert match is not None
    assert match.answer == "off"


def test_the_language_of_the_question_is_preferred() -> None:
    pair = [
        Entry(question="How do I reset my password?", answer="Use the link."),
        Entry(question="怎么重置密码？", answer="点击链接。"),
    ]
    faq = Faq(pair, embed=default_embedder())
    for asked, answer in (("怎么重置密码", "点击链接。"), ("how do I reset my password", "Use the link.")):
        match = faq.match(asked)
        assert match is not None
        assert match.answer == answer


def test_a_given_vector_is_used(faq: Faq) -> None:
    text = "i forgot my password"
    assert faq.match(text, vector=default_embedder()([text])[0]) == faq.match(text)


CSV = "Question,answer,alternatives\nWhere is my order?,See Orders.,track order | order status\nHow to pay?,By card.,\n"
MARKDOWN = """# Help

## Where is my order?
Also: track order | order status

See *Orders*.

Two paragraphs.

## 怎么付款？
也问：如何支付
用卡。

## Empty heading
"""


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("a.csv", CSV, 2),
        ("a.jsonl", '{"question": "Where is my order?", "answer": "See.", "alternatives": ["track order"]}\n\n', 1),
        ("a.md", MARKDOWN, 2),
    ],
)
def test_import_is_idempotent(tmp_path: Path, name: str, text: str, count: int) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    faq = Faq.open(tmp_path / "faq", embed=default_embedder())
    first, second = faq.import_file(tmp_path / name), faq.import_file(tmp_path / name)
    assert (first.added, first.updated, first.unchanged) == (count, 0, 0)
    assert (second.added, second.updated, second.unchanged) == (0, 0, count)
    match = faq.match("track order")
    assert match is not None
    assert match.question == "Where is my order?"


def test_markdown_keeps_answers_whole(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(MARKDOWN, encoding="utf-8")
    order, pay = read_entries(tmp_path / "a.md")
    assert order.answer == "See *Orders*.\n\nTwo paragraphs."
    assert order.alternatives == ("track order", "order status")
    assert (pay.answer, pay.alternatives) == ("用卡。", ("如何支付",))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "question,reply\nx,y\n", "row 2: no answer"),
        ("a.csv", "question,answer\nx,\n", "row 2"),
        ("a.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("a.jsonl", "{oops\n", "line 1"),
        ("a.txt", "x", "imported from"),
    ],
)
def test_wrong_files_name_the_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(RouterError, match=message):
        read_entries(tmp_path / name)
    with pytest.raises(RouterError, match="No such file"):
        read_entries(tmp_path / "gone.csv")


def test_entries_live_on_disk_and_other_processes_see_changes(tmp_path: Path) -> None:
    first = Faq.open(tmp_path, embed=default_embedder())
    second = Faq.open(tmp_path, embed=default_embedder())
    first.add(ENTRIES)
    assert len(second) == len(ENTRIES)
    match = second.match("I forgot my password")
    assert match is not None
    assert second.delete(match.entry_id)
    assert not second.delete(match.entry_id)
    assert first.match("I forgot my password") is None
    assert [entry.id for entry in Faq.open(tmp_path, embed=default_embedder()).entries()] == [e.id for e in ENTRIES[1:]]
    lines = (tmp_path / "faq.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1])["question"] == ENTRIES[-1].question


def test_a_changed_answer_replaces_the_old_one(faq: Faq) -> None:
    report = faq.add([Entry(question="how do I reset my password", answer="Ask an admin.")])
    assert (report.added, report.updated) == (0, 1)
    match = faq.match("How do I reset my password?")
    assert match is not None
    assert match.answer == "Ask an admin."


def test_overlap_and_empty_parts() -> None:
    assert overlap("How do I pay by card?", "pay with a card") == 1.0
    assert overlap("怎么付款", "How to pay") == 0.3
    with pytest.raises(RouterError, match="question and an answer"):
        Entry(question=" ", answer="x")
    assert Faq(embed=default_embedder()).match("anything") is None
