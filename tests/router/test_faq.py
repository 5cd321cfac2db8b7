import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cache import same_question
from shoal.rag.embed import default_embedder
from shoal.router.errors import RouterError
from shoal.router.faq import Entry, Faq, Scoring, overlap, read_entries
from shoal.router.features import FloatArray, language_of

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
        ("a.csv", "question,reply\nx,y\n", "row 1: no column answer"),
        ("a.csv", "question;answer\nx;y\n", "row 1: no column question and no column answer"),
        ("a.csv", "question,answer,answer\nx,y,z\n", "row 1: two columns answer"),
        ("a.csv", "question,answer\nx,\n", "row 2"),
        ("a.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("a.jsonl", "{oops\n", "line 1"),
        ("a.txt", "x", "imported from"),
        ("a.csv", 'question,answer\nq1?,"open\nq2?,b\n', "row 2, from line 2 on: .*quote is left open"),
        ("a.csv", 'question,answer\n"q\n1?",a\nq2?,"a "quoted" word"\n', "row 3, from line 4 on"),
        ("a.csv", f"question,answer\nx?,{'y' * 140_000}\n", "row 2, from line 2 on: field larger"),
        ("a.csv", "question,answer\nx?,y, and z\n", "row 2: 3 columns, but 2 headings"),
        ("a.csv", "question,answer\nonly\n", "row 2: no answer"),
        ("a.csv", "", "no entry in it; the first row names"),
        ("a.jsonl", "\n", "no entry in it; each line is"),
        ("a.md", "no headings at all\n", "no entry in it; give each question a heading"),
        ("a.md", "## Q?\n```\ncode\n## R?\nanswer\n", "line 2: the code block"),
        ("a.jsonl", "[" * 100_000 + "\n", "line 1: not a JSON object"),
        ("a.jsonl", '{"question": {"a": 1}, "answer": "x"}\n', "line 1: question must be text, not dict"),
        ("a.jsonl", '{"question": "x", "answer": ["x"]}\n', "line 1: answer must be text, not list"),
        ("a.jsonl", '{"question": "x", "answer": false}\n', "line 1: answer must be text, not bool"),
        ("a.jsonl", '{"question": "x", "answer": "y", "id": true}\n', "line 1: id must be text"),
        ("a.jsonl", '\n{"question": "x", "answer": "y", "alternatives": 5}\n', "line 2: alternatives must be a list"),
        ("a.jsonl", '{"question": "x", "answer": "y", "alternatives": {"x": 1}}\n', "alternatives must be a list"),
        (
            "a.jsonl",
            '{"question": "x", "answer": "y", "alternatives": [{"x": 1}]}\n',
            "each of alternatives must be text",
        ),
        ("a.jsonl", '{"question": "x", "answer": "y", "tags": true}\n', "tags must be a list"),
        ("a.jsonl", '{"question": "\\ud800?", "answer": "y"}\n', "line 1: question holds half a character"),
        ("a.jsonl", '{"question": "x", "answer": "\\ud800"}\n', "line 1: answer holds half a character"),
        (
            "a.jsonl",
            '{"question": "To Mars?", "answer": "No."}\n{"question": "to mars", "answer": "Yes."}\n',
            "line 2: the same question as .*line 1, but another answer",
        ),
        (
            "a.csv",
            "question,answer,id\nTo Mars?,No.,a\nTo Mars?,Yes.,b\n",
            "row 3: the same question as .*row 2, but another answer",
        ),
        ("a.csv", "question,answer,id\nOne?,x,a\nTwo?,x,a\n", "row 3: the same id as .*row 2"),
    ],
)
def test_wrong_files_name_the_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(RouterError, match=message):
        read_entries(tmp_path / name)
    with pytest.raises(RouterError, match="No such file"):
        read_entries(tmp_path / "gone.csv")


def test_what_looks_like_an_end_of_line_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        'question,answer,,\n\nWhat is A?,one\u2028two,,\n"B\r\n?","x\n\ny"\n', "utf-8", newline=""
    )
    first, second = read_entries(tmp_path / "a.csv")
    assert (first.answer, second.question, second.answer) == ("one\u2028two", "B\n?", "x\n\ny")
    (tmp_path / "a.jsonl").write_text(
        '{"id": 7, "question": "LS?", "answer": "a\u2028b\x85c", "tags": null}\n', "utf-8"
    )
    (only,) = read_entries(tmp_path / "a.jsonl")
    assert (only.id, only.answer, only.tags) == ("7", "a\u2028b\x85c", ())


def test_headings_in_a_code_block_are_code(tmp_path: Path) -> None:
    code = "Run:\n\n~~~~sh\n# not a heading\n~~~\n```\n~~~~\n\nThen `x`.\n```one line```"
    (tmp_path / "a.md").write_text(f"# How?\n{code}\n\n# And then?\nDone.\n", "utf-8")
    how, then = read_entries(tmp_path / "a.md")
    assert (how.question, how.answer) == ("How?", code)
    assert (then.question, then.answer) == ("And then?", "Done.")


def test_the_same_entry_twice_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,answer,alternatives\nPay?,Card.,a\npay,Card.,b\n", "utf-8")
    (only,) = read_entries(tmp_path / "a.csv")
    assert (only.question, only.alternatives) == ("Pay?", ("a", "b"))


def test_what_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faq = Faq.open(tmp_path, embed=default_embedder())
    faq.add(ENTRIES[:1])
    with pytest.raises(RouterError, match="half a character"):
        faq.add([ENTRIES[1], Entry(question="ok?", answer="\ud800")])
    with pytest.raises(RouterError, match="alternatives must be a list of texts"):
        faq.add([Entry(question="ok?", answer="ok", alternatives="ok")])  # type: ignore[arg-type]

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        with pytest.raises(OSError, match="no space"):
            faq.add(ENTRIES[1:])
        with pytest.raises(OSError, match="no space"):
            faq.delete(ENTRIES[0].id)
    assert faq.entries() == (ENTRIES[0],)
    assert [path.name for path in tmp_path.iterdir()] == ["faq.jsonl"]
    assert faq.add(ENTRIES[1:2]).added == 1
    assert faq.match("How do I turn on dark mode?") is not None


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


class _Scattered:
    """Vectors drawn from a text's hash, all near one direction, so that many entries are close to a question."""

    fingerprint = "scattered"

    def __call__(self, texts: Sequence[str], /) -> FloatArray:
        rows = np.array([np.random.default_rng(zlib.crc32(text.encode())).normal(0, 0.12, 8) for text in texts])
        rows = rows.reshape(-1, 8) + np.eye(8)[0]
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([f"{word} {i}" for word in ("pay", "pays now", "付款") for i in range(6)]), max_size=12),
    st.sampled_from(["pay 1", "how to pay", "怎么付款", "付款 3"]),
    st.integers(0, 3),
    st.floats(0.1, 0.97),
)
def test_what_is_not_looked_at_changes_nothing(asked: list[str], text: str, salt: int, threshold: float) -> None:
    entries = [
        Entry(id=f"e{i % 5}{one}", question=one, answer=f"answer {i}", alternatives=tuple(asked[i + 1 : i + 2]))
        for i, one in enumerate(asked)
    ]
    scoring = replace(Scoring.shipped(), threshold=threshold)
    looked: list[str] = []

    def conflict(a: str, b: str) -> str | None:
        looked.append(b)
        return "no" if zlib.crc32(f"{a}{b}{salt}".encode()) % 3 == 0 else None

    faq = Faq(entries, embed=_Scattered(), conflict=conflict, scoring=scoring)
    found = faq.match(text)
    few = len(looked)
    chances = [(one, one.probability(scoring)) for one in faq.candidates(text)]
    able = [(one.entry.language == language_of(text), chance, one) for one, chance in chances if chance >= threshold]
    wanted = max(able, key=lambda one: one[:2])[2] if able else None
    assert (found and (found.entry_id, found.matched)) == (wanted and (wanted.entry.id, wanted.phrasing))
    assert few <= len(looked) - few


def test_strangers_are_told_apart_without_a_second_look() -> None:
    def conflict(a: str, b: str) -> str | None:
        raise AssertionError("no phrasing is near enough to be an answer")

    faq = Faq(ENTRIES, embed=default_embedder(), conflict=conflict)
    assert faq.match("Tell me a joke about penguins") is None


def test_overlap_and_empty_parts() -> None:
    assert overlap("How do I pay by card?", "pay with a card") == 1.0
    assert overlap("怎么付款", "How to pay") == 0.3
    with pytest.raises(RouterError, match="question and an answer"):
        Entry(question=" ", answer="x")
    assert Faq(embed=default_embedder()).match("anything") is None
