"""R5 and R6 through the pipeline: a scripted conversation with a model that skips what its budget leaves out."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.gated_llm import DepthReport
from shoal.gated_llm.policy import Budget, Plan
from shoal.rag.embed import default_embedder
from shoal.router import CognitiveRouter
from shoal.router.conversation import State
from shoal.router.decider import Decider
from shoal.router.decision import Request, messages_of
from shoal.router.experience import Course, Courses, context_layers
from shoal.router.faq import Faq

from .conftest import TOTAL, ScriptedModel

ORDER = [("mlp", i) for i in range(4, 22)] + [("attention", i) for i in (3, 5, 8, 11, 12, 14)]  # down to 15 layers
DEEP_PLAN = Plan.from_order(
    ORDER, [0.01 * (i + 1) for i in range(len(ORDER))], total=TOTAL, attention_share=0.25, model_fingerprint="scripted",
)  # fmt: skip
TALK = (
    "My train to Porto leaves at 9:40 from platform 3, and I travel with my sister Ana.",
    "Ana is vegetarian. Which dishes of Porto could she try on the first evening there?",
    "We have 2 days. Plan both of them for us, with an hour by the river on each day.",
    "Please write a short and friendly message that tells Ana when we have to be at the station.",
    "Now compare the two days and tell me which of them is the harder one for us.",
    "And which of the two would you shorten if it rains, and why that one of them?",
    "Compose a second message to Ana that explains the plan for the rainy day.",
)


class SkippingModel(ScriptedModel):
    """Runs for every token what its plan leaves in at the budget."""

    plan = order = DEEP_PLAN
    min_depth = DEEP_PLAN.min_depth

    def _report(self, budget: Budget, depth: float, made: int) -> DepthReport:
        mask = DEEP_PLAN.mask(budget.dropped)
        return DepthReport(
            total=TOTAL, budget=budget.depth, prefill=30.0, per_token=(depth,) * made,
            branch_runs=tuple((made * a, made * m) for a, m in mask), policy=budget.policy, gate_fingerprint="g",
        )  # fmt: skip


@pytest.fixture(scope="module")
def decider() -> Decider:
    """One for all: making one embeds every prototype of the guard."""
    return Decider(default_embedder())


@pytest.fixture
def skipping() -> SkippingModel:
    return SkippingModel()


def converse(router: CognitiveRouter, budgets: Sequence[int]) -> list[Any]:
    """The last pieces of a conversation, one turn per budget."""
    messages, last = list[dict[str, str]](), []
    for text, budget in zip(TALK, budgets, strict=False):
        messages.append({"role": "user", "content": text})
        piece = list(router.ask_stream(messages, max_depth=budget))[-1]
        assert piece.answer is not None
        messages.append({"role": "assistant", "content": piece.answer.text})
        last.append(piece)
    return last


def test_states_come_as_events_in_the_stream_and_in_the_trace(skipping: SkippingModel, decider: Decider) -> None:
    low, high = int(DEEP_PLAN.min_depth), TOTAL
    last = converse(CognitiveRouter(llm=skipping, decider=decider), [low, low, low, high, high, high, low])
    assert [piece.event.state.value if piece.event else None for piece in last] == [
        None, None, "thinking_fast", "steady", None, "analysing_deeply", "steady",
    ]  # fmt: skip
    told = [json.loads(json.dumps(piece.answer.trace.to_dict())) for piece in last]
    assert [each["experience"] for each in told] == [
        "steady", "steady", "thinking_fast", "steady", "steady", "analysing_deeply", "steady",
    ]  # fmt: skip
    steps = [[step for step in each["steps"] if step["name"] == "experience"] for each in told]
    assert [len(found) for found in steps] == [0, 0, 1, 1, 0, 1, 1]
    assert steps[2][0]["detail"] == {"event": "state", "state": "thinking_fast", "skip_rates": [1.0, 1.0, 1.0]}


def test_earlier_turns_are_said_again_where_context_layers_are_skipped(
    skipping: SkippingModel, decider: Decider
) -> None:
    assert context_layers(skipping) == (11, 12, 14)
    low = int(DEEP_PLAN.min_depth)
    converse(CognitiveRouter(llm=skipping, decider=decider), [low] * 4)
    newest = [call.prompt[-1]["content"] for call in skipping.calls]
    assert [text.startswith("Said earlier in this conversation: ") for text in newest] == [False, False, True, True]
    assert "leaves at 9:40 from platform 3" in newest[3]
    assert newest[3].endswith(TALK[3])
    said = " ".join((*TALK[:3], *("It is so.",) * 3))
    summary = newest[3].removesuffix(TALK[3]).strip().removeprefix("Said earlier in this conversation: ")
    assert all(sentence.strip(" .") in said for sentence in summary.split(". "))


@pytest.mark.parametrize("budget", [24, 30])  # the plan leaves attention in down to 16.5 layers
def test_nothing_is_said_again_while_they_run(skipping: SkippingModel, decider: Decider, budget: int) -> None:
    converse(CognitiveRouter(llm=skipping, decider=decider), [budget] * 4)
    assert [call.prompt[-1]["content"] for call in skipping.calls] == list(TALK[:4])


def test_conversations_and_tenants_are_apart(skipping: SkippingModel, decider: Decider) -> None:
    router = CognitiveRouter(llm=skipping, decider=decider)
    low = int(DEEP_PLAN.min_depth)
    converse(router, [low] * 3)
    talk = [
        {"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(("Hi", "Hello", "Why?"))
    ]
    assert router.ask(talk, max_depth=low).trace.experience == "steady"
    known = [{"role": r, "content": c} for t in TALK[:3] for r, c in (("user", t), ("assistant", "It is so."))]
    more = [*known, {"role": "user", "content": TALK[3]}]
    assert router.ask(more, max_depth=low, tenant="other").trace.experience == "steady"
    assert router.ask(more, max_depth=low).trace.experience == "thinking_fast"


def test_answers_without_thinking_count_as_fast(faq: Faq, skipping: SkippingModel, decider: Decider) -> None:
    router, messages = CognitiveRouter(llm=skipping, faq=faq, decider=decider), list[dict[str, str]]()
    for question in ("How do I turn on dark mode?", "Can I return a lamp within 30 days?", "怎么修改密码？"):
        messages.append({"role": "user", "content": question})
        answer = router.ask(messages)
        messages.append({"role": "assistant", "content": answer.text})
    assert (answer.trace.experience, skipping.calls) == (State.THINKING_FAST.value, [])


def test_partition_and_adapter_reach_the_model(skipping: SkippingModel, decider: Decider) -> None:
    router = CognitiveRouter(llm=skipping, decider=decider)
    router.ask("Prove that root two is irrational, step by step.", tenant="a")
    assert (skipping.calls[0].partition, hasattr(skipping.calls[0], "adapter")) == ("a", False)


def test_the_oldest_conversations_are_forgotten() -> None:
    courses = Courses(most=2)
    for name in "abc":
        courses.note(Request.of(name), "yes", Course(skip_rates=(0.5,)))

    def of(name: str) -> tuple[float, ...]:
        talk = [(name, "user"), (" yes ", "assistant"), ("more", "user")]
        return courses.before(Request(messages=messages_of([{"role": r, "content": c} for c, r in talk]))).skip_rates

    assert [of(name) for name in "abc"] == [(), (0.5,), (0.5,)]


def test_a_model_without_a_plan_has_no_context_layers() -> None:
    assert context_layers(None) == ()
    assert context_layers(SimpleNamespace(plan=Plan(total=4, attention_share=0.25, model_fingerprint="x"))) == ()
