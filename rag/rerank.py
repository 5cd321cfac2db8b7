"""Second stage: a passage's score for a question, 0 to 1, from both read together (A2).

`Reranker` is the seam. The light one ships with the package: late interaction over the bundled encoder's tokens, words
in common weighed by rarity, and a small network over both; numpy only. Any sentence-transformers CrossEncoder plugs in.
"""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import ModelError, need
from .reading import DENSE_SHARE, Match, Reader, match
from .retrieve import Candidate
from .words import content_terms, has_cjk

Scores = NDArray[np.float64]


class Reranker(Protocol):
    """Scores [n], 0 to 1, of n candidates for a question. `fingerprint` changes when scores do."""

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, question: str, found: Sequence[Candidate], /) -> Scores: ...


class LightReranker:
    """The reranker that ships: about 10 ms for 20 passages read beforehand. Card: docs/models/reader.md."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.fingerprint = f"light:{reader.version}:{reader.fingerprint}"

    def __call__(self, question: str, found: Sequence[Candidate], /) -> Scores:
        """Calibrated chance [n] that each candidate holds the answer."""
        if not found:
            return np.empty(0, np.float64)
        asked = self._reader.ask(question)
        rows = features(question, found, [match(asked, one.reading) for one in found])
        return sigmoid(network(rows, self._reader.weights, "rerank"))


def features(question: str, found: Sequence[Candidate], matches: Sequence[Match]) -> NDArray[np.float64]:
    """[n, 16] of n candidates: how question and passage match, absolutely and beside the best of the list."""
    wanted = content_terms(question)
    numbers = [term for term in wanted if term[0].isdigit()]
    names = [term for term in wanted if term.isascii() and term[0].isalpha()] if has_cjk(question) else []
    rows = []
    for one, met in zip(found, matches, strict=True):
        rows.append(
            [
                met.passage,
                float(met.late.max()),
                float(met.dense.max()),
                float((met.late + DENSE_SHARE * met.dense).max()),
                met.cosine,
                one.coverage,
                one.bm25,
                _share(numbers, one.row.terms),
                float(bool(numbers)),
                _share(names, one.row.terms),
                float(has_cjk(question) == has_cjk(one.row.text)),
                np.log1p(len(met.late)) / 3.0,
            ]
        )
    table = np.array(rows, np.float64)
    relative = table[:, [0, 3, 4, 5]] - table[:, [0, 3, 4, 5]].max(axis=0)
    return np.concatenate([table, relative], axis=1)


def _share(wanted: Sequence[str], terms: frozenset[str]) -> float:
    return sum(term in terms for term in wanted) / len(wanted) if wanted else 0.0


def network(rows: NDArray[np.float64], weights: dict[str, NDArray[np.float32]], name: str) -> Scores:
    """Log odds [n] of feature rows [n, f] by the small network of that name; raises ModelError for another width."""
    mean, scale = weights[f"{name}_mean"], weights[f"{name}_scale"]
    if rows.shape[1] != len(mean):
        raise ModelError(f"{name}: {rows.shape[1]} features, the weights know {len(mean)}; install the package again")
    hidden = np.tanh(((rows - mean) / scale) @ weights[f"{name}_w1"] + weights[f"{name}_b1"])
    out: Scores = np.float64(1.0) * hidden @ weights[f"{name}_w2"] + weights[f"{name}_b2"]
    return out


def sigmoid(x: Scores) -> Scores:
    """Log odds to a chance."""
    out: Scores = 1.0 / (1.0 + np.exp(-np.clip(x, -40, 40)))
    return out


class CrossEncoderReranker:
    """A sentence-transformers CrossEncoder, by hub name or folder; no code from the hub is run.

    Its raw score goes through a sigmoid, so that scores lie in 0 to 1 whatever the model was trained with.
    Raises MissingExtraError without the extra `rag`, ModelError for a model with several outputs.
    """

    def __init__(self, name_or_folder: str | Path, *, device: str | None = None, batch_size: int = 20) -> None:
        library = need("sentence_transformers", "rag")
        torch = need("torch", "llm")
        self._model: Any = library.CrossEncoder(
            str(name_or_folder), device=device, activation_fn=torch.nn.Identity(), trust_remote_code=False
        )
        if self._model.num_labels != 1:
            raise ModelError(f"{name_or_folder}: a reranker has one output, this model has {self._model.num_labels}")
        self._batch_size, self._lock = batch_size, Lock()
        self.fingerprint = f"cross-encoder:{name_or_folder}"

    def __call__(self, question: str, found: Sequence[Candidate], /) -> Scores:
        """Scores [n] of n candidates."""
        if not found:
            return np.empty(0, np.float64)
        pairs = [(question, candidate.row.text) for candidate in found]
        with self._lock:
            raw = self._model.predict(pairs, batch_size=self._batch_size, show_progress_bar=False)
        return sigmoid(np.asarray(raw, np.float64))
