"""How easily a gated model reads a passage, for a question: scores from a sidecar or a predictor, and a filter (A3).

The model's own score of a text is asked for once and kept by text and scorer; a question only shifts it. The shift, and
the score of texts that the model has not read yet, come from a linear predictor over what the reranker's reader knows
already, distilled from the default model's real values (`rag/train/depth.py`; card: docs/models/depth.md). Raw scores
are put on one scale by their quantiles over a reference corpus, apart for English and Chinese. Runs no model.
"""

import hashlib
import json
import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .audit_scores import DepthScore, ScoreFile
from .errors import ModelError, RagError
from .reading import CODE, ROW, Match, Reader, Reading, match
from .retrieve import Hit
from .words import has_cjk

ASSET = Path(__file__).parent / "assets" / "depth.json"
SIDECAR = "depth.sqlite"
LIMIT = 0.65  # calibrated; below it a passage is hard
MIN_KEEP = 2  # best passages that the filter leaves alone
RELEVANT = 0.5  # score from which a passage stays however hard it is
Vector = NDArray[np.float64]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """`raw`: share of the model's predictions that survive skimming; `score`: share of the reference below it."""

    raw: float
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """bias + weights · features, features first made to mean 0 and spread 1."""

    mean: Vector
    scale: Vector
    weights: Vector
    bias: float

    def __call__(self, rows: Vector) -> Vector:
        """[n] of feature rows [n, f]. Raises ModelError for another width."""
        if rows.shape[1] != len(self.weights):
            raise ModelError(f"depth: {rows.shape[1]} features, the weights know {len(self.weights)}; install again")
        out: Vector = self.bias + ((rows - self.mean) / self.scale) @ self.weights
        return out

    @classmethod
    def of(cls, raw: dict[str, Any]) -> "Linear":
        """From its JSON form."""
        mean, scale, weights = (np.array(raw[name], np.float64) for name in ("mean", "scale", "weights"))
        return cls(mean=mean, scale=scale, weights=weights, bias=float(raw["bias"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthModel:
    """What ships: which scorer it was made with, the predictors, and the reference's quantiles by language."""

    scorer: str
    alone: dict[str, Linear]
    shift: dict[str, Linear]
    quantiles: dict[str, Vector]
    version: str

    @classmethod
    def read(cls, path: Path = ASSET) -> "DepthModel":
        """Raises ModelError when the file is missing or damaged."""
        try:
            data = path.read_bytes()
            raw = json.loads(data)
            return cls(
                version=hashlib.sha256(data).hexdigest()[:8],
                scorer=raw["scorer"],
                alone={name: Linear.of(one) for name, one in raw["alone"].items()},
                shift={name: Linear.of(one) for name, one in raw["shift"].items()},
                quantiles={name: np.array(one, np.float64) for name, one in raw["quantiles"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{path}: the depth predictor cannot be read; install the package again") from error

    def knows(self, language: str) -> bool:
        """Whether texts of that language can be told apart without the model; fitting found nothing in some."""
        return bool(self.alone[language].weights.any())

    def calibrated(self, raw: float, language: str) -> float:
        """Share of the reference texts of that language with a lower raw score."""
        levels = self.quantiles[language]
        return float(np.interp(raw, levels, np.linspace(0.0, 1.0, len(levels))))


@cache
def default_depth_model() -> DepthModel:
    """The one that ships with the package."""
    return DepthModel.read()


def language_of(text: str) -> str:
    """Which of the two scales a text is on."""
    return "zh" if has_cjk(text) else "en"


def text_features(text: str, reading: Reading) -> list[float]:
    """[8] of a text by itself: length, tokens, figures, capitals, marks, letters, repetition, tables and code."""
    size = max(1, len(text))
    words = text.split()
    return [
        float(np.log1p(len(reading.tokens))),
        size / max(1, len(reading.tokens)),
        sum(map(str.isdigit, text)) / size,
        sum(map(str.isupper, text)) / size,
        sum(not (char.isalnum() or char.isspace()) for char in text) / size,
        sum(char.isascii() and char.isalpha() for char in text) / size,
        len(set(words)) / max(1, len(words)),
        float(np.isin(reading.kinds, (ROW, CODE)).mean()),
    ]


def match_features(met: Match) -> list[float]:
    """[7] of how a question meets a text."""
    return [
        met.passage,
        float(met.late.max()),
        float(met.late.mean()),
        float(met.dense.max()),
        float(met.dense.mean()),
        float(met.gain.max()),
        met.cosine,
    ]


class Depths:
    """The depth probe of a knowledge base: scores of hits for a question, from `folder`'s sidecar and the predictor.

    `scorer`: the gated model; its scores of texts are kept in the sidecar by `score`, which alone runs it. What is not
    in the sidecar under the scorer's fingerprint, so all of it after its gates change, is predicted until then, and has
    no depth in a language where that cannot be done. For another scorer than the predictor was made with, fit its own
    `model`: the shipped scale only stands in.
    """

    def __init__(
        self, reader: Reader, *, folder: Path, scorer: DepthScore | None = None, model: DepthModel | None = None
    ) -> None:
        self._reader, self._scorer, self._folder = reader, scorer, folder
        self._model = model or default_depth_model()

    @property
    def fingerprint(self) -> str:
        """Changes when scores do."""
        scorer = self._scorer.fingerprint if self._scorer else self._model.scorer
        return f"{scorer}:{self._model.version}:{self._reader.version}"

    def __call__(self, question: str, passages: Sequence[Hit], /) -> list[Depth | None]:
        """Depth of every passage for the question, None where it is not known; runs no model."""
        asked = self._reader.ask(question)
        readings = [self._reading(hit) for hit in passages]
        alone = self._alone([hit.text for hit in passages], readings)
        found: list[Depth | None] = []
        for hit, reading, raw in zip(passages, readings, alone, strict=True):
            language = language_of(hit.text)
            shift = self._model.shift[language](np.array([match_features(match(asked, reading))]))[0]
            found.append(None if raw is None else self._depth(raw + float(shift), language))
        return found

    def score(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> None:
        """Has the scorer read the texts that the sidecar does not have yet; about a second each on a small CPU.

        Raises RagError without a scorer.
        """
        if self._scorer is None:
            raise RagError("depth scores are made by a model and there is none: open the knowledge base with one")
        path = self._folder / SIDECAR
        try:
            with closing(ScoreFile(path, self._scorer)) as file:
                file(texts, progress)
        except sqlite3.Error as error:
            raise RagError(
                f"{path}: {error}; check free space and permissions, or delete it and score again"
            ) from error

    def judge(self, texts: Sequence[str]) -> list[Depth | None]:
        """Depths of texts by themselves, without a question, None where they are not known; runs no model."""
        readings = self._reader.read([("", text) for text in texts])
        found = zip(texts, self._alone(texts, readings), strict=True)
        return [None if raw is None else self._depth(raw, language_of(text)) for text, raw in found]

    def _depth(self, raw: float, language: str) -> Depth:
        raw = min(1.0, max(0.0, raw))
        return Depth(raw=raw, score=self._model.calibrated(raw, language))

    def _reading(self, hit: Hit) -> Reading:
        return hit.reading if hit.reading is not None else self._reader.read([(hit.heading, hit.text)])[0]

    def _kept(self, texts: Sequence[str]) -> list[float | None]:
        path = self._folder / SIDECAR
        if self._scorer is not None and path.exists():
            try:
                with closing(ScoreFile(path, self._scorer)) as file:
                    return file.known(texts)
            except sqlite3.Error as error:  # no reason to fail a search
                _log.warning("%s cannot be read (%s): delete it, then score again", path, error)
        return [None] * len(texts)

    def _alone(self, texts: Sequence[str], readings: Sequence[Reading]) -> list[float | None]:
        """Raw scores of texts by themselves: from the sidecar, else predicted where that can be done."""
        known = self._kept(texts)
        for place, (text, reading) in enumerate(zip(texts, readings, strict=True)):
            language = language_of(text)
            if known[place] is None and self._model.knows(language):
                known[place] = float(self._model.alone[language](np.array([text_features(text, reading)]))[0])
        return known


def filter_hits(
    hits: Sequence[Hit], limit: float, *, min_keep: int = MIN_KEEP, relevant: float = RELEVANT
) -> tuple[list[Hit], list[Hit]]:
    """(kept, left out) of hits, best first: left out is what is harder than the limit and not clearly relevant.

    The first `min_keep`, those that score at least `relevant` and those without a depth score stay.
    """
    kept: list[Hit] = []
    out: list[Hit] = []
    for place, hit in enumerate(hits):
        hard = hit.depth_score is not None and hit.depth_score < limit
        (out if hard and place >= max(1, min_keep) and hit.score < relevant else kept).append(hit)
    return kept, out
