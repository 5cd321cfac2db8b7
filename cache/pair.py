"""What two questions have in common, as numbers (C4): the features of the second look. Pure; English and Chinese.

Symmetric in the two texts. Knows nothing of other candidates.
"""

import math
import zlib
from collections import Counter
from difflib import SequenceMatcher
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .facts import Facts, facts
from .lexicon import STOP_WORDS

BUCKETS = 2**15
NAMES = (
    "cosine", "cosine over .7", "cosine over .85", "dice", "containment min", "containment max", "order",
    "trigrams", "length ratio", "log length", "heaviest lost min", "heaviest lost max", "lost mass min", "lost mass max",
    "names lost", "numbers", "same opening", "same kind", "one kind", "cross-language", "chinese",
    "stop dice", "residual cosine", "residual share", "first shared", "last shared",
)  # fmt: skip


@lru_cache(maxsize=65536)
def bucket(word: str) -> int:
    """Slot of a word in the table of word weights."""
    return zlib.crc32(word.encode("utf-8", "replace")) % BUCKETS


@lru_cache(maxsize=8192)
def _grams(text: str) -> Counter[str]:
    squeezed = "".join(c if c.isalnum() else " " for c in text)
    padded = f" {' '.join(squeezed.split())} "
    n = 2 if any("\u3400" <= c <= "\u9fff" for c in text) else 3
    return Counter(padded[i : i + n] for i in range(len(padded) - n + 1))


def _dice(a: Counter[str], b: Counter[str]) -> float:
    total = sum(a.values()) + sum(b.values())
    return 2 * sum((a & b).values()) / total if total else 1.0


def residuals(a: str, b: str) -> tuple[str, str]:
    """What is left of each text without the words of the other, in order."""
    x, y = facts(a), facts(b)
    in_x, in_y = set(x.words), set(y.words)
    return _joined([w for w in x.words if w not in in_y]), _joined([w for w in y.words if w not in in_x])


def _joined(words: list[str]) -> str:
    return "".join(w if "\u3400" <= w <= "\u9fff" else f" {w} " for w in words).replace("  ", " ").strip()


def _weights(words: tuple[str, ...], idf: NDArray[np.float32]) -> dict[str, float]:
    return {w: float(idf[bucket(w)]) * (0.15 if w in STOP_WORDS else 1.0) for w in words}


def features(a: str, b: str, cosine: float, residual: float, idf: NDArray[np.float32]) -> list[float]:
    """One row of `NAMES`. `residual`: cosine of the `residuals`."""
    x, y = facts(a), facts(b)
    wx, wy = _weights(x.words, idf), _weights(y.words, idf)
    shared = sum(min(wx[w], wy[w]) for w in wx.keys() & wy.keys())
    mass_x, mass_y = sum(wx.values()) or 1.0, sum(wy.values()) or 1.0
    lost_x, lost_y = [v for w, v in wx.items() if w not in wy], [v for w, v in wy.items() if w not in wx]
    ends = sorted((shared / mass_x, shared / mass_y))
    heavy = sorted((max(lost_x, default=0.0), max(lost_y, default=0.0)))
    mass = sorted((sum(lost_x), sum(lost_y)))
    han_x, han_y = _han(x), _han(y)
    stop_x, stop_y = ({w for w in f.words if w in STOP_WORDS} for f in (x, y))
    return [
        cosine, max(0.0, cosine - 0.7), max(0.0, cosine - 0.85),
        2 * shared / (mass_x + mass_y), ends[0], ends[1],
        SequenceMatcher(None, x.words[:60], y.words[:60], autojunk=False).ratio(),
        _dice(_grams(x.text), _grams(y.text)),
        min(len(x.words), len(y.words)) / max(len(x.words), len(y.words), 1),
        math.log1p(min(len(x.words), len(y.words))), *(min(h, 12.0) for h in heavy), *(math.log1p(m) for m in mass),
        float(bool(x.names - set(y.words)) + bool(y.names - set(x.words))), float(x.quantities == y.quantities),
        float(x.words[:1] == y.words[:1]), float(x.kinds == y.kinds), float(bool(x.kinds) != bool(y.kinds)),
        float(han_x != han_y), float(han_x and han_y),
        2 * len(stop_x & stop_y) / (len(stop_x) + len(stop_y)) if stop_x or stop_y else 0.5,
        residual, 1 - shared / max(mass_x, mass_y),
        float(x.content[:1] == y.content[:1]), float(x.content[-1:] == y.content[-1:]),
    ]  # fmt: skip


def _han(f: Facts) -> bool:
    return any("\u3400" <= w <= "\u9fff" for w in f.words)
