"""Fitting a threshold to a false-hit budget, with a confidence interval (C4). Pure; knows nothing of how scores are
made.

`shoal cache calibrate` feeds it pairs of questions that a user marked as same or different.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import CacheInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One look-up: confidence of the best candidate, and whether it would have been right. `part` names the set."""

    confidence: float
    right: bool
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A threshold and what it costs: shares of look-ups, the bounds at 95% (Clopper-Pearson) on false hits."""

    threshold: float
    look_ups: int
    false_hits: float
    lower: float
    upper: float
    recall: float

    def __str__(self) -> str:
        return (
            f"threshold {self.threshold:.4f}: false hits {self.false_hits:.2%} of {self.look_ups} look-ups "
            f"(95% interval {self.lower:.2%} to {self.upper:.2%}), recall {self.recall:.1%}"
        )


def clopper_pearson(hits: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Exact interval for a share of `hits` in `n`, by bisection on the binomial distribution."""
    tail = (1 - level) / 2
    lower = 0.0 if hits == 0 else _bisect(lambda p: 1 - _at_most(hits - 1, n, p) < tail)
    upper = 1.0 if hits == n else _bisect(lambda p: _at_most(hits, n, p) > tail)
    return lower, upper


def _at_most(k: int, n: int, p: float) -> float:
    if p <= 0:
        return 1.0
    if p >= 1:
        return float(k >= n)
    logs = (
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p)
        for i in range(k + 1)
    )
    return min(1.0, math.fsum(math.exp(value) for value in logs))


def _bisect(below: "object") -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)  # type: ignore[operator]
    return (low + high) / 2


def _bounded(budget: float, n: int) -> float:
    """The largest share of `n` whose upper bound is within the budget; below 0 where even none is not sure enough."""
    return (bisect_right(range(n + 1), budget, key=lambda hits: clopper_pearson(hits, n)[1]) - 1) / n


def fit_threshold(outcomes: Sequence[Outcome], budget: float, *, bounded: bool = False) -> Calibration:
    """The lowest threshold whose false hits stay within `budget` per look-up; every part weighs the same.

    `bounded` holds the upper bound of their interval (95%) to the budget, not just the share that was seen: fewer hits,
    and with few look-ups none. Recall is of the look-ups that had a right best candidate. Raises `CacheInputError` when
    there is nothing to fit on.
    """
    if not 0 < budget < 1:
        raise CacheInputError(f"the false-hit budget is a share of look-ups between 0 and 1, got {budget}")
    if not any(o.right for o in outcomes) or all(o.right for o in outcomes):
        raise CacheInputError("calibration needs both questions with a right answer in the cache and ones without")
    sizes: dict[str, int] = {}
    for o in outcomes:
        sizes[o.part] = sizes.get(o.part, 0) + 1
    allowed = _bounded(budget, len(outcomes)) if bounded else budget
    wrong, threshold = 0.0, 1.0
    ordered = sorted(outcomes, key=lambda o: -o.confidence)
    for i, o in enumerate(ordered):
        wrong += 0.0 if o.right else 1 / (sizes[o.part] * len(sizes))
        if wrong > allowed:
            break
        if i + 1 == len(ordered) or ordered[i + 1].confidence < o.confidence:
            threshold = o.confidence
    hits = [o for o in outcomes if o.confidence >= threshold]
    false = sum(not o.right for o in hits)
    lower, upper = clopper_pearson(false, len(outcomes))
    recall = sum(o.right for o in hits) / sum(o.right for o in outcomes)
    return Calibration(
        threshold=threshold,
        look_ups=len(outcomes),
        false_hits=false / len(outcomes),
        lower=lower,
        upper=upper,
        recall=recall,
    )
