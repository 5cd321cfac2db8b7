"""What training reads: data sets, the user's own lines, words that ask for length, and texts kept for measuring."""

import gzip
import json
import random
from pathlib import Path

import pytest

from shoal.gated_llm import GatedError
from shoal.gated_llm.train import grounded_sources as sources
from shoal.gated_llm.train.grounded_sources import REFUSAL, Asked, Passage, asked_of
from shoal.gated_llm.train.recipe import Recipe, Source


def passage(text: str, *pairs: tuple[str, str], article: str = "a") -> Passage:
    asked = tuple(asked_of(question, answer) for question, answer in pairs)
    return Passage(text=text, asked=asked, article=article, source="x")


@pytest.mark.parametrize(
    ("question", "left", "hint", "guided"),
    [
        ("Who? <depth_hint:22>", "Who?", 22, False),
        ("<depth_hint: 7> Who?", "Who?", 7, False),
        ("Explain it step by step", "Explain it step by step", None, True),
        ("请详细说明", "请详细说明", None, True),
        ("Who came <depth_hint:x>?", "Who came <depth_hint:x>?", None, False),
    ],
)
def test_depth_hints_are_taken_out_and_guiding_words_marked(
    question: str, left: str, hint: int | None, guided: bool
) -> None:
    assert asked_of(question, "a") == Asked(question=left, answer="a", hint=hint, guided=guided)


def test_guided_questions_go_unless_their_depth_is_given() -> None:
    mixed = passage("T.", ("Who?", "a"), ("Say it in detail", "b"), ("Say it in detail <depth_hint:30>", "c"))
    assert [[one.answer for one in p.asked] for p in sources.unguided([mixed])] == [["a", "c"]]
    assert not list(sources.unguided([passage("T.", ("全面说明", "b"))]))


def test_passages_of_measuring_sets_are_dropped() -> None:
    text = "one two three four five six seven eight nine ten eleven twelve thirteen"
    near = f"Before it. {text.upper()}, and after"
    kept = list(sources.without([passage(near), passage("another text")], [f"{text}."]))
    assert [p.text for p in kept] == ["another text"]


def test_squad_answers_are_the_shortest_and_impossible_ones_refused(tmp_path: Path) -> None:
    questions = [
        {"question": "Who?", "answers": [{"text": "old Ann"}, {"text": "Ann"}], "is_impossible": False},
        {"question": "Why?", "answers": [], "is_impossible": True},
        {"question": "Lost?", "answers": [{"text": "not in it"}]},
    ]
    raw = {"data": [{"title": "A", "paragraphs": [{"context": "It was old Ann.", "qas": questions}]}]}
    (tmp_path / "s.json").write_text(json.dumps(raw), "utf-8")
    (found,) = sources.squad(tmp_path / "s.json", source="s")
    assert [one.answer for one in found.asked] == ["Ann", REFUSAL["en"]]
    assert sources.squad(tmp_path / "s.json", source="s", titles=["B"]) == []


def test_real_queries_need_a_gold_passage_that_holds_an_answer(tmp_path: Path) -> None:
    rows = [
        {"question": "who", "answers": ["Bo", "Ann"], "ctxs": [{"text": "Ann did.", "title": "T", "isgold": True}]},
        {"question": "who", "answers": ["Cy"], "ctxs": [{"text": "Ann did.", "title": "T", "isgold": True}]},
    ]
    with gzip.open(tmp_path / "nq.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(map(json.dumps, rows)))
    assert [p.asked[0].answer for p in sources.natural_questions(tmp_path / "nq.gz")] == ["Ann"]


def test_a_stray_question_is_refused() -> None:
    one, two = passage("Ann ran.", ("Who ran?", "Ann")), passage("Bo sat.", ("Who sat?", "Bo"))
    found = sources.mismatched([one, two] * 20, 1.0, random.Random(2))
    added = [p.asked[-1] for p in found if len(p.asked) == 2]
    assert added
    assert {one.answer for one in added} == {REFUSAL["en"]}


def test_long_passages_are_cut_at_sentences_and_keep_an_answer() -> None:
    text = " ".join(f"Sentence {n} is about thing{n}." for n in range(30))
    long = passage(text, *((f"thing {n}?", f"thing{n}") for n in range(30)))
    for seed in range(10):
        cut = sources.shortened(long, 120, random.Random(seed))
        assert cut is not None
        assert len(cut.text) <= 240
        assert all(one.answer in cut.text for one in cut.asked)


@pytest.mark.parametrize(
    "line", ["{", '{"prompt": "a"}', '{"prompt": "a", "answer": " "}', '{"passages": "p", "answer": "a"}', "[1]"]
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "d.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' + line, "utf-8")
    with pytest.raises(GatedError, match=r"d\.jsonl, line 2.*Each line needs"):
        sources.lines(tmp_path / "d.jsonl")


def test_an_empty_file_says_what_belongs_in_it(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("\n", "utf-8")
    with pytest.raises(GatedError, match="no examples"):
        sources.lines(tmp_path / "d.jsonl")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rank: 4", "needs a list `sources`"),
        ("sources: [{kind: squad, path: x}]\nrnak: 4", "unknown.*rnak"),
        ("sources: [{kind: squad}]", "path"),
        ("sources: [squad]", "must be a mapping"),
        ("a: [", "cannot be read as YAML"),
    ],
)
def test_a_bad_recipe_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.yaml").write_text(text, "utf-8")
    with pytest.raises(GatedError, match=said):
        Recipe.read(tmp_path / "r.yaml")


def test_the_shipped_recipe_reads() -> None:
    from shoal.gated_llm import train

    read = Recipe.read(Path(train.__path__[0]) / "configs" / "grounded.yaml")
    assert read.measured
    assert Source(kind="own", path="self_instruct/user_oriented_instructions.jsonl", limit=250) in read.sources
