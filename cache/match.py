"""Deciding on a semantic hit (C4): is the nearest stored question really the same question?

Takes candidates from the index and accepts the best one when its confidence reaches the threshold and the guards do
not object. A vetoed best gives way only to one that is almost as good: what is far behind is not the question asked,
it merely escaped the rule. Knows nothing of tiers.
"""

from collections.abc import Callable, Sequence

from .semantic import Candidate

Conflict = Callable[[str, str], str | None]
Score = Callable[[str, Sequence[Candidate]], Sequence[float]]

COSINE_THRESHOLD = 0.85  # for embedders that no scorer was fitted for; `shoal cache calibrate` fits another
_BEHIND = 0.02  # cosine a candidate may be behind a vetoed one


def by_cosine(question: str, candidates: Sequence[Candidate]) -> list[float]:
    """The plain score: cosine, no second look."""
    return [min(1.0, c.cosine) for c in candidates]


def _letters(text: str) -> str:
    """The text but for case, spaces and the mark at its end."""
    return " ".join(text.casefold().split()).rstrip(" .?!。？！")


class Matcher:
    """Accepts or refuses candidates: `score` rates them 0..1, `conflict` vetoes."""

    def __init__(self, score: Score, conflict: Conflict, threshold: float) -> None:
        self.score, self.conflict, self.threshold = score, conflict, threshold

    def choose(self, question: str, candidates: Sequence[Candidate]) -> tuple[Candidate, float] | None:
        """The accepted candidate and its confidence, or None."""
        allowed, vetoed = [], 0.0
        for candidate in candidates:
            if self.conflict(question, candidate.entry.prompt) is None:
                allowed.append(candidate)
            else:
                vetoed = max(vetoed, candidate.cosine)
        allowed = [c for c in allowed if c.cosine >= vetoed - _BEHIND]
        rated = zip(self.score(question, allowed), allowed, strict=True)
        letters = _letters(question)
        sure = ((1.0 if _letters(c.entry.prompt) == letters else rating, c) for rating, c in rated)
        confidence, best = max(sure, key=lambda pair: pair[0], default=(-1.0, None))
        return (best, float(confidence)) if best is not None and confidence >= self.threshold else None
