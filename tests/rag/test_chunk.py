import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.rag.chunk import Splitter, sentences, units
from shoal.rag.words import length

PIECES = st.sampled_from(
    [
        "One sentence here. ",
        "他说：“今天很好！”然后走了。",
        "数据为3.14，成立于1998年。",
        "\n\n",
        "\n",
        "# Title\n",
        "## 标题\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "```python\nx = 1. # y\n\nz\n```\n",
        "Dr. Smith paid $3.50! ",
        "- item\n",
        "word " * 40,
        "很长的一段没有标点的文字" * 8,
        "\r\n",
        "\u3000",
        "🙂",
        "e.g. this vs. that? ",
    ]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)


def parts(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


def test_english_sentences() -> None:
    text = 'Dr. Smith went to the U.S. in 1999. He paid $3.50! "Really?" she asked. It works, e.g. here.'
    assert parts(text) == [
        "Dr. Smith went to the U.S. in 1999.", "He paid $3.50!", '"Really?" she asked.', "It works, e.g. here.",
    ]  # fmt: skip


def test_chinese_sentences() -> None:
    assert parts("你好。今天天气很好！“真的吗？”他问。是的……") == [
        "你好。",
        "今天天气很好！",
        "“真的吗？”他问。",
        "是的……",
    ]


def test_headings_and_code_are_no_sentences_and_rows_are() -> None:
    text = "# 标题\n\n| 城市 | 人口 |\n|---|---|\n| 上海 | 2487万 |\n\n```\nprint('a. b')\n```\n正文。"
    assert parts(text) == ["| 城市 | 人口 |", "| 上海 | 2487万 |", "正文。"]


def test_code_and_tables_stay_whole_and_headings_start_chunks() -> None:
    text = "# A\n\nOne. Two.\n\n## B\n\n```\na. b\n\nc\n```\n\n| x | y |\n|---|---|\n| 1 | 2 |\n"
    chunks = Splitter(size=20).split(text, "doc")
    assert [chunk.heading for chunk in chunks][:2] == ["A", "A > B"]
    assert any("```\na. b\n\nc\n```" in chunk.text for chunk in chunks)
    assert any("| x | y |\n|---|---|\n| 1 | 2 |" in chunk.text for chunk in chunks)


@settings(deadline=None)
@given(TEXTS, st.sampled_from([16, 40, 256]))
def test_spans_are_exact_ordered_and_lose_no_word(text: str, size: int) -> None:
    chunks = Splitter(size=size).split(text, "doc")
    last = 0
    for chunk in chunks:
        assert text[chunk.start : chunk.end] == chunk.text
        assert chunk.start >= last
        assert not text[last : chunk.start].strip()
        last = chunk.end
    assert not text[last:].strip()
    assert len({chunk.chunk_id for chunk in chunks}) == len(chunks)


@settings(deadline=None)
@given(TEXTS)
def test_sentences_are_trimmed_substrings_in_order(text: str) -> None:
    last = 0
    for start, end in sentences(text):
        assert last <= start < end
        assert text[start:end] == text[start:end].strip()
        last = end
    assert [unit.start for unit in units(text)] == sorted(unit.start for unit in units(text))


def test_an_endless_sentence_is_cut() -> None:
    for text in ("word " * 400, "字" * 900, "a" * 5000):
        chunks = Splitter(size=64).split(text, "doc")
        assert all(length(chunk.text) <= 64 for chunk in chunks)


def test_ids_depend_on_text_document_and_splitter_only() -> None:
    text = "# A\n\nFirst part here.\n\n# B\n\nSecond part here.\n"
    changed = text.replace("First", "Another, longer")
    one, two = Splitter().split(text, "d"), Splitter().split(changed, "d")
    assert one == Splitter().split(text, "d")
    assert one[1].chunk_id == two[1].chunk_id
    assert one[0].chunk_id != two[0].chunk_id
    assert one[1].chunk_id != Splitter().split(text, "e")[1].chunk_id
    assert one[1].chunk_id != Splitter(size=100).split(text, "d")[1].chunk_id


def test_too_small_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        Splitter(size=3)
