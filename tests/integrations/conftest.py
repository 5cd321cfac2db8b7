"""A small knowledge base, and routers around the real model and around a scripted one."""

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import Any

import pytest

from shoal import CognitiveRouter, GatedLLM, KnowledgeBase, default_embedder
from shoal.gated_llm.errors import BudgetError
from shoal.gated_llm.policy import Budget
from shoal.gated_llm.report import Chunk, DepthReport, Usage
from shoal.router.decider import Decider

PAGES = {
    "hours.md": "# Opening hours\n\nThe library opens at nine in the morning on weekdays. On Sundays it stays closed.",
    "cards.md": "# Cards\n\nA library card costs five euros a year. Children under twelve get theirs for free.",
    "rooms.md": "# Rooms\n\nThe reading room on the third floor seats forty people. Phones must be silent there.",
    "zh.md": "# 借书\n\n每位读者最多可以借十本书，借期为四个星期。",
}


class ScriptedLLM:
    """A model with the router's face of one (`router.deep.Deep`) that says what it was told to, word by word.

    For what is about frameworks and not about text (order, cancellation, metadata); real text needs the real model.
    """

    name, total, min_depth, context, fingerprint = "scripted", 30, 15.0, 2048, "scripted-1"

    def __init__(self, text: str = "It is forty two.", *, pause_s: float = 0.0) -> None:
        self.text, self.pause_s = text, pause_s
        self.prompts: list[Any] = []
        self.made = 0  # words of all answers
        self.cancelled = Event()

    def resolve_budget(self, max_depth: int | str) -> Budget:
        if isinstance(max_depth, int) and not 15 <= max_depth <= 30:
            raise BudgetError(f"max_depth is {max_depth}; this model takes 15 to 30")
        depth = float(max_depth) if isinstance(max_depth, int) else 30.0
        return Budget(depth=depth, total=30, requested=max_depth, dropped=0 if depth == 30 else 1)

    def count_tokens(self, prompt: Any) -> int:
        turns = [{"content": prompt}] if isinstance(prompt, str) else prompt
        return sum(len(turn["content"].split()) for turn in turns)

    def stream(
        self, prompt: Any, *, max_depth: int | str = "auto", cancel: Event | None = None, **sampling: Any
    ) -> Iterator[Chunk]:
        self.prompts.append(prompt)
        budget, words = self.resolve_budget(max_depth).depth, self.text.split(" ")
        for i, word in enumerate(words):
            if cancel is not None and cancel.is_set():
                self.cancelled.set()
                yield self._chunk("", i, budget, prompt, "cancelled")
                return
            time.sleep(self.pause_s)
            self.made += 1
            yield self._chunk(word if i == 0 else f" {word}", i + 1, budget, prompt)
        yield self._chunk("", len(words), budget, prompt, "stop")

    def _chunk(self, text: str, made: int, budget: float, prompt: Any, reason: str | None = None) -> Chunk:
        report = DepthReport(
            total=30, budget=budget, prefill=30.0, per_token=(budget,) * made, branch_runs=((made, made),) * 30,
            policy="plan", gate_fingerprint="none",
        )  # fmt: skip
        if reason is None:
            return Chunk(text=text, depth=report)
        read = self.count_tokens(prompt)
        usage = Usage(prompt_tokens=read, completion_tokens=made, layer_tokens=30.0 * read + budget * made)
        return Chunk(text=text, depth=report, finish_reason=reason, usage=usage, confidence=0.9)

    def generate(self, prompt: Any, **options: Any) -> Chunk:
        *_, last = self.stream(prompt, **options)
        return last

    def get_layer_health(self) -> Sequence[Any]:
        return ()

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    with KnowledgeBase.open(tmp_path_factory.mktemp("kb")) as opened:
        for name, text in PAGES.items():
            opened.add_text(text, name)
        yield opened


@pytest.fixture(scope="session")
def decider() -> Decider:
    """One for all: making one embeds every prototype of the guard."""
    return Decider(default_embedder())


@pytest.fixture(scope="session")
def bare(llm: GatedLLM, decider: Decider) -> CognitiveRouter:
    """The default model behind a router with nothing else."""
    return CognitiveRouter(llm=llm, decider=decider)


@pytest.fixture(scope="session")
def script(decider: Decider) -> Callable[..., tuple[ScriptedLLM, CognitiveRouter]]:
    """`script("what to say", pause_s=0.0)` makes a scripted model and a router around it and nothing else."""

    def make(text: str, **more: Any) -> tuple[ScriptedLLM, CognitiveRouter]:
        llm = ScriptedLLM(text, **more)
        return llm, CognitiveRouter(llm=llm, decider=decider)

    return make


@pytest.fixture
def scripted() -> ScriptedLLM:
    return ScriptedLLM()


@pytest.fixture
def router(scripted: ScriptedLLM, kb: KnowledgeBase, decider: Decider) -> CognitiveRouter:
    """All parts real but the text, which is scripted."""
    return CognitiveRouter(llm=scripted, kb=kb, decider=decider)


@pytest.fixture
def plain(scripted: ScriptedLLM, decider: Decider) -> CognitiveRouter:
    """No knowledge base: every question is for the scripted model."""
    return CognitiveRouter(llm=scripted, decider=decider)
