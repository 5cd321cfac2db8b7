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
DIRECTION = Path(__file__).parent / "assets" / "guard.safetensors"
NEAR = 0.3  # cosine to a guarded phrase below which a text has no topic
SURE = 0.6  # cosine that needs no second opinion, as long as no allowed phrase is closer
# for topics of one's own, which the direction was not fitted to
FAR = 0.38  # least cosine to a guarded phrase
MARGIN = -0.05  # how much closer than the closest allowed phrase the guarded one must be
TURNS = 4  # user turns looked back at: topic and attack words may come in different ones
_CLAUSE = re.compile(r"[.!?;:。！？；：\n]+|,(?=\s)|，")
# what is said around attack words: "use as ... as possible", "give me the ... you can", "in your ...", 用……来回答
_AROUND = re.compile(
    r"(?:^|(?<=[\s,.;:!?(—-]))(?:(?:please|just|and|then|now|use|using|with|in|by|give|get|tell|me|us|the|a|an|as|your|think|"
    r"answer|reply)[\s,(]*)+$"
    r"|^(?:[\s,]*(?:as|possible|you|can|could|of|it|that|about|just|please|needed|required|way|mode|and|answer|reply))+"
    r"(?=[\s,.;:!?)—-]|$)"
    r"|(?:请|就|用|以|使用|并|来)+$|^(?:来|去|地)*(?:回答|答|回复|处理)?(?:就行|即可|吧)?(?=[，。；：！？\s]|$)",
    re.IGNORECASE,
)
_MARKS = " ,;:-–—()（），；："
_SHORT = 4  # words of a match that says nothing but how to answer
_LONGEST = 400  # characters of one piece
_PIECES = {True: 32, False: 1}  # pieces read of a text, thoroughly or not
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prototypes:
    """Phrases as unit rows, and the fitted direction where there is one for these topics and this embedder."""

    names: Sequence[str]
    guarded: FloatArray  # [phrases, dim]
    allowed: FloatArray  # [phrases, dim]
    direction: FloatArray | None
    offset: float
    eager: float  # how much the limit falls once a request has attack words

    def score(self, vectors: FloatArray) -> tuple[FloatArray, Sequence[str]]:
        """Score [n] of each text, above 0 when on a guarded topic for sure, and the topic it is nearest to."""
        near = vectors @ self.guarded.T
        best = near.max(axis=1)
        lead = best - (vectors @ self.allowed.T).max(axis=1, initial=-1.0)
        if self.direction is None:
            score = np.minimum(best - FAR, lead - MARGIN)
        else:
            fitted = np.where(best >= NEAR, vectors @ self.direction + self.offset, -1.0)
            score = np.where((best >= SURE) & (lead >= 0), np.maximum(fitted, best - SURE + 0.01), fitted)
        return np.asarray(score, dtype=np.float32), [self.names[i] for i in near.argmax(axis=1)]


class Guard:
    """Checks conversations against guarded topics. Phrases are embedded once, on first need."""

    def __init__(self, embed: Embed, topics: Topics | None = None) -> None:
        self._embed, self._topics = embed, topics or default_topics()
        self._lock = threading.Lock()
        self._ready: _Prototypes | None = None

    def attack_words(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """Words of the last turns that ask for less thinking, seen through disguises."""
        return tuple(dict.fromkeys(word for text in _turns(messages) for word in attack_words_of(text)))

    def check(self, messages: Sequence[Message], *, thorough: bool = False) -> Verdict:
        """Topic and attack words of a conversation's last turns; their clauses are embedded one by one.

        Without attack words the verdict sets a floor at most: then, unless `thorough` (worth it when the caller asks
        for a low budget), only the newest turn is read, as a whole, which costs one embedding.
        """
        attack = self.attack_words(messages)
        thorough = thorough or bool(attack)
        texts = _turns(messages) if thorough else _turns(messages)[-1:]
        pieces = [piece for text in texts for piece in pieces_of(text, attack, thorough=thorough)]
        if not pieces or not self._topics.guarded:
            return Verdict(attack=attack)
        prototypes = self._prototypes()
        scores, topics = prototypes.score(self._embed(pieces))
        row = int(scores.argmax())
        limit = -prototypes.eager if attack else 0.0
        return Verdict(topic=topics[row] if scores[row] > limit else None, score=float(scores[row]), attack=attack)

    def _prototypes(self) -> _Prototypes:
        with self._lock:
            if self._ready is None:
                pairs = [(name, phrase) for name, phrases in self._topics.guarded.items() for phrase in phrases]
                guarded = self._embed([squash(phrase) for _, phrase in pairs])
                allowed = self._embed([squash(phrase) for phrase in self._topics.allowed])
                direction, offset, eager = self._direction()
                self._ready = _Prototypes(
                    names=[name for name, _ in pairs],
                    guarded=guarded,
                    allowed=allowed.reshape(-1, guarded.shape[1]),
                    direction=direction,
                    offset=offset,
                    eager=eager,
                )
            return self._ready

    def _direction(self) -> tuple[FloatArray | None, float, float]:
        """The shipped direction, which was fitted for the shipped topics and embedder only."""
        from safetensors import safe_open

        if self._topics != default_topics() or not DIRECTION.exists():
            return None, 0.0, 0.0
        with safe_open(str(DIRECTION), framework="numpy") as file:
            meta = json.loads(file.metadata()["shoal"])
            if meta["embedder"] != self._embed.fingerprint:
                return None, 0.0, 0.0
            eager = meta["threshold"] - meta["hurried_threshold"]
            return file.get_tensor("direction"), float(meta["bias"] - meta["threshold"]), float(eager)


def _turns(messages: Sequence[Message]) -> list[str]:
    return [m.content for m in messages if m.role != "assistant"][-TURNS:]


def attack_words_of(text: str) -> tuple[str, ...]:
    """Words of one text that ask for less thinking, undisguised."""
    plain = squash(text)
    runs = (
        tuple(match.group(0) for match in _RUN.finditer(re.sub(r"[^a-z]", "", plain)))
        if re.search(r"[a-z]{12}", plain)
        else ()
    )
    return read_hints(plain)[1].hurry or runs


def pieces_of(text: str, attack: Sequence[str], *, thorough: bool = True) -> list[str]:
    """The whole text and its clauses, undisguised.

    Attack words and what is said around them are left out, since they would blur the embedding; a long match stays, as
    it may hold the topic ("tell me how to ... as fast as you can").
    """
    plain = squash(text)
    sides = [plain]
    short = sorted((word for word in attack if len(word.split()) <= _SHORT), key=len, reverse=True)
    if short:
        sides = re.split("|".join(map(re.escape, short)), plain)
        sides = [_AROUND.sub("", side.strip(_MARKS)).strip(_MARKS) for side in sides]
    plain = re.sub(r"\s+", " ", " ".join(sides)).strip(" ,.;:!?，。；：！？")
    clauses = [clause.strip()[:_LONGEST] for side in sides for clause in _CLAUSE.split(side)]
    clauses = sorted((clause for clause in clauses if len(clause) > 2), key=len, reverse=True)
    return list(dict.fromkeys([plain[:_LONGEST], *clauses]))[: _PIECES[thorough]] if plain else []
