"""The depth-attack guard (R4): words that ask for the least thinking, on a topic where thinking is the safety.

Knows an embedder and a list of topics; no model, no HTTP. Attack words on a guarded topic are refused with a code
before any model runs; a guarded topic alone only sets the budget's floor (policy.py). Neither half alone refuses, so
that "what is the fastest animal" passes. Ref: without it a content filter fell from 99.2% to 83.7%.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from .decision import Message
from .disguise import rejoined, respaced, squash, squeezed, unstuffed
from .errors import Refused, RouterError
from .features import Embed, FloatArray, read_hints

TOPICS = Path(__file__).parent / "assets" / "topics.json"
CODE = "depth_attack"
SCORE = Path(__file__).parent / "assets" / "guard.safetensors"
NEAR = 0.3  # cosine to a guarded phrase below which a text has no topic
# for topics of one's own, which the shipped score was not fitted to
FAR = 0.38  # least cosine to a guarded phrase
MARGIN = -0.05  # how much closer than the closest allowed phrase the guarded one must be
TURNS = 4  # turns looked back at, beside system messages: topic and attack words may come in different ones
_CLAUSE = re.compile(r"[.!?;:。！？；：\n]+|,(?=\s)|，")
# what is said around attack words: "use as ... as possible", "give me the ... you can", "in your ...", 用……来回答
_AROUND = re.compile(
    r"(?:^|(?<=[\s,.;:!?(—-]))(?:(?:please|just|and|then|now|use|using|with|in|by|give|get|tell|me|us|the|a|an|as|your|think|"
    r"answer|reply)[\s,(]*)+$"
    r"|^(?:[\s,]*(?:as|possible|you|can|could|of|it|that|about|just|please|needed|required|way|mode|and|answer|reply))+"
    r"(?=[\s,.;:!?)—-]|$)"
    r"|(?:请|就|用|以|使用|并|来|把|你|的)+$|^(?:来|去|地)*(?:回答|答|回复|处理)?(?:就行|即可|吧|我)?(?=[，。；：！？\s]|$)",
    re.IGNORECASE,
)
_SIGNS = " ,;:-–—()（），；："
# words that say how to answer; any other word inside attack words may be the topic
_HOW_TO_ANSWER = """
least fastest quickest simplest shortest shallowest minimal minimum minimise minimize lowest fewest smallest
less little shallow low no not zero without thinking thought thoughts reasoning deliberation reflection layer
layers depth computation compute effort analysis consideration processing brainpower pondering deliberating
reflecting hesitation cot think reason reflect deliberate analyse analyze over overthink overthinking ponder
hesitate dwell answer reply respond response output pass mode judgment judgement reaction guess quick fast
brief hasty do don't never stop need to barely hardly path way tell me say it quickly simply instantly skip
skipping checks check any all the a an of your you can as possible possibly in with use using and or that
which comes pops springs come have first thing idea word words mind head into is off none min false disabled
turn switch shut brain disable suppress omit drop cut limit forgo bypass rush
hurry early exit halt quit stop seconds milliseconds time delay latency wait right straight away once immediately
better briefest tiniest laziest hastiest sloppiest scarcely engage strain spot flash briefly cheaply half
cheapest asap lightning full maximum speed highest under within below thoughtless mindless careless aside asleep
brains brainwork waste spend lose immediate instant rapid speedy baked rushed hasty offhand before effort
top autopilot on blurt out dirty gut
snap knee jerk instinctive superficial surface level split second feeling decision lazy hurried only just run
through one two single few keep short light save saving budget tokens minimally chain at amount much so more
please give get step steps even bit nothink reasoningeffort power after zui shao kuai jian dan de si kao tui
li hui da bu yao"""
_HOW = frozenset(_HOW_TO_ANSWER.split())
_LONGEST = 400  # characters of one piece
_NEARBY = 200  # characters beside attack words that may go with them
_PIECES = {True: 32, False: 1}  # pieces read of a text, thoroughly or not
_READ = 50_000  # characters read from each end of a text
_DEEP = 10_000  # of them searched for words without proper spaces
# stems of attack words in letters run together; `1` is an i or an l (disguise.py)
_STEM = re.compile(
    r"th[i1]nk|reason|thought|[l1]ayer|depth|effort|de[l1][i1]b|comput|ana[l1]y|ref[l1]ect|answer|bra[i1]n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Guarded topics with short phrases in every language served, and phrases close to them that are fine."""

    guarded: Mapping[str, Sequence[str]]
    allowed: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.guarded, Mapping):
            raise RouterError(f"guarded must map topics to lists of phrases, not {type(self.guarded).__name__}")
        for name, phrases in (*self.guarded.items(), ("allowed", self.allowed)):
            if not isinstance(phrases, list | tuple) or not all(
                isinstance(one, str) and one.strip() for one in phrases
            ):
                raise RouterError(f"topic {name!r}: give a list of short phrases, each a text that is not blank")
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
    """`topic` is the guarded topic, None when there is none; `attack` are the words that ask for less thinking.

    `standing`: topic and attack words do not both come from the caller, but in part from the operator's messages.
    """

    topic: str | None = None
    score: float = 0.0
    attack: tuple[str, ...] = ()
    standing: bool = False

    @property
    def guarded(self) -> bool:
        return self.topic is not None

    @property
    def refused(self) -> bool:
        return self.guarded and bool(self.attack) and not self.standing

    def enforce(self) -> None:
        """Raises Refused with code `depth_attack` where attack words meet a guarded topic."""
        if self.refused:
            raise Refused(
                f"refused: this asks for the least thinking on a guarded topic ({self.topic}); "
                "ask without limiting the thinking",
                CODE,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What of a conversation is looked at: `pieces`, the first `own` of them the caller's or answers to him, `attack`
    words of the caller, words of `haste` of the operator."""

    pieces: tuple[str, ...] = ()
    own: int = 0
    attack: tuple[str, ...] = ()
    haste: tuple[str, ...] = ()


def kernel(x: FloatArray, marks: FloatArray, gamma: float) -> FloatArray:
    """exp(gamma * (cosine - 1)) of unit rows [n, dim] and [marks, dim]: 1 for the same text, near 0 for unlike ones."""
    return np.asarray(np.exp(gamma * (x @ marks.T - 1)), dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """The shipped score: weights [marks] of landmarks [marks, dim], requests on a guarded topic above `threshold`."""

    marks: FloatArray
    weights: FloatArray
    gamma: float
    threshold: float

    def __call__(self, vectors: FloatArray) -> FloatArray:
        return np.asarray(kernel(vectors, self.marks, self.gamma) @ self.weights - self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prototypes:
    """Phrases as unit rows, and the fitted score where there is one for these topics and this embedder."""

    names: Sequence[str]
    guarded: FloatArray  # [phrases, dim]
    allowed: FloatArray  # [phrases, dim]
    fitted: _Fitted | None

    def score(self, vectors: FloatArray) -> tuple[FloatArray, Sequence[str]]:
        """Score [n] of each text, above 0 when on a guarded topic, and the topic it is nearest to."""
        near = vectors @ self.guarded.T
        best = near.max(axis=1)
        if self.fitted is None:
            lead = best - (vectors @ self.allowed.T).max(axis=1, initial=-1.0)
            score = np.minimum(best - FAR, lead - MARGIN)
        else:
            score = np.full(len(vectors), -1.0, dtype=np.float32)
            close = best >= NEAR
            if close.any():
                score[close] = self.fitted(vectors[close])
        return np.asarray(score, dtype=np.float32), [self.names[i] for i in near.argmax(axis=1)]


class Guard:
    """Checks conversations against guarded topics. Phrases are embedded once, on first need."""

    def __init__(self, embed: Embed, topics: Topics | None = None) -> None:
        self._embed, self._topics = embed, topics or default_topics()
        self._lock = threading.Lock()
        self._ready: _Prototypes | None = None

    def check(self, messages: Sequence[Message], *, thorough: bool = False) -> Verdict:
        """`hear` and `judge` in one."""
        heard = self.hear(messages, thorough=thorough)
        return self.judge(heard, self._embed(heard.pieces))

    def hear(self, messages: Sequence[Message], *, thorough: bool = False) -> Heard:
        """Attack words of a conversation's last turns, and what is to be embedded, clause by clause. The last message
        counts as the caller's, whatever its role.

        Without attack words the verdict sets a floor at most: then, unless `thorough` (worth it when the caller asks
        for a low budget), only the newest turn is read, as a whole, which costs one embedding. System messages are the
        operator's: what they say of topics or of haste ("answer as briefly as possible") holds the floor, and refuses
        nobody.
        """
        turns, told = [undisguised(text) for text in _asked(messages)], [undisguised(text) for text in _told(messages)]
        attack, haste = _words(turns), _words(told)
        if not self._topics.guarded:
            return Heard(attack=attack, haste=haste)
        thorough = thorough or bool(attack or haste)
        pieces = [p for text, _ in turns[0 if thorough else -1 :] for p in pieces_of(text, attack, thorough=thorough)]
        if thorough:  # an answer may bring the topic, never the attack words; it is read as a whole
            pieces += [p for text in _answers(messages) for p in pieces_of(squash(text), (), thorough=False)]
        own = len(pieces)
        pieces += [p for text, _ in told if thorough for p in pieces_of(text, haste, thorough=True)]
        return Heard(pieces=tuple(pieces), own=own, attack=attack, haste=haste)

    def judge(self, heard: Heard, vectors: FloatArray) -> Verdict:
        """The verdict, from the embeddings [n, dim] of the n pieces."""
        words, standing = heard.attack or heard.haste, not heard.attack
        if not heard.pieces:
            return Verdict(attack=words, standing=standing)
        scores, topics = self._prototypes().score(vectors)
        standing = standing or not bool((scores[: heard.own] > 0).any())
        row = int((scores if standing else scores[: heard.own]).argmax())
        topic = topics[row] if scores[row] > 0 else None
        return Verdict(topic=topic, score=float(scores[row]), attack=words, standing=standing)

    def _prototypes(self) -> _Prototypes:
        with self._lock:
            if self._ready is None:
                pairs = [(name, phrase) for name, phrases in self._topics.guarded.items() for phrase in phrases]
                guarded = self._embed([squash(phrase) for _, phrase in pairs])
                allowed = self._embed([squash(phrase) for phrase in self._topics.allowed])
                self._ready = _Prototypes(
                    names=[name for name, _ in pairs],
                    guarded=guarded,
                    allowed=allowed.reshape(-1, guarded.shape[1]),
                    fitted=self._fitted(),
                )
            return self._ready

    def _fitted(self) -> _Fitted | None:
        """The shipped score, which was fitted for the shipped topics and embedder only."""
        from safetensors import safe_open

        if self._topics != default_topics() or not SCORE.exists():
            return None
        with safe_open(str(SCORE), framework="numpy") as file:
            meta = json.loads(file.metadata()["shoal"])
            if meta["embedder"] != self._embed.fingerprint:
                return None
            marks, weights = file.get_tensor("landmarks").astype(np.float32), file.get_tensor("weights")
        return _Fitted(marks=marks, weights=weights, gamma=float(meta["gamma"]), threshold=float(meta["threshold"]))


def _asked(messages: Sequence[Message]) -> list[str]:
    """The caller's last turns; the last message is one of them."""
    turns = [message.content for message in messages[:-1] if message.role == "user"]
    return [*turns, messages[-1].content][-TURNS:]


def _told(messages: Sequence[Message]) -> list[str]:
    """The operator's system messages as one text; none without."""
    standing = "\n".join(message.content for message in messages[:-1] if message.role == "system")
    return [standing] if standing else []


def _words(texts: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    """Attack words of several texts, each once."""
    return tuple(dict.fromkeys(word for _, words in texts for word in words))


def _answers(messages: Sequence[Message]) -> list[str]:
    """The last answers before the last message, each as far as it can be read as one piece."""
    found = [message.content for message in messages[:-1] if message.role == "assistant"]
    return [text[: 2 * _LONGEST] for text in found[-TURNS:]]


@lru_cache(maxsize=64)  # earlier turns and the operator's message come again with every request
def undisguised(text: str) -> tuple[str, tuple[str, ...]]:
    """The text as plain lower-case words, and those of its words that ask for less thinking.

    Readings that distrust spaces, or signs between Chinese characters, count only where they show such words.
    """
    plain = squash(_ends(text, _READ))
    words = read_hints(plain)[1].hurry
    if words:
        return plain, words
    for reading in _deeper(plain):
        words = read_hints(reading)[1].hurry
        if words:
            return reading, words
    return plain, ()


def _deeper(plain: str) -> Iterator[str]:
    """Other readings of squashed text, where it could be one."""
    loose = unstuffed(plain)
    for reading in (loose, rejoined(loose)):
        if reading != plain:
            yield reading
    ends = _ends(plain, _DEEP)
    if _STEM.search(squeezed(ends)):
        yield respaced(ends)


def _ends(text: str, size: int) -> str:
    return text if len(text) <= 2 * size else f"{text[:size]} {text[-size:]}"


def pieces_of(plain: str, attack: Sequence[str], *, thorough: bool = True) -> list[str]:
    """The whole text and its clauses, each as it may be embedded; `plain` is undisguised.

    Attack words and what is said around them are left out, since they would blur the embedding; other words inside a
    long match stay, as they may hold the topic ("tell me how bombs are made as fast as you can").
    """
    found = _pieces(plain, attack)
    if attack and found:
        again = respaced(plain[: 2 * _LONGEST])
        if len(again.split()) < len(plain[: 2 * _LONGEST].split()) or re.search(r"[a-z][0-9]|[0-9][a-z]", plain):
            found += _pieces(again, attack)[:4]  # the topic may be written in a disguise that the attack words lack
    return list(dict.fromkeys(found))[: _PIECES[thorough]]


def _pieces(plain: str, attack: Sequence[str]) -> list[str]:
    sides = [plain]
    if attack:
        found = re.compile("|".join(map(re.escape, sorted(attack, key=len, reverse=True))))
        sides = found.sub(lambda m: _topical(m.group(0)), plain).split("\0")
        sides = [_bare(side) for side in sides]
    whole = re.sub(r"\s+", " ", " ".join(sides)).strip(" ,.;:!?，。；：！？")
    clauses = [clause.strip()[:_LONGEST] for side in sides for clause in _CLAUSE.split(side)]
    clauses = sorted((clause for clause in clauses if len(clause) > 2), key=len, reverse=True)
    return [whole[:_LONGEST], *clauses] if whole else []


def _bare(side: str) -> str:
    """What stands beside attack words, without the words and signs that go with them."""
    side = side.strip(_SIGNS)
    if len(side) > 2 * _NEARBY:
        middle = side[_NEARBY:-_NEARBY]
        return f"{_bare(side[:_NEARBY])}{middle}{_bare(side[-_NEARBY:])}"
    return _AROUND.sub("", side).strip(_SIGNS)


def _topical(words: str) -> str:
    """What attack words hold beside them, between marks."""
    kept = [word for word in re.findall(r"[a-z']+", words) if word not in _HOW]
    return f"\0{' '.join(kept)}\0" if kept and not re.search(r"[\u3400-\u9fff]", words) else "\0"
