"""The second look (C4): is the nearest stored question really the same question?

Takes candidates from the index, drops those the guards object to, and accepts the best of the rest when its confidence
reaches the threshold. Knows nothing of tiers.
"""

from collections.abc import Callable, Sequence

from .semantic import Candidate, FloatArray

Conflict = Callable[[str, str], str | None]
Score = Callable[[str, FloatArray, Sequence[Candidate]], Sequence[float]]

COSINE_THRESHOLD = 0.85  # for embedders that no scorer was fitted for; `shoal cache calibrate` fits another


def by_cosine(question: str, vector: FloatArray, candidates: Sequence[Candidate]) -> list[float]:
    """The plain score: cosine, no second look."""
    return [c.cosine for c in candidates]


class Matcher:
    """Accepts or refuses candidates: `score` rates them 0..1, `conflict` vetoes."""

    def __init__(self, score: Score, conflict: Conflict, threshold: float) -> None:
        self.score, self.conflict, self.threshold = score, conflict, threshold

    def choose(
        self, question: str, vector: FloatArray, candidates: Sequence[Candidate]
    ) -> tuple[Candidate, float] | None:
        """The accepted candidate and its confidence, or None."""
        rated = sorted(
            zip(self.score(question, vector, candidates), candidates, strict=True), key=lambda pair: -pair[0]
        )
        for confidence, candidate in rated:
            if confidence < self.threshold:
                return None
            if self.conflict(question, candidate.entry.prompt) is None:
                return candidate, float(confidence)
        return None
