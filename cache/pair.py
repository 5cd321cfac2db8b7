"""What two questions have in common, as numbers (C4): the features of the second look. Pure; English and Chinese.

`pair_features` is symmetric in the two texts; words that only one of them has are set against each other by `align`.
`second_features` say how far a candidate stands before the best one with another answer: a question that is almost as
close to two different answers is answered by neither.
"""

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .align import ALIGNED, align
from .facts import facts, likeness
from .lexicon import STOP_WORDS
from .words import Words

FloatArray = NDArray[np.float32]

BUCKETS = 2**15  # of the table of word weights
PAIR = (
    "cosine", "cosine over .7", "cosine over .85", "dice", "containment min", "containment max", "order",
    "trigrams", "length ratio", "log length", "heaviest lost min", "heaviest lost max", "lost mass min",
    "lost mass max", "names lost", "numbers", "same opening", "same kind", "one kind", "cross-language", "chinese",
    "stop words", "lost share", "first shared", "last shared", *ALIGNED,
)  # fmt: skip
# Column -> what counts as the second best where there is none as close.
LEADS = {"cosine": 0.6, "dice": 0.25, "trigrams": 0.25, "aligned min": 0.3}
# What the second step looks at: this candidate's rating, that of the best one with another answer, and the leads.
SECOND = (
    "rating", "other", "margin", "margin to 1", "margin to 2.5", "rating over 1", *(f"lead in {n}" for n in LEADS),
    "cosine", "cosine over .8", "chinese", "chinese margin",
)  # fmt: skip
_COSINE, _CHINESE = PAIR.index("cosine"), PAIR.index("chinese")
_COLUMNS = tuple(PAIR.index(name) for name in LEADS)
_BLUR = 0.02  # distances below this are alike
_LEAST, _MOST = -2.5, 0.5
_FAR, _NOBODY = 8.0, -6.0  # ratings (log odds) are cut to ±_FAR; what counts where no other answer is near


@lru_cache(maxsize=65536)
def bucket(word: str) -> int:
    """Slot of a word in the table of word weights."""
    return zlib.crc32(word.encode("utf-8", "replace")) % BUCKETS


@lru_cache(maxsize=8192)
def _grams(text: str) -> Counter[str]:
    padded = f" {' '.join(''.join(c if c.isalnum() else ' ' for c in text).split())} "
    n = 2 if any("\u3400" <= c <= "\u9fff" for c in text) else 3
    return Counter(padded[i : i + n] for i in range(len(padded) - n + 1))


def _dice(a: Counter[str], b: Counter[str]) -> float:
    total = sum(a.values()) + sum(b.values())
    return 2 * sum((a & b).values()) / total if total else 1.0


def _weights(words: tuple[str, ...], idf: FloatArray) -> dict[str, float]:
    return {w: float(idf[bucket(w)]) * (0.15 if w in STOP_WORDS else 1.0) for w in words}


def pair_features(a: str, b: str, cosine: float, idf: FloatArray, words: Words) -> list[float]:
    """One row of `PAIR` for two texts, their cosine, the table of word weights [BUCKETS] and vectors of words."""
    x, y = facts(a), facts(b)
    wx, wy = _weights(x.words, idf), _weights(y.words, idf)
    shared = sum(wx[w] for w in wx.keys() & wy.keys())
    mass_x, mass_y = sum(wx.values()) or 1.0, sum(wy.values()) or 1.0
    lost_x, lost_y = [v for w, v in wx.items() if w not in wy], [v for w, v in wy.items() if w not in wx]
    contained = sorted((shared / mass_x, shared / mass_y))
    heaviest = sorted((max(lost_x, default=0.0), max(lost_y, default=0.0)))
    lost = sorted((sum(lost_x), sum(lost_y)))
    stop_x, stop_y = ({w for w in f.words if w in STOP_WORDS} for f in (x, y))
    return [
        cosine, max(0.0, cosine - 0.7), max(0.0, cosine - 0.85), 2 * shared / (mass_x + mass_y), *contained,
        likeness(x.words[:60], y.words[:60]),
        _dice(_grams(x.text), _grams(y.text)),
        min(len(x.words), len(y.words)) / max(len(x.words), len(y.words), 1),
        math.log1p(min(len(x.words), len(y.words))), *(min(h, 12.0) for h in heaviest), *(math.log1p(m) for m in lost),
        float(bool(x.names - set(y.words)) + bool(y.names - set(x.words))), float(x.quantities == y.quantities),
        float(x.words[:1] == y.words[:1]), float(x.kinds == y.kinds), float(bool(x.kinds) != bool(y.kinds)),
        float(x.chinese != y.chinese), float(x.chinese and y.chinese),
        2 * len(stop_x & stop_y) / (len(stop_x) + len(stop_y)) if stop_x or stop_y else 0.5,
        1 - shared / max(mass_x, mass_y),
        float(x.content[:1] == y.content[:1]), float(x.content[-1:] == y.content[-1:]),
        *align(x, y, {**wx, **wy}, words),
    ]  # fmt: skip


def second_features(rows: FloatArray, ratings: FloatArray, answers: Sequence[str]) -> FloatArray:
    """Rows of `SECOND` for the candidates of one question, from their rows of `PAIR` [n, len(PAIR)] and ratings [n].

    A lead is the logarithm of the ratio of distances to the candidate and to the best one with another answer (Lowe's
    ratio test, 2004): very negative where the candidate stands alone, 0 where two different answers are equally near.
    """
    out = np.empty((len(rows), len(SECOND)), dtype=np.float32)
    rated = [min(max(float(r), -_FAR), _FAR) for r in ratings]
    for i, answer in enumerate(answers):
        others = [j for j, other in enumerate(answers) if other != answer]
        best = max([_NOBODY, *(rated[j] for j in others)])
        margin = rated[i] - best
        leads = []
        for column, floor in zip(_COLUMNS, LEADS.values(), strict=True):
            second = max((float(rows[j, column]) for j in others), default=floor)
            distances = (1 - float(rows[i, column]) + _BLUR) / (1 - max(second, floor) + _BLUR)
            leads.append(min(max(math.log(distances), _LEAST), _MOST))
        cosine, chinese = float(rows[i, _COSINE]), float(rows[i, _CHINESE])
        out[i] = (
            rated[i], best, margin, min(margin, 1.0), min(margin, 2.5), max(rated[i] - 1, 0.0), *leads,
            cosine, max(cosine - 0.8, 0.0), chinese, chinese * margin,
        )  # fmt: skip
    return out
