"""Second stage: a passage's score for a question, 0 to 1, from both read together (A2).

`Reranker` is the seam; the light one ships with the package, any sentence-transformers CrossEncoder plugs in.
"""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import ModelError, need
from .retrieve import Candidate
from .words import content_terms, terms

Scores = NDArray[np.float64]


class Reranker(Protocol):
    """Scores [n], 0 to 1, of n candidates for a question. `fingerprint` changes when scores do."""

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, question: str, found: Sequence[Candidate], /) -> Scores: ...


class LightReranker:
    """Cosine and covered words of the question."""

    fingerprint = "light-0"

    def __call__(self, question: str, found: Sequence[Candidate], /) -> Scores:
        """Scores [n] of n candidates."""
        wanted = set(content_terms(question))
        scores = []
        for candidate in found:
            covered = len(wanted.intersection(terms(candidate.row.text))) / max(1, len(wanted))
            scores.append(1.0 / (1.0 + np.exp(-(5 * candidate.cosine + 3 * covered - 3.5))))
        return np.array(scores, np.float64)


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
        return np.asarray(1.0 / (1.0 + np.exp(-np.asarray(raw, np.float64))))
