"""Signals of how much depth a token still needs, usable without training (G3).

From one watched block: *entropy*, a local PCA over the residual streams of the last tokens, those components that hold
95% of the variance, H = -sum p ln p of their energy shares; *attention_kl*, the mean over heads of KL(attention row ||
uniform); *residual*, how far the last FFN has moved the stream: the L2 distance between the next block's input and the
stream that entered the FFN, over the length of that input. From the token before: *confidence*, the probability of its
likeliest successor. NaN is a signal that is not known, as of a branch that was skipped. Knows no model and no budget.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NAMES = ("entropy", "attention_kl", "residual", "confidence")
VARIANCE = 0.95
WINDOW = 12  # tokens that the local PCA looks at
States = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a pass left of the watched block for one token.

    `state` [hidden]: the residual stream after the block; `middle` [hidden]: between its attention and its MLP; `gaps`
    [heads]: KL(attention row || uniform) in nats.
    """

    state: States
    middle: States
    gaps: States


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The signals that one token's depth is decided by."""

    entropy: float = math.nan
    attention_kl: float = math.nan
    residual: float = math.nan
    confidence: float = math.nan


class Window:
    """The last residual streams of one request, and their local PCA."""

    def __init__(self, size: int = WINDOW) -> None:
        self._size, self._made = size, 0
        self._states: States | None = None
        self._gram = np.empty((size, size), np.float32)

    def push(self, state: States) -> float:
        """Adds a token's state [hidden]; the entropy of the window with it, NaN before the third."""
        if self._states is None:
            self._states = np.zeros((self._size, len(state)), np.float32)
        at = self._made % self._size
        self._states[at] = state
        self._gram[at] = self._gram[:, at] = self._states @ state  # the others' products are known
        self._made += 1
        held = min(self._made, self._size)
        return _entropy(self._gram[:held, :held])


def entropy(states: States) -> float:
    """Semantic entropy in nats of `states` [n, hidden]; NaN for fewer than 3."""
    return _entropy(states @ states.T)


def _entropy(gram: States) -> float:
    """The same from the states' products with each other [n, n]."""
    if len(gram) < 3:
        return math.nan
    means = gram.mean(0)
    gram = gram - (means + means[:, None] - means.mean())
    energy = np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)
    total = float(energy.sum())
    if not 0 < total < math.inf:
        return 0.0
    kept = energy[: int(np.searchsorted(np.cumsum(energy), VARIANCE * total)) + 1]
    shares = kept[kept > 0] / kept.sum()
    return float(-(shares * np.log(shares)).sum())


def residual(state: States, middle: States) -> float:
    """What the FFN has added, as a share of the stream's length after it."""
    length, moved = math.sqrt(float(state @ state)), state - middle
    return math.sqrt(float(moved @ moved)) / length if length > 0 else math.nan


def read(reading: Reading, window: Window, confidence: float) -> Signals:
    """All four signals of a token; `confidence` is the one of the token before."""
    return Signals(
        entropy=window.push(reading.state),
        attention_kl=float(reading.gaps.mean()),
        residual=residual(reading.state, reading.middle),
        confidence=confidence,
    )
