"""Words of two texts set against each other (C4): is what one text lacks said in the other by another word?

A word that only one text has is matched with the nearest of the words that only the other has, by the vectors of the
words alone; in Chinese, runs of characters take the place of words. Symmetric in the two texts.
"""

from collections.abc import Mapping

import numpy as np

from .facts import HAN, Facts
from .lexicon import STOP_WORDS
from .words import Words

ALIGNED = (
    "aligned min", "aligned max", "unmatched min", "unmatched max", "match min", "match max", "strangers min",
    "strangers max",
)  # fmt: skip
_LOW, _HIGH = 0.3, 0.8  # cosines of two words: below they have nothing in common, above they say the same
_STRANGE = 0.3
_MOST = 40  # words of one side that are looked at


def own_words(x: Facts, y: Facts) -> tuple[list[str], list[str]]:
    """The words, or runs of Chinese characters, that each text has alone."""
    if x.chinese or y.chinese:
        shared = set(x.words) & set(y.words)
        return _runs(x, shared), _runs(y, shared)
    a, b = set(x.content), set(y.content)
    return sorted(a - b), sorted(b - a)


def _runs(x: Facts, shared: set[str]) -> list[str]:
    out, run = [], ""
    for word in (*x.words, ""):
        if word and word not in shared and HAN.match(word):
            run += word
            continue
        out += [run] if run else []
        out += [word] if word and word not in shared and word not in STOP_WORDS else []
        run = ""
    return out


def align(x: Facts, y: Facts, weights: Mapping[str, float], words: Words) -> list[float]:
    """One row of `ALIGNED`. `weights` of single words and characters.

    "aligned" is the weighed share of a text that the other says too, "unmatched" the weight of its worst lost word,
    "match" the mean cosine of lost words to their nearest, "strangers" how many have no match.
    """
    own = tuple(side[:_MOST] for side in own_words(x, y))
    shared = sum(weights[w] for w in set(x.words) & set(y.words))
    cosines = words(own[0]) @ words(own[1]).T if own[0] and own[1] else None
    sides = []
    for axis, mine in enumerate(own):
        if not mine:
            sides.append((1.0, 0.0, 1.0, 0.0))
            continue
        best = np.zeros(len(mine)) if cosines is None else cosines.max(axis=1 - axis)
        said = np.clip((best - _LOW) / (_HIGH - _LOW), 0, 1)
        weight = np.array([_weight(word, weights) for word in mine])
        mass = float(weight.sum()) or 1e-6
        sides.append((
            (shared + float(weight @ said)) / (shared + mass), float((weight * (1 - said)).max()),
            float(weight @ best) / mass, float((said < _STRANGE).sum()),
        ))  # fmt: skip
    return [value for pair in zip(*sides, strict=True) for value in sorted(pair)]


def _weight(word: str, weights: Mapping[str, float]) -> float:
    if not HAN.match(word):
        return weights[word]
    return sum(weights[c] for c in word) / len(word) * float(min(len(word), 4) ** 0.5)
