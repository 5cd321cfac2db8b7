"""Fit the constants of reciprocal rank fusion on training questions: rank constant, weight of words against vectors.

    python -m shoal.rag.train.fusion

Uses the knowledge bases that `heads` left in the runs folder; prints a table and the best pair by mean reciprocal rank
over English and Chinese questions, each also put into the other language. Nothing is written.
"""

import random
from itertools import product

import numpy as np

from ..retrieve import known_share
from .data import Asked, Passage, load
from .heads import base_of
from .lexicon import Lexicon

Ranks = tuple[list[str], list[str], str, float]  # documents by vector, by words, the right one, words known


def ranks(source: str, asked: list[tuple[str, Asked, Passage]], passages: list[Passage]) -> list[Ranks]:
    """Both rankings of every question over the knowledge base of its source."""
    base = base_of([(i, p) for i, p in enumerate(passages) if (p.part, p.source) == ("fit", source)], f"fit-{source}")
    out = []
    for question, _, passage in asked:
        near = base._dense.search(base.embed([question])[0], 50)
        worded = base._store.bm25(question, 50)
        rows = base._store.rows([row for row, _ in (*near, *worded)])
        known = known_share(base._store, question)
        out.append(([rows[r].doc_id for r, _ in near], [rows[r].doc_id for r, _ in worded], passage.name, known))
    base.close()
    return out


def reciprocal(one: Ranks, constant: float, weight: float) -> float:
    """Reciprocal rank of the right document after fusion, 0 beyond 20."""
    scores: dict[str, float] = {}
    for share, found in ((1.0, one[0]), (weight * one[3], one[1])):
        for rank, doc_id in enumerate(dict.fromkeys(found), 1):
            scores[doc_id] = scores.get(doc_id, 0.0) + share / (constant + rank)
    order = sorted(scores, key=lambda doc_id: -scores[doc_id])[:20]
    return 1.0 / (order.index(one[2]) + 1) if one[2] in order else 0.0


def main() -> None:
    passages, asked = load()
    lexicon = Lexicon([p.text for p in passages if p.source != "squad2"] + [one.text for one in asked])
    draw = random.Random(2)
    sets: dict[str, list[Ranks]] = {}
    for source in ("squad1", "cmrc"):
        mine = [(a, passages[a.passage]) for a in asked if passages[a.passage].part == "fit"]
        mine = draw.sample([pair for pair in mine if pair[1].source == source], 400)
        sets[source] = ranks(source, [(a.text, a, p) for a, p in mine], passages)
        sets[f"{source}-crossed"] = ranks(source, [(lexicon.other(a.text), a, p) for a, p in mine], passages)
    best = (0.0, 0.0, 0.0)
    for constant, weight in product((0.5, 1, 3, 10, 30, 60), (0.5, 1.0, 1.5, 2.0, 3.0)):
        means = {
            name: float(np.mean([reciprocal(one, constant, weight) for one in found])) for name, found in sets.items()
        }
        total = sum(means.values()) / len(means)
        best = max(best, (total, constant, weight))
        print(constant, weight, {name: round(value, 3) for name, value in means.items()}, round(total, 4))
    print("best: mean reciprocal rank, rank constant, weight of words:", best)


if __name__ == "__main__":
    main()
