"""How a conversation has gone so far: how shallow its last answers were, and which layers they skipped (R5, R6).

A request brings its whole conversation along, so a conversation is known by tenant and messages: what is noted after an
answer is found again by the request whose history ends with that answer. Kept in this process as hashes, no text; the
least recently used go first. Knows no model but its plan and its reports.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from .conversation import STREAK, TURNS, change_of, needs_summary, reminder_of, skip_rate, state_of
from .decision import Message, Request, State, StateChanged

MEASURED = Path(__file__).parent / "assets" / "context_layers.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Oldest first: `skip_rates` of the last answers; of those that a model made, `skipped`: per layer, the share of
    tokens that went without its attention."""

    skip_rates: tuple[float, ...] = ()
    skipped: tuple[Mapping[int, float], ...] = ()

    @property
    def state(self) -> State:
        return state_of(self.skip_rates)

    @property
    def change(self) -> StateChanged | None:
        """The event that the last answer caused."""
        return change_of(self.skip_rates)

    def reminder(self, messages: Sequence[Message], context: Sequence[int]) -> str:
        """What to say again to the model, where the layers in `context` were skipped often; else nothing."""
        return reminder_of(messages) if needs_summary(self.skipped, context) else ""

    def then(self, report: Mapping[str, Any], *, min_depth: float) -> "Course":
        """The course with one more answer, given its depth report and the shallowest depth of its model."""
        rate = skip_rate(report["max"], total=report["total"], min_depth=min_depth)
        made, runs = len(report.get("per_token", ())), report.get("branch_runs", ())
        skipped = self.skipped
        if made and runs:
            skipped = (*skipped, {i: 1 - ran / made for i, (ran, _) in enumerate(runs) if ran < made})[-TURNS:]
        return Course(skip_rates=(*self.skip_rates, rate)[-STREAK - 1 :], skipped=skipped)


class Courses:
    """The courses of the last `most` conversations. Safe to use from many threads."""

    def __init__(self, most: int = 10_000) -> None:
        self._most, self._lock = most, threading.Lock()
        self._known: OrderedDict[bytes, Course] = OrderedDict()

    def before(self, request: Request) -> Course:
        """How the conversation went before the request's newest turn; empty for one that is not known."""
        if not request.history:
            return Course()
        with self._lock:
            return self._known.get(_key(request.tenant, request.history), Course())

    def note(self, request: Request, text: str, course: Course) -> None:
        """Keeps the course under the conversation with the answer `text` in it."""
        key = _key(request.tenant, (*request.messages, Message(role="assistant", content=text)))
        with self._lock:
            self._known[key] = course
            self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)


def _key(tenant: str, messages: Sequence[Message]) -> bytes:
    said = json.dumps([tenant, *((m.role, m.content.strip()) for m in messages)])
    return sha256(said.encode()).digest()


def context_layers(model: object) -> tuple[int, ...]:
    """Layers whose attention carries long-range context and that a budget may skip, in the order in which they leave.

    Measured by `router/train/context_layers.py` where the model is known; else the later half of what the plan lets go,
    since a plan keeps longest what costs most. None for a model without a plan of its own.
    """
    plan = getattr(model, "plan", None)
    if plan is None:
        return ()
    may = tuple(layer for kind, layer in (point.drop for point in plan.points) if kind == "attention")
    measured = _measured().get(plan.model_fingerprint)
    return may[len(may) // 2 :] if measured is None else tuple(layer for layer in may if layer in measured)


@cache
def _measured() -> Mapping[str, frozenset[int]]:
    """Layers by model fingerprint."""
    models = json.loads(MEASURED.read_text(encoding="utf-8"))["models"]
    return {fingerprint: frozenset(model["layers"]) for fingerprint, model in models.items()}
