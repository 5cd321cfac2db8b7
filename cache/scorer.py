"""The second look (C4): how sure we are that a stored question asks the same, from a fitted file or from cosine alone.

`assets/scorer.safetensors` holds two logistic steps, the weights of words, and the threshold fitted to a false-hit
budget; `cache/train/fit.py` makes it. The first step rates each candidate by itself, the second looks at the ratings
together: a candidate with a rival of another answer close behind is no hit. It belongs to one embedder. Others get
cosine with a strict threshold.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import CacheInputError
from .guards import Guards
from .match import COSINE_THRESHOLD, Conflict, Matcher, by_cosine
from .pair import BUCKETS, PAIR, SECOND, pair_features, second_features
from .semantic import Candidate, Embed, FloatArray
from .swap import Swap
from .words import Words

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A logistic layer: `weight` [features] and `bias` over features scaled by `mean` and `scale`."""

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    weight: NDArray[np.float32]
    bias: float

    def __call__(self, features: FloatArray) -> FloatArray:
        """Log odds [n] for rows of features [n, features]."""
        return np.asarray(((features - self.mean) / self.scale) @ self.weight + self.bias, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Two logistic steps: `pair` rates each candidate over `pair.PAIR`, `second` weighs the ratings over `pair.SECOND`;
    `idf` [BUCKETS] are the weights of words.
    """

    embedder: str
    threshold: float
    pair: Layer
    second: Layer
    idf: NDArray[np.float32]

    def rate(self, features: FloatArray, answers: Sequence[str]) -> NDArray[np.float32]:
        """Probability of the same meaning for the candidates of one question, from rows of `PAIR` [n, len(PAIR)].

        Those with the same answer do not compete with each other.
        """
        odds = self.second(second_features(features, self.pair(features), answers))
        return np.asarray(1 / (1 + np.exp(-odds)), dtype=np.float32)


class SecondLook:
    """A `match.Score`: the scorer with the words of one embedder."""

    def __init__(self, scorer: Scorer, embed: Embed) -> None:
        self._scorer, self._words = scorer, Words(embed)

    def __call__(self, question: str, candidates: Sequence[Candidate]) -> list[float]:
        """Confidence per candidate, 0..1."""
        if not candidates:
            return []
        idf = self._scorer.idf
        rows = [pair_features(question, c.entry.prompt, c.cosine, idf, self._words) for c in candidates]
        return [float(p) for p in self._scorer.rate(np.array(rows, np.float32), [c.entry.text for c in candidates])]


def load(path: Path) -> Scorer:
    """A scorer from a safetensors file. Raises `CacheInputError` for one made for other features."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        meta = file.metadata() or {}
        names = set(file.keys())
        arrays = {name: file.get_tensor(name) for name in names}
    if tuple(json.loads(meta.get("features", "[]"))) != (*PAIR, *SECOND) or arrays["idf"].shape != (BUCKETS,):
        raise CacheInputError(f"{path.name} was made for other features; make it anew with cache/train/fit.py")
    idf = arrays["idf"].astype(np.float32)
    pair, second = _layer(arrays, "pair"), _layer(arrays, "second")
    return Scorer(embedder=meta["embedder"], threshold=float(meta["threshold"]), pair=pair, second=second, idf=idf)


def _layer(arrays: Mapping[str, FloatArray], step: str) -> Layer:
    mean, scale, weight, bias = (arrays[f"{step}.{name}"] for name in ("mean", "scale", "weight", "bias"))
    return Layer(mean=mean, scale=scale, weight=weight, bias=float(bias[0]))


@cache
def bundled() -> Scorer:
    """The scorer that ships."""
    with as_file(files(__package__).joinpath("assets", "scorer.safetensors")) as path:
        return load(path)


def both(first: Conflict, second: Conflict) -> Conflict:
    """A veto where either objects."""
    return lambda a, b: first(a, b) or second(a, b)


def same_question(embed: Embed, guards: Guards | None = None) -> Conflict:
    """Why the answer to one question must not serve the other, or None: the guards, and what the embedder adds to them.

    The one veto for every place that answers a question with the answer to a similar one.
    """
    rules = (guards or Guards()).conflict
    return both(rules, Swap(embed).conflict) if embed.fingerprint == bundled().embedder else rules


def default_matcher(embed: Embed, guards: Guards | None, threshold: float | None) -> Matcher:
    """The matcher for this embedder; `threshold` None takes the fitted one."""
    scorer, veto = bundled(), same_question(embed, guards)
    if embed.fingerprint == scorer.embedder:
        return Matcher(SecondLook(scorer, embed), veto, scorer.threshold if threshold is None else threshold)
    return Matcher(by_cosine, veto, COSINE_THRESHOLD if threshold is None else threshold)
