"""Questions that keep coming become suggestions only where question and answer make sense alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.cache import DepthCache
from shoal.rag.embed import default_embedder
from shoal.router import CognitiveRouter
from shoal.router.promotion import Suggestion, suggestions
from shoal.router.traces import Recorder, TraceStore

from .conftest import TOTAL, ScriptedModel

PERSONA = {"role": "system", "content": "Answer as a pirate."}


class Shop:
    """A router that keeps traces and answers, whose model says what it is told to."""

    def __init__(self, home: Path) -> None:
        self.model = ScriptedModel()
        self.traces = TraceStore(home / "traces.sqlite")
        self.router = CognitiveRouter(
            llm=self.model,
            cache=DepthCache(embed=default_embedder(), cold_path=home / "cold", total=TOTAL),
            recorder=Recorder(self.traces, mode="light"),
        )

    def asked(self, prompt: Any, says: str, *, times: int = 3, **fields: Any) -> None:
        self.model.says = says
        for _ in range(times):
            self.router.ask(prompt, max_depth=TOTAL, **fields)

    def suggested(self) -> list[Suggestion]:
        log = self.router.cache.cold()
        assert log is not None
        return suggestions(self.traces, log, at_least=3)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.router.close()


def turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


QUESTION = "What is the capital of France?"


def test_a_question_asked_alone_is_suggested(shop: Shop) -> None:
    shop.asked(QUESTION, "Paris.")
    assert shop.suggested() == [Suggestion(question=QUESTION, answer="Paris.", times=3)]


@pytest.mark.parametrize(
    "prompt",
    [
        turns("hi", "hello", "yes"),
        [PERSONA, {"role": "user", "content": QUESTION}],
        turns("hi", "hello", QUESTION),
        "How much does it weigh?",
    ],
)
def test_what_leans_on_something_else_is_not(shop: Shop, prompt: Any) -> None:
    shop.asked(prompt, "It depends.")
    assert shop.suggested() == []


def test_neither_count_nor_answer_comes_from_a_conversation(shop: Shop) -> None:
    shop.asked(QUESTION, "Paris.", times=2)
    shop.asked([PERSONA, {"role": "user", "content": QUESTION}], "Paree, arr.")
    shop.asked(turns("hi", "hello", QUESTION), "As I said, Paris.")
    assert shop.suggested() == []
    shop.asked(QUESTION, "Paris.", times=1)
    assert shop.suggested() == [Suggestion(question=QUESTION, answer="Paris.", times=3)]


def test_depth_tags_are_no_part_of_a_question(shop: Shop) -> None:
    shop.asked(f"{QUESTION} <depth_hint:30>", "Paris.", times=2)
    shop.asked(QUESTION, "Paris.", times=2)
    assert shop.suggested() == [Suggestion(question=QUESTION, answer="Paris.", times=4)]


def test_the_command_says_what_is_missing(
    shoal: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, message in (("gone/new.jsonl", "there is no folder gone: make it"), (".", "is a folder")):
        code, _, err = shoal("faq", "suggest", "--out", place)
        assert (code, message in err) == (1, True)
    assert not (tmp_path / "gone").exists()
    monkeypatch.setenv("SHOAL_COLD_LOG", "false")
    code, _, err = shoal("faq", "suggest")
    assert (code, "set cold_log (SHOAL_COLD_LOG) to true" in err) == (1, True)
