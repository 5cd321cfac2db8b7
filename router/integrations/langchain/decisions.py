"""The router as LangChain's decision model: `ModelRouterMiddleware` then picks a model by how much thinking it takes.

It decides by the request alone, never by a question's instructions: labels are routes, or an order from least to most
thinking. What it cannot answer honestly it refuses.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from langchain_core.decisions import BaseDecisionModel, Choice, ClassifierResponse, Question, Score, State
from langchain_core.messages import BaseMessage
from pydantic import ConfigDict, Field, model_validator

from ...decision import Decision
from ...errors import InvalidRequest
from ...pipeline import CognitiveRouter
from ..loading import choose, routes_of
from .messages import to_prompt


class RouterDecisions(BaseDecisionModel):
    """`RouterDecisions(router=router, labels={"direct": "fast", "rag": "fast", "deep": "powerful"})`.

    Answers `Choice` (by `labels`, by route names, else labels as ordered from least to most thinking) and `Score`
    (levels ordered likewise). Raises `InvalidRequest` for `Noul` and `Box` questions and for states without text.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    model: str = "shoal-router"
    router: CognitiveRouter = Field(exclude=True, repr=False)
    labels: dict[str, str] | None = None

    @model_validator(mode="after")
    def _known_routes(self) -> Self:
        routes_of(self.labels)
        return self

    @property
    def _provider(self) -> str:
        return "shoal"

    def _classify(self, state: State, questions: dict[str, Question]) -> ClassifierResponse:
        decision = self.router.decide(_prompt(state))
        answers = {name: _answer(question, decision, self.labels) for name, question in questions.items()}
        return ClassifierResponse.model_validate({"model": self.model, "answers": answers})


def _prompt(state: State) -> str | list[dict[str, str]]:
    if isinstance(state, str):
        return state
    turns = state.get("messages") if isinstance(state, Mapping) else state
    items = [turns] if isinstance(turns, BaseMessage) or not isinstance(turns, Sequence) else list(turns)
    messages = [item for item in items if isinstance(item, BaseMessage)]
    if not messages or len(messages) < len(items):
        raise InvalidRequest("the router decides about text or messages: give a string, a message or several messages")
    return to_prompt(messages)


def _answer(question: Question, decision: Decision, labels_of: Mapping[str, str] | None) -> dict[str, Any]:
    if isinstance(question, Choice):
        labels = list(question.criteria)
        chances = _spread(choose(decision, labels, labels_of), len(labels), decision.confidence)
        best = max(range(len(labels)), key=chances.__getitem__)
        return {
            "type": "choice",
            "choice": labels[best],
            "probabilities": dict(zip(labels, chances, strict=True)),
            "confidence": chances[best],
        }
    if isinstance(question, Score):
        levels = [str(level) for level in range(len(question.criteria))]
        chances = _spread(choose(decision, levels), len(levels), decision.confidence)
        return {
            "type": "score",
            "score": sum(level * chance for level, chance in enumerate(chances)),
            "legend": dict(enumerate(question.criteria)),
            "probabilities": dict(enumerate(chances)),
            "confidence": max(chances),
        }
    raise InvalidRequest(f"the router answers Choice and Score questions, not {type(question).__name__}")


def _spread(chosen: int, n: int, confidence: float) -> list[float]:
    """The chosen label gets the router's confidence, at least an equal share; the others share the rest evenly."""
    top = 1.0 if n == 1 else max(confidence, 1 / n)
    return [top if i == chosen else (1 - top) / (n - 1) for i in range(n)]
