"""Late interaction: a passage is read once, when it comes in; a question then meets its sentences and tokens cheaply.

The token features of the bundled encoder are projected to 64 dimensions, apart for questions and passages, and every
token of the question looks for its closest one (ColBERT, Khattab and Zaharia 2020; ours is 300 times smaller and reads
English and Chinese in one space). The projections were trained by `rag/train/late.py`; card: docs/models/reader.md.
Knows nothing of indexes, ranks or thresholds.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save

from .chunk import units
from .embed import default_embedder
from .encoder import FloatArray, UniversalSentenceEncoder, one_thread
from .errors import ModelError

ASSET = Path(__file__).parent / "assets" / "reader.safetensors"
SENTENCE, HEADING, ROW, CODE = range(4)
_KINDS = {"sentence": SENTENCE, "heading": HEADING, "table": ROW, "code": CODE}
_MAX_SEGMENTS = 128  # of one passage
DENSE_SHARE = 0.18  # of the sentence vectors beside the tokens, as training left it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A passage as questions meet it. Segment i is characters spans[i] of the passage; its tokens are at offsets[i].

    spans [s, 2]; kinds [s]; offsets [s + 1]; tokens [t, 64] unit rows; sentences [s, 128] unit rows; whole [512] unit.
    """

    spans: NDArray[np.int32]
    kinds: NDArray[np.int32]
    offsets: NDArray[np.int32]
    tokens: FloatArray
    sentences: FloatArray
    whole: FloatArray

    def pack(self) -> bytes:
        """About 64 bytes a token: vectors are kept as int8."""
        return save(
            {
                "spans": self.spans,
                "kinds": self.kinds,
                "offsets": self.offsets,
                **{name: _narrow(getattr(self, name)) for name in ("tokens", "sentences", "whole")},
            }
        )

    @classmethod
    def unpack(cls, data: bytes) -> "Reading":
        """The reading from its bytes; those met lately are remembered and must not be changed."""
        return _unpacked(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """tokens [q, 64] unit rows; weights [q], sum 1; sentence [128] and whole [512], unit."""

    tokens: FloatArray
    weights: FloatArray
    sentence: FloatArray
    whole: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How a question meets a passage: `late`, `dense`, `gain` [s] per segment, `passage` and `cosine` as a whole.

    `gain` is what the passage would lose without the segment: high for the sentence that answers, low for one that only
    names the same things as its neighbours.
    """

    late: FloatArray
    dense: FloatArray
    gain: FloatArray
    passage: float
    cosine: float


class Reader:
    """Reads passages and questions with the trained projections over the bundled encoder."""

    def __init__(self, encoder: UniversalSentenceEncoder, path: Path = ASSET) -> None:
        try:
            data = path.read_bytes()
            weights = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path}: the reader's weights cannot be read; install the package again") from error
        self._encoder = encoder
        self.weights = {name: array.astype(np.float32) for name, array in weights.items()}
        self.version = hashlib.sha256(data).hexdigest()[:12]  # of everything, the networks over the matches included
        reading = b"".join(weights[name].tobytes() for name in sorted(weights) if name.startswith("passage_"))
        self.fingerprint = f"{hashlib.sha256(reading).hexdigest()[:12]}:{encoder.fingerprint}"  # of what is kept
        # reranker, depth, extraction and fusion ask about one question in turn
        self.ask = lru_cache(maxsize=32)(self._ask)

    @one_thread
    def read(self, passages: Sequence[tuple[str, str]]) -> list[Reading]:
        """Readings of passages, each given as (what stands above it: title and headings, its text)."""
        cut = [_segments(above, text) for above, text in passages]
        out = []
        for (above, text), segments in zip(passages, cut, strict=True):
            texts = [text[start:end] if end else above for start, end, _ in segments]
            found = self._encoder.token_features(texts)
            tokens = _unit(found.tokens @ self.weights["passage_token"] + self.weights["passage_token_bias"])
            table = np.array(segments, np.int32).reshape(-1, 3)
            out.append(
                Reading(
                    spans=np.ascontiguousarray(table[:, :2]),
                    kinds=np.ascontiguousarray(table[:, 2]),
                    offsets=found.offsets.astype(np.int32),
                    tokens=tokens,
                    sentences=_unit(found.vectors @ self.weights["passage_sentence"]),
                    whole=_unit(found.vectors.mean(axis=0)),
                )
            )
        return out

    @one_thread
    def _ask(self, question: str) -> Question:
        """The question, read."""
        found = self._encoder.token_features([question], max_tokens=64)
        raw = found.tokens @ self.weights["question_weight"] + self.weights["question_weight_bias"]
        weights = np.logaddexp(0.0, raw)
        return Question(
            tokens=_unit(found.tokens @ self.weights["question_token"] + self.weights["question_token_bias"]),
            weights=(weights / weights.sum()).astype(np.float32),
            sentence=_unit(found.vectors @ self.weights["question_sentence"])[0],
            whole=found.vectors[0],
        )


def match(question: Question, reading: Reading) -> Match:
    """Scores of the passage and of each of its segments for the question; all in about [-1, 1]."""
    closest = np.maximum.reduceat(question.tokens @ reading.tokens.T, reading.offsets[:-1], axis=1)
    best = closest.max(axis=1, keepdims=True)
    second = np.partition(closest, -2, axis=1)[:, -2:-1] if closest.shape[1] > 1 else np.zeros_like(best)
    return Match(
        late=question.weights @ closest,
        dense=reading.sentences @ question.sentence,
        gain=question.weights @ np.where(closest == best, best - second, 0.0).astype(np.float32),
        passage=float(question.weights @ best[:, 0]),
        cosine=float(reading.whole @ question.whole),
    )


@lru_cache(maxsize=256)  # 16 MB at most: what questions of one kind meet
def _unpacked(data: bytes) -> Reading:
    arrays = load(data)
    return Reading(
        spans=arrays["spans"],
        kinds=arrays["kinds"],
        offsets=arrays["offsets"],
        tokens=_wide(arrays["tokens"]),
        sentences=_wide(arrays["sentences"]),
        whole=_wide(arrays["whole"]),
    )


@cache
def default_reader() -> Reader:
    """The reader that ships with the package, over the shared bundled encoder."""
    return Reader(default_embedder())


def _segments(above: str, text: str) -> list[tuple[int, int, int]]:
    """(start, end, kind); what stands above the passage comes first as an empty span."""
    found = [(0, 0, HEADING)] if above.strip() else []
    for unit in units(text):
        if unit.kind != "table":
            found.append((unit.start, unit.end, _KINDS[unit.kind]))
            continue
        start = unit.start
        for line in text[unit.start : unit.end].splitlines(keepends=True):
            if any(map(str.isalnum, line)):
                found.append((start, start + len(line.rstrip()), ROW))
            start += len(line)
    return found[:_MAX_SEGMENTS] or [(0, len(text), CODE)]


def _unit(rows: FloatArray) -> FloatArray:
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    out: FloatArray = (rows / np.maximum(norms, 1e-6)).astype(np.float32)
    return out


def _narrow(rows: FloatArray) -> NDArray[np.int8]:
    """Unit rows as int8, each stretched to its own largest value; the length is made one again by `_wide`."""
    stretched = rows * (127.0 / np.maximum(np.abs(rows).max(axis=-1, keepdims=True), 1e-6))
    out: NDArray[np.int8] = np.rint(stretched).astype(np.int8)
    return out


def _wide(rows: NDArray[np.int8]) -> FloatArray:
    return _unit(rows.astype(np.float32))
