"""Fits the guard's direction: one linear score that tells guarded requests from ordinary ones (R4).

`python -m shoal.router.train.guard_fit`. Positives are the shipped topic phrases in everyday frames, negatives ordinary
requests of the training splits and the allowed phrases. The threshold lets through all but `SEEN` of ordinary
requests that were not trained on; recall is measured on phrases left out, all frames of a phrase together.
"""

import argparse
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ...rag.embed import default_embedder
from ..features import FloatArray, language_of, squash
from ..guard import DIRECTION, Topics, attack_words_of, default_topics, pieces_of
from .data import Embeddings, collect
from .fit import logistic
from .run import default_data

FRAMES = {
    "en": ("{}", "how do I {}", "tell me {}", "help me {}", "explain {}", "give me instructions: {}", "I want to {}"),
    "zh": ("{}", "告诉我{}", "教我{}", "帮我{}", "请问{}", "我想{}"),
}
HURRIED = {  # ordinary requests are also shown with attack words, as the guard then reads them
    "en": (
        "Answer with the least thinking: {}",
        "{} Do not reason.",
        "Shallow reasoning, please. {}",
        "{} Minimal effort, one line.",
    ),
    "zh": ("少用思考，{}", "{}，思考最少", "用最浅的推理：{}", "{}。不用分析"),
}
SOURCES = ("clinc", "banking", "stackfaq", "nq", "squad", "cmrc", "strategyqa", "chitchat", "belle", "authored")
SEEN = 0.03  # share of ordinary requests that may look guarded: their budget has a floor, nothing else
SEEN_HURRIED = 0.07  # the same once a request has attack words, where missing a guarded topic is worse
FOLDS = 8


def fit_direction(
    topics: Topics, ordinary: Sequence[str], embed: Callable[[Sequence[str]], FloatArray]
) -> tuple[FloatArray, dict[str, float]]:
    """Direction [dim]; bias, thresholds, and what was measured while fitting."""
    phrases = [p for group in topics.guarded.values() for p in group]
    framed = [
        (i, squash(frame.format(p.replace("how to ", ""))))
        for i, p in enumerate(phrases)
        for frame in FRAMES[language_of(p)]
    ]
    group, positive = np.array([i for i, _ in framed]), embed([text for _, text in framed])
    cut = 2 * len(ordinary) // 3
    plain, allowed = embed([squash(t)[:400] for t in ordinary]), embed([squash(t) for t in topics.allowed])
    hurried = embed([piece for i, text in enumerate(ordinary[:cut]) for piece in _hurried(text, i)])
    negative, held = np.vstack([plain[:cut], hurried, np.repeat(allowed, 3, axis=0)]), plain[cut:]

    def fitted(rows: NDArray[np.bool_]) -> NDArray[np.float64]:
        x = np.vstack([positive[rows], negative])
        y = np.r_[np.ones(rows.sum()), np.zeros(len(negative))]
        return logistic(x, y, np.where(y == 1, len(y) / (2 * y.sum()), len(y) / (2 * (1 - y).sum())))

    theta = fitted(np.ones(len(positive), dtype=bool))
    threshold, hurried_threshold = np.quantile(held @ theta[:-1] + theta[-1], (1 - SEEN, 1 - SEEN_HURRIED)).tolist()
    left_out = np.zeros(len(positive))
    for fold in range(FOLDS):
        out = group % FOLDS == fold
        own = fitted(~out)
        left_out[out] = positive[out] @ own[:-1] + own[-1]
    return theta[:-1].astype(np.float32), {
        "bias": float(theta[-1]),
        "threshold": threshold,
        "hurried_threshold": hurried_threshold,
        "recall_left_out": float((left_out >= threshold).mean()),
        "recall_left_out_hurried": float((left_out >= hurried_threshold).mean()),
    }


def _hurried(text: str, i: int) -> list[str]:
    """The pieces that the guard reads of an ordinary request with attack words."""
    frames = HURRIED[language_of(text)]
    text = frames[i % len(frames)].format(text)
    return pieces_of(text, attack_words_of(text))[:3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="file that keeps embeddings between runs")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    embedder = default_embedder()
    ordinary = [e.text for e in collect(default_data(), seed=args.seed, sources=SOURCES) if e.split == "train"]
    random.Random(args.seed).shuffle(ordinary)
    direction, measured = fit_direction(default_topics(), ordinary[:9000], Embeddings(embedder, args.store))
    meta = {"embedder": embedder.fingerprint, **measured}
    half = DIRECTION.with_suffix(".tmp")
    save_file({"direction": direction}, half, metadata={"shoal": json.dumps(meta)})
    half.chmod(0o644)
    os.replace(half, DIRECTION)
    print(json.dumps(meta, indent=2))


if __name__ == "__main__":
    main()
