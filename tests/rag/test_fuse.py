from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.rag import KnowledgeBase
from shoal.rag.chunk import Span
from shoal.rag.claims import claim
from shoal.rag.embed import default_embedder
from shoal.rag.fuse import fuse
from shoal.rag.reading import default_reader
from shoal.rag.retrieve import Hit
from shoal.rag.words import length

SENTENCES = st.sampled_from(
    [
        "The pump weighs 40 kg.",
        "泵的重量是40公斤。",
        "It runs on weekdays! ",
        "它在周末停机。\n",
        "# Heading\n",
        "The pump weighs 41 kg. ",
        "The pump does not weigh 40 kg. ",
        "| kW | 15 |\n",
        "\n\n",
        "word " * 30,
        "没有标点的一段话" * 6,
    ]
)
TEXTS = st.lists(SENTENCES, min_size=1, max_size=8).map("".join).filter(str.strip)


def hit(text: str, number: int, start: int = 0) -> Hit:
    span = Span(start, start + len(text))
    return Hit(text=text, doc_id=f"d{number}", span=span, score=0.9 - 0.1 * number, chunk_id=f"c{number}")


@settings(deadline=None, max_examples=40)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.integers(20, 200), st.integers(0, 50), st.booleans())
def test_every_piece_is_a_substring_of_the_span_it_cites(
    texts: list[str], budget: int, offset: int, read: bool
) -> None:
    hits = [hit(text, number, offset) for number, text in enumerate(texts)]
    reader = default_reader() if read else None
    if reader is not None:
        readings = reader.read([("", text) for text in texts])
        hits = [replace(one, reading=reading) for one, reading in zip(hits, readings, strict=True)]
    sources = {one.doc_id: " " * offset + one.text for one in hits}
    context = fuse(
        "泵有多重？", hits, embed=default_embedder(), token_budget=budget, count_tokens=length, reader=reader
    )
    for piece in context.pieces:
        assert sources[piece.doc_id][piece.span.start : piece.span.end] == piece.text
        assert str(piece) in context.text
    assert context.tokens == length(context.text)
    assert len(context.kept) + len(context.dropped) == len(hits)
    assert context.tokens <= budget or len(context.pieces) == 1


def test_what_is_said_twice_is_told_once_and_other_numbers_stay() -> None:
    texts = ["泵的重量是40公斤。它很重。", "泵的重量是40公斤。", "泵的重量是41公斤。"]
    context = fuse(
        "泵有多重？",
        [hit(t, i) for i, t in enumerate(texts)],
        embed=default_embedder(),
        token_budget=400,
        count_tokens=length,
    )
    assert context.text.count("40公斤") == 1
    assert context.text.count("41公斤") == 1
    assert [one.reason for one in context.dropped] == ["duplicate"]


def test_context_of_a_knowledge_base(base: KnowledgeBase) -> None:
    context = base.context("When does the shop open?", k=4, token_budget=60)
    assert context.tokens <= 60
    assert "[hours.md, " in context.text
    assert "9 am" in context.text
    assert {one.reason for one in context.dropped} <= {"score", "budget", "duplicate"}
    chinese = base.context("公司的总部在哪里？", token_budget=80, count_tokens=len)
    assert "上海" in chinese.text
    assert chinese.tokens == len(chinese.text)


def test_the_best_passage_is_in_even_when_nothing_fits(base: KnowledgeBase) -> None:
    context = base.context("How heavy is a blue whale?", token_budget=1)
    assert len(context.pieces) == 1
    assert context.kept[0].doc_id == "whales.txt"


@pytest.mark.parametrize(
    ("question", "texts", "marked"),
    [
        (
            "How heavy is the pump?",
            ["It is blue. The pump weighs 40 kg.", "Parking is free.", "It was made in Rome. The pump weighs 41 kg."],
            ["[d0, 12-34 ≠ d2, 21-43] The pump weighs 40 kg.", "[d2, 21-43 ≠ d0, 12-34] The pump weighs 41 kg."],
        ),
        (
            "商店周日营业吗？",
            ["停车免费。商店周日营业。", "商店周日不营业。"],
            ["[d0, 5-12 ≠ d1, 0-8] 商店周日营业。", "[d1, 0-8 ≠ d0, 5-12] 商店周日不营业。"],
        ),
    ],
)
def test_conflicts_stand_side_by_side_and_name_each_other(question: str, texts: list[str], marked: list[str]) -> None:
    hits = [hit(text, number) for number, text in enumerate(texts)]
    context = fuse(question, hits, embed=default_embedder(), token_budget=400, count_tokens=length)
    assert "\n".join(marked) in context.text
    assert {one.doc_id for one in context.kept} >= {"d0", f"d{len(texts) - 1}"}
    alone = fuse(question, hits, embed=default_embedder(), token_budget=14, count_tokens=length)
    assert "≠" not in alone.text  # where there is room for one only, no mark points to what is not there


def test_of_near_duplicates_the_one_closest_to_the_question_stays() -> None:
    texts = ["The museum in the old town opens at nine.", "At nine the museum in the old town opens its doors."]
    hits = [hit(text, 1) for text in texts]
    for question, kept in (("When does the museum open its doors?", texts[1]), (texts[0], texts[0])):
        context = fuse(question, hits, embed=default_embedder(), token_budget=400, count_tokens=length)
        assert [piece.text for piece in context.pieces] == [kept]
    ranked = [replace(hits[0], score=0.9), replace(hits[1], score=0.1)]  # whatever the passages' scores
    context = fuse(texts[1], ranked, embed=default_embedder(), token_budget=400, count_tokens=length)
    assert [piece.text for piece in context.pieces] == [texts[1]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Temperature is -5 degrees.", "Temperature is 5 degrees."),
        ("The valve is on at night.", "The valve is off at night."),
        ("The dog bit the man.", "The man bit the dog."),
        ("小明打了小红。", "小红打了小明。"),
        ("The train leaves from track 3 to track 5.", "The train leaves from track 5 to track 3."),
        ("阀门在夜里是开的。", "阀门在夜里是关的。"),
    ],
)
def test_what_is_said_the_other_way_round_is_no_repetition(one: str, other: str) -> None:
    assert not claim(one).repeats(claim(other))
    assert not claim(other).repeats(claim(one))
    assert claim(one).repeats(claim(one))
