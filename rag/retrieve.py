"""First stage: nearest by vector and best by words, fused by weighted reciprocal rank. Knows nothing of rerankers (A2).

Fusion: Cormack, Clarke, Buettcher 2009. The constants were fitted on training questions (`rag/train/fusion.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .chunk import Span
from .index import DenseIndex
from .reading import Reading
from .store import EVERYTHING, Only, Row, Store
from .words import content_terms

RANK_CONSTANT = 3.0
WORD_WEIGHT = 3.0  # of the ranking by words against the one by vectors, when every word of the question is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A passage found. `score` is 0 to 1.

    `depth_score`, calibrated to 0 to 1, and `depth_raw`, as the model gives it, are None unless a depth probe is
    plugged in (A3). `reading`: what late interaction needs, where it is at hand.
    """

    text: str
    doc_id: str
    span: Span
    score: float
    chunk_id: str
    depth_score: float | None = None
    title: str = ""
    heading: str = ""
    labels: tuple[str, ...] = ()
    depth_raw: float | None = None
    reading: Reading | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A chunk of the first stage. `fused` is 0 to 1, 1 when first by vector and by words.

    `bm25` is its share of the best BM25 score, 0 when not found; `coverage` the share of the question's words in it,
    rare words counting more; `reading` what late interaction needs.
    """

    row: Row
    cosine: float
    bm25: float
    coverage: float
    fused: float
    reading: Reading


def known_share(store: Store, question: str) -> float:
    """Share of the question's words that occur anywhere: near 0 when it is asked in another language."""
    counts = store.document_frequencies(content_terms(question))
    return sum(count > 0 for count in counts.values()) / max(1, len(counts))


def candidates(
    store: Store,
    dense: DenseIndex,
    read: Callable[[Sequence[Row]], Sequence[Reading]],
    question: str,
    vector: NDArray[np.float32],
    k: int,
    only: Only = EVERYTHING,
) -> list[Candidate]:
    """The k best chunks for a question and its unit vector [dim], best first; equal ones in order of row."""
    depth = max(2 * k, 50)
    near = dense.search(vector, depth, only)
    worded = store.bm25(question, depth, only)
    words = WORD_WEIGHT * known_share(store, question)
    scores: dict[int, float] = {}
    for weight, listed in ((1.0, near), (words, worded)):
        for rank, (row, _) in enumerate(listed, 1):
            scores[row] = scores.get(row, 0.0) + weight / (RANK_CONSTANT + rank)
    best = sorted(scores, key=lambda row: (-scores[row], row))[:k]
    found = store.rows(best)
    rows, by_words = [found[number] for number in best if number in found], dict(worded)
    rarity = store.rarity(content_terms(question))
    top = (1.0 + words) / (RANK_CONSTANT + 1)
    best_words = max(by_words.values(), default=1.0)
    total = sum(rarity.values()) or 1.0
    return [
        Candidate(
            row=row,
            cosine=float(row.vector @ vector),
            bm25=by_words.get(row.row, 0.0) / best_words,
            coverage=sum(weight for term, weight in rarity.items() if term in row.terms) / total,
            fused=scores[row.row] / top,
            reading=reading,
        )
        for row, reading in zip(rows, read(rows), strict=True)
    ]
