"""What a conversation adds up to: when to remind the model of earlier turns (R5), what state to show (R6).

Pure functions of plain data. Invents no text: a summary is made of sentences that were said, in their order.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from .decision import Message, State, StateChanged
from .features import language_of

TURNS = 3  # of the conversation that a summary covers: a user message and its answer each
STREAK = 3  # answers in a row that make a state
FAST, DEEP = 0.7, 0.3  # skip rates above and below which a state begins
OFTEN = 0.5  # share of recent tokens a context layer must have been skipped for


def skip_rate(depth: float, *, total: int, min_depth: float) -> float:
    """(total - depth) / (total - min_depth) from 0 to 1; an answer of depth 0 (FAQ, cache, extract) counts as 1."""
    if depth <= 0:
        return 1.0
    return min(1.0, max(0.0, (total - depth) / (total - min_depth))) if total > min_depth else 0.0


def state_of(skip_rates: Sequence[float]) -> State:
    """The state after these answers, newest last: three in a row above 70% or below 30%, else steady."""
    last = skip_rates[-STREAK:]
    if len(last) == STREAK and all(rate > FAST for rate in last):
        return State.THINKING_FAST
    if len(last) == STREAK and all(rate < DEEP for rate in last):
        return State.ANALYSING_DEEPLY
    return State.STEADY


def change_of(skip_rates: Sequence[float]) -> StateChanged | None:
    """The event the newest answer causes, None when the state is what it was before it."""
    now = state_of(skip_rates)
    if not skip_rates or now is state_of(skip_rates[:-1]):
        return None
    return StateChanged(state=now, skip_rates=tuple(skip_rates[-STREAK:]))


def needs_summary(
    layers: Sequence[Mapping[int, float]], context_layers: Sequence[int], *, often: float = OFTEN
) -> bool:
    """True when a layer that carries long-range context was skipped for more than `often` of the last turns' tokens.

    `layers` holds per turn, oldest first, the share of tokens each layer was skipped for; `context_layers` come from
    calibration. One turn is no conversation: it takes two.
    """
    recent = layers[-TURNS:]
    if len(recent) < 2 or not context_layers:
        return False
    return any(sum(turn.get(layer, 0.0) for turn in recent) / len(recent) > often for layer in context_layers)


_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？]*")
_TERM = re.compile(r"[a-z0-9']{3,}|\d+|[\u3400-\u9fff]{2}", re.IGNORECASE)
_COMMON_TEXT = (
    "the and for are was were you your that this with from have has had not but can will would could should about "
    "what when where which who how why there their they them then than its also into just please tell"
)
_COMMON = frozenset(_COMMON_TEXT.split())
_LEAD = {"en": "Said earlier in this conversation:", "zh": "此前对话提到："}


def summary_of(messages: Sequence[Message], *, budget: int = 400) -> str:
    """Sentences of the last 3 turns before the newest message, verbatim and in order, at most `budget` characters.

    Sentences rank by the words they share with the rest, with the newest question, and by the facts they hold (numbers,
    names). Empty when nothing was said before.
    """
    if not messages:
        return ""
    said = [
        (m.role, s.strip())
        for m in _last_turns(messages[:-1])
        for s in _SENTENCE.findall(m.content)
        if len(s.strip()) > 3
    ]
    if not said:
        return ""
    asked = set(_terms(messages[-1].content))
    counts = Counter(term for _, sentence in said for term in set(_terms(sentence)))

    def worth(sentence: str) -> float:
        terms = set(_terms(sentence))
        shared = sum(math.log1p(counts[term]) for term in terms) + 2 * len(terms & asked)
        facts = len(re.findall(r"\d+|(?<=\s)[A-Z][a-z]+", sentence))
        return (shared + facts) / math.sqrt(len(sentence) + 20)

    kept: list[int] = []
    room = budget
    for i in sorted(range(len(said)), key=lambda i: -worth(said[i][1])):
        sentence = said[i][1]
        if len(sentence) + 1 <= room and all(sentence != said[k][1] for k in kept):
            kept.append(i)
            room -= len(sentence) + 1
    return " ".join(said[i][1] for i in sorted(kept))


def reminder_of(messages: Sequence[Message], *, budget: int = 400) -> str:
    """The summary as it is put before the newest message, marked as what was said earlier; empty without one."""
    summary = summary_of(messages, budget=budget)
    return f"{_LEAD[language_of(summary)]} {summary}" if summary else ""


def _last_turns(messages: Sequence[Message]) -> list[Message]:
    """The last TURNS user messages and everything after the first of them; system messages are left out."""
    users = [i for i, m in enumerate(messages) if m.role == "user"]
    start = users[-TURNS] if len(users) >= TURNS else 0
    return [m for m in messages[start:] if m.role != "system"]


def _terms(text: str) -> list[str]:
    return [term for term in (found.lower() for found in _TERM.findall(text)) if term not in _COMMON]
