"""Passages to scenarios: clusters of their vectors, each named by the words that set it apart (A5).

Spherical k-means (FAISS, seeded) over the embedder's vectors; names by class-wise tf-idf, in English and Chinese.
Knows nothing of depth.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import need
from .words import STOP, surfaces

MOST = 16  # scenarios
_SAMPLE = 64  # passages of a scenario that name it
_TERMS = 3


def scenarios(texts: Sequence[str], vectors: NDArray[np.float32]) -> list[str]:
    """A label for each of n texts with unit vectors [n, dim], such as "return · refund · day"; "" for no texts."""
    groups = _clusters(vectors)
    names = _names(
        [[texts[i] for i in _spread(np.flatnonzero(groups == g))] for g in range(groups.max(initial=-1) + 1)]
    )
    return [names[group] for group in groups]


def _clusters(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Cluster numbers [n], 0 up without holes."""
    count = min(MOST, round(math.sqrt(len(vectors) / 2)))
    if count < 2:
        return np.zeros(len(vectors), np.int64)
    faiss = need("faiss", "search")
    means = faiss.Kmeans(
        vectors.shape[1],
        count,
        niter=20,
        seed=1,
        spherical=True,
        min_points_per_centroid=1,
        max_points_per_centroid=512,
    )
    means.train(vectors)
    _, nearest = means.index.search(vectors, 1)
    _, groups = np.unique(nearest[:, 0], return_inverse=True)
    return np.asarray(groups, np.int64)


def _spread(places: NDArray[np.int64]) -> list[int]:
    return [int(places[i]) for i in np.linspace(0, len(places) - 1, min(_SAMPLE, len(places))).astype(int)]


def _names(groups: Sequence[Sequence[str]]) -> list[str]:
    """A name for each group of texts: terms that many of its texts have and few of the others."""
    counts = [Counter[str]() for _ in groups]
    shown: dict[str, Counter[str]] = {}
    for count, texts in zip(counts, groups, strict=True):
        for text in texts:
            found = dict(surfaces(text))
            count.update(found.keys())
            for term, word in found.items():
                shown.setdefault(term, Counter())[word] += 1
    everywhere = sum(counts, Counter[str]())
    total = sum(map(len, groups))
    names: list[str] = []
    for count, texts in zip(counts, groups, strict=True):
        weight = {
            term: (n / len(texts)) * math.log((1 + total) / (1 + everywhere[term]))
            for term, n in count.items()
            if _tells(term)
        }
        chosen: list[str] = []
        for term in sorted(weight, key=lambda term: (-weight[term], term)):
            word = shown[term].most_common(1)[0][0]
            if not any(word in other or other in word for other in chosen):
                chosen.append(word)
            if len(chosen) == _TERMS:
                break
        name = " · ".join(chosen) or "other"
        names.append(name if name not in names else f"{name} ({names.count(name) + 1})")
    return names


def _tells(term: str) -> bool:
    return term not in STOP and len(term) > (2 if term.isascii() else 1) and not any(char.isdigit() for char in term)
