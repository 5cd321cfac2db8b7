"""A scripted model with the face the pipeline asks for: counts its generations and can be unsure, slow or failing."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shoal import default_embedder
from shoal.cache import same_question
from shoal.gated_llm import Chunk, DepthReport, Usage
from shoal.gated_llm.policy import Budget, Plan, resolve_budget
from shoal.router.faq import Entry, Faq

TOTAL = 30
PLAN = Plan.from_order(
    [("mlp", i) for i in range(20)], [0.01 * (i + 1) for i in range(20)], total=TOTAL, attention_share=0.25,
    model_fingerprint="scripted",
)  # fmt: skip


HARD = "Prove that the sum of two odd numbers is even, and explain each step of the proof."


class ScriptedModel:
    """Says `says` word by word; `confidence` is asked for each budget."""

    name, total, min_depth, context, fingerprint = "scripted", TOTAL, PLAN.min_depth, 2048, "scripted-1"
    order = PLAN

    def __init__(self) -> None:
        self.says = "It is so."
        self.finish = "stop"
        self.confidence: dict[float, float] = {}
        self.delay_s = 0.0
        self.fails = False
        self.calls: list[SimpleNamespace] = []
        self.closed = False

    def resolve_budget(self, max_depth: int | str = "auto") -> Budget:
        return resolve_budget(max_depth, self.order, quality=0.003)

    def count_tokens(self, prompt: Any) -> int:
        return len(str(prompt).split())

    def stream(self, prompt: Any, **settings: Any) -> Iterator[Chunk]:
        budget = self.resolve_budget(settings["max_depth"])
        self.calls.append(SimpleNamespace(prompt=prompt, budget=budget.depth, **settings))
        if self.fails:
            raise RuntimeError("the model broke")
        return self._chunks(budget, settings["cancel"])

    def _chunks(self, budget: Budget, cancel: threading.Event) -> Iterator[Chunk]:
        depth = self.order.depth_at(budget.dropped)
        made, reason = 0, self.finish
        for word in self.says.split(" "):
            if cancel.is_set():
                reason = "cancelled"
                break
            time.sleep(self.delay_s)
            made += 1
            yield Chunk(text=word if made == 1 else f" {word}", depth=self._report(budget, depth, made))
        usage = Usage(prompt_tokens=7, completion_tokens=made, layer_tokens=made * depth)
        yield Chunk(
            text="", depth=self._report(budget, depth, made), finish_reason=reason, usage=usage,
            confidence=self.confidence.get(budget.depth, 0.9),
        )  # fmt: skip

    def _report(self, budget: Budget, depth: float, made: int) -> DepthReport:
        return DepthReport(
            total=TOTAL, budget=budget.depth, prefill=30.0, per_token=(depth,) * made,
            branch_runs=((made, made),) * TOTAL, policy=budget.policy, gate_fingerprint="g",
        )  # fmt: skip

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
def faq() -> Faq:
    return Faq(
        [
            Entry(id="night", question="How do I turn on dark mode?", answer="Open Settings, then Display."),
            Entry(id="return", question="Can I return a lamp within 30 days?", answer="Yes, within 30 days."),
            Entry(id="zh", question="怎么修改密码？", answer="在设置里点“修改密码”。"),
        ],
        embed=default_embedder(),
        conflict=same_question(default_embedder()),
    )
