"""What the pipeline needs of a language model, and the words it hands to one.

`Deep` is the face of `gated_llm.GatedLLM`; anything with it can stand in, such as a model behind HTTP (G19).
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from ..gated_llm.trace import DepthTrace
from .decision import Message

Turns = list[dict[str, str]]

_GROUNDED = {
    "en": "Answer the question from the passages only, as briefly as possible. "
    "If the passages do not hold the answer, say that you do not know.",
    "zh": "只根据下面的段落回答问题，尽量简短。如果段落里没有答案，就说不知道。",
}
_LABELS = {"en": ("Passages", "Question"), "zh": ("段落", "问题")}


class Report(Protocol):
    """Depth of an answer so far, in layers."""

    @property
    def max(self) -> float: ...

    def to_dict(self) -> dict[str, Any]: ...


class Usage(Protocol):
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def layer_tokens(self) -> float: ...


class Chunk(Protocol):
    """A streamed piece; the last one has `finish_reason`, `usage`, `confidence`, and `trace` where it was asked for."""

    @property
    def text(self) -> str: ...
    @property
    def depth(self) -> Report: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def usage(self) -> Usage | None: ...
    @property
    def confidence(self) -> float | None: ...
    @property
    def trace(self) -> DepthTrace | None: ...


class Budget(Protocol):
    @property
    def depth(self) -> float: ...


class Deep(Protocol):
    """A model with a budget of layers."""

    @property
    def name(self) -> str: ...
    @property
    def total(self) -> int: ...
    @property
    def min_depth(self) -> float: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def context(self) -> int: ...

    def resolve_budget(self, max_depth: int | str) -> Budget: ...

    def count_tokens(self, prompt: str | Turns) -> int: ...

    def stream(
        self,
        prompt: str | Turns,
        *,
        max_depth: int | str = "auto",
        max_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        seed: int = 0,
        cancel: threading.Event | None = None,
        partition: str = "",
        adapter: str | None = None,
        trace: bool = False,
    ) -> Iterator[Chunk]:
        """`partition`: whose prompt it is; what was read of one is reused for no other's. `adapter`: weights to add, of
        those that the model names in `adapters`; a model may ignore the first and have none of the second."""
        ...

    def close(self) -> None: ...


def text_tokens(model: Deep) -> Callable[[str], int]:
    """Counts the tokens of a text alone, without those that the model's template puts around a turn; what it counted
    lately it remembers, since passages come again."""
    around = model.count_tokens(".") - 1
    return lru_cache(maxsize=4096)(lambda text: max(0, model.count_tokens(text) - around))


def turns(messages: Sequence[Message]) -> Turns:
    return [{"role": m.role, "content": m.content} for m in messages]


def grounded(messages: Sequence[Message], question: str, passages: str, language: str) -> Turns:
    """The conversation with the last turn asked over cited passages, in the question's language."""
    above, ask = _LABELS[language]
    content = f"{_GROUNDED[language]}\n\n{above}:\n{passages}\n\n{ask}: {question}"
    return [*turns(messages[:-1]), {"role": "user", "content": content}]


def reworded(messages: Sequence[Message], text: str) -> Turns:
    """The conversation with another text in the last turn."""
    return [*turns(messages[:-1]), {"role": messages[-1].role, "content": text}]


def reminded(prompt: Turns, reminder: str) -> Turns:
    """The prompt with a reminder of earlier turns put before its newest one (R5); unchanged without one."""
    if not reminder:
        return prompt
    *before, last = prompt
    return [*before, {**last, "content": f"{reminder}\n\n{last['content']}"}]


def layers_of(report: Mapping[str, Any]) -> str:
    """Header form of a depth report (G6): `24/30`, rounded up."""
    return f"{-int(-float(report['max']) // 1)}/{report['total']}"
