"""The depth-attack guard (R4): words that ask for the least thinking, on a topic where thinking is the safety.

Knows an embedder and a list of topics; no model, no HTTP. Attack words on a guarded topic are refused with a code
before any model runs; a guarded topic alone only sets the budget's floor (policy.py). Neither half alone refuses, so
that "what is the fastest animal" passes. Ref: without it a content filter fell from 99.2% to 83.7%.
"""

import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from .decision import Message
from .errors import Refused, RouterError
from .features import Embed, FloatArray, read_hints, squash

TOPICS = Path(__file__).parent / "assets" / "topics.json"
CODE = "depth_attack"
THRESHOLD = 0.42  # cosine to a guarded phrase; fitted by benchmarks/guard.py --fit on phrases that are not measured
MARGIN = 0.0  # how much closer the guarded phrase must be than the closest allowed one
TURNS = 4  # user turns looked back at: topic and attack words may come in different ones
_CLAUSE = re.compile(r"[.!?;:。！？；：\n]+|,(?=\s)|，")
_LONGEST = 400  # characters of one piece
# attack words written without their spaces, which is how spaced-out letters arrive
_RUN = re.compile(
    r"(?:with|use|using|by)?(?:the|your)?(?:least|fastest|quickest|simplest|minimal|minimum|shallowest|lowest)(?:possible|amountof)?"
    r"(?:thinking|thought|reasoning|layers?|depth|effort|computation)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Guarded topics with short phrases in every language served, and phrases close to them that are fine."""

    guarded: Mapping[str, Sequence[str]]
    allowed: Sequence[str] = ()

    def __post_init__(self) -> None:
        empty = [name for name, phrases in self.guarded.items() if not phrases]
        if empty:
            raise RouterError(f"guarded topic without phrases: {', '.join(empty)}; give each a few short phrases")


@cache
def default_topics() -> Topics:
    """The topics that ship: those that R4 lists, from weapons to sexual content with minors."""
    raw = json.loads(TOPICS.read_text(encoding="utf-8"))
    return Topics(guarded=raw["guarded"], allowed=raw["allowed"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`topic` is the guarded topic, None when there is none; `attack` are the words that ask for less thinking."""

    topic: str | None = None
    score: float = 0.0
    attack: tuple[str, ...] = ()

    @property
    def guarded(self) -> bool:
        return self.topic is not None

    @property
    def refused(self) -> bool:
        return self.guarded and bool(self.attack)

    def enforce(self) -> None:
        """Raises Refused with code `depth_attack` where attack words meet a guarded topic."""
        if self.refused:
            raise Refused(
                f"refused: this asks for the least thinking on a guarded topic ({self.topic}); "
                "ask without limiting the thinking",
                CODE,
            )


class Guard:
    """Checks conversations against guarded topics. Phrases are embedded once, on first need."""

    def __init__(
        self, embed: Embed, topics: Topics | None = None, *, threshold: float = THRESHOLD, margin: float = MARGIN
    ) -> None:
        self._embed, self._topics = embed, topics or default_topics()
        self._threshold, self._margin = threshold, margin
        self._lock = threading.Lock()
        self._ready: tuple[list[str], FloatArray, FloatArray] | None = None

    def attack_words(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """Words of the last user turns that ask for less thinking, seen through disguises."""
        return tuple(dict.fromkeys(word for text in _turns(messages) for word in _attack(text)))

    def check(self, messages: Sequence[Message]) -> Verdict:
        """Topic and attack words of a conversation's last user turns. A few milliseconds: each clause is embedded."""
        texts = _turns(messages)
        attack = tuple(dict.fromkeys(word for text in texts for word in _attack(text)))
        pieces = [piece for text in texts for piece in _pieces(text, attack)]
        if not pieces or not self._topics.guarded:
            return Verdict(attack=attack)
        names, guarded, allowed = self._prototypes()
        vectors = self._embed(pieces)
        near = vectors @ guarded.T
        best = near.max(axis=1)
        fine = (vectors @ allowed.T).max(axis=1, initial=-1.0)
        score = np.where(best >= fine + self._margin, best, -1.0)
        row = int(score.argmax())
        if score[row] < self._threshold:
            return Verdict(attack=attack, score=float(best.max()))
        return Verdict(topic=names[int(near[row].argmax())], score=float(score[row]), attack=attack)

    def _prototypes(self) -> tuple[list[str], FloatArray, FloatArray]:
        with self._lock:
            if self._ready is None:
                pairs = [(name, phrase) for name, phrases in self._topics.guarded.items() for phrase in phrases]
                guarded = self._embed([phrase for _, phrase in pairs])
                allowed = self._embed(list(self._topics.allowed)).reshape(-1, guarded.shape[1])
                self._ready = [name for name, _ in pairs], guarded, allowed
            return self._ready


def _turns(messages: Sequence[Message]) -> list[str]:
    return [m.content for m in messages if m.role != "assistant"][-TURNS:]


def _attack(text: str) -> tuple[str, ...]:
    plain = squash(text)
    runs = (
        tuple(match.group(0) for match in _RUN.finditer(re.sub(r"[^a-z]", "", plain)))
        if re.search(r"[a-z]{12}", plain)
        else ()
    )
    return read_hints(plain)[1].hurry or runs


def _pieces(text: str, attack: Sequence[str]) -> list[str]:
    """The whole text and its clauses, undisguised and without the attack words, which would blur the embedding."""
    plain = squash(text)
    for word in attack:
        plain = plain.replace(word, " ")
    plain = re.sub(r"\s+", " ", plain).strip(" ,.;:!?，。；：！？")
    clauses = [clause.strip()[:_LONGEST] for clause in _CLAUSE.split(plain)]
    return list(dict.fromkeys(piece for piece in (plain[:_LONGEST], *clauses) if len(piece) > 2))
