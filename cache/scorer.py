"""The second look (C4): how sure we are that a stored question asks the same, from a fitted file or from cosine alone.

`assets/scorer.safetensors` holds a logistic model over `pair.NAMES`, the weights of words, and the threshold fitted
to a false-hit budget; `cache/train/fit.py` makes it. It belongs to one embedder. Others get cosine with a strict
threshold.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import CacheInputError
from .guards import Guards
from .match import COSINE_THRESHOLD, Conflict, Matcher, by_cosine
from .pair import BUCKETS, NAMES, pair_features, with_leads
from .semantic import Candidate, Embed, FloatArray
from .swap import Swap

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A logistic model: `weight` [len(NAMES)], `bias`, over features scaled by `mean` and `scale`; `idf` [BUCKETS]."""

    embedder: str
    threshold: float
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    weight: NDArray[np.float32]
    bias: float
    idf: NDArray[np.float32]

    def rate(self, features: FloatArray) -> NDArray[np.float32]:
        """Probability of the same meaning for rows of features [n, len(NAMES)]."""
        logits = ((features - self.mean) / self.scale) @ self.weight + self.bias
        return np.asarray(1 / (1 + np.exp(-logits)), dtype=np.float32)

    def __call__(self, question: str, candidates: Sequence[Candidate]) -> list[float]:
        """Confidence per candidate; those with the same answer do not compete with each other."""
        if not candidates:
            return []
        rows = [pair_features(question, c.entry.prompt, c.cosine, self.idf) for c in candidates]
        features = with_leads(np.array(rows, dtype=np.float32), [c.entry.text for c in candidates])
        return [float(p) for p in self.rate(features)]


def load(path: Path) -> Scorer:
    """A scorer from a safetensors file. Raises `CacheInputError` for one made for other features."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        meta = file.metadata() or {}
        arrays = {name: file.get_tensor(name) for name in ("mean", "scale", "weight", "bias", "idf")}
    if tuple(json.loads(meta.get("features", "[]"))) != NAMES or arrays["idf"].shape != (BUCKETS,):
        raise CacheInputError(f"{path.name} was made for other features; make it anew with cache/train/fit.py")
    bias = float(arrays.pop("bias")[0])
    arrays["idf"] = arrays["idf"].astype(np.float32)
    return Scorer(embedder=meta["embedder"], threshold=float(meta["threshold"]), bias=bias, **arrays)


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
        return Matcher(scorer, veto, scorer.threshold if threshold is None else threshold)
    return Matcher(by_cosine, veto, COSINE_THRESHOLD if threshold is None else threshold)
