"""Fitting the threshold to a user's own questions (C4): what `shoal cache calibrate` runs.

Takes pairs marked same or different, stores one side of all of them, asks with the other, and fits the threshold of the
embedder's matcher to the false-hit budget. Knows nothing of tiers or files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .calibrate import Calibration, Outcome, fit_threshold
from .entry import Entry
from .errors import CacheInputError
from .guards import Guards
from .scorer import default_matcher
from .semantic import Embed, SemanticIndex

_CANDIDATES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A stored question, another one, and whether the same answer serves both."""

    stored: str
    asked: str
    same: bool


def _entry(number: int, text: str) -> Entry:
    return Entry(
        id=str(number), key=str(number), scope="", tenant="", kb="", text=text, prompt=text, budget=0.0, depth=0.0,
        rank=0, bucket="", created=0.0, expires=float("inf"),
    )  # fmt: skip


def outcomes(embed: Embed, pairs: Sequence[Pair]) -> list[Outcome]:
    """One outcome per pair: a hit on anything but the stored side of a `same` pair is wrong."""
    matcher = default_matcher(embed, Guards(), 0.0)
    stored = list(dict.fromkeys(p.stored for p in pairs))
    index = SemanticIndex()
    for number, (text, vector) in enumerate(zip(stored, embed(stored), strict=True)):
        index.add(_entry(number, text), vector)
    found = []
    for pair, vector in zip(pairs, embed([p.asked for p in pairs]), strict=True):
        chosen = matcher.choose(pair.asked, index.search("", 0, 1, vector, _CANDIDATES))
        confidence = chosen[1] if chosen else 0.0
        right = chosen is not None and pair.same and chosen[0].entry.prompt == pair.stored
        found.append(Outcome(confidence=confidence, right=right))
    return found


def calibrate(embed: Embed, pairs: Sequence[Pair], budget: float = 0.01, *, bounded: bool = False) -> Calibration:
    """The threshold for these pairs at a budget of false hits per look-up, with its interval and the recall it costs.

    `bounded`: the interval's upper bound must keep the budget too.

    Raises `CacheInputError` without pairs of both kinds.
    """
    if len({p.same for p in pairs}) < 2:
        raise CacheInputError("calibration needs pairs marked same and pairs marked different")
    return fit_threshold(outcomes(embed, pairs), budget, bounded=bounded)
