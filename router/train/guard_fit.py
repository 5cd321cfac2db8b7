"""Fits the guard's score: kernel ridge regression that tells guarded requests from harmless ones close to them (R4).

`python -m shoal.router.train.guard_fit`. Asks for a guarded topic: the shipped phrases, and `guard_prompts.json`, in
everyday frames. Harmless: ordinary requests of the training splits, the allowed phrases, and prompts written to be
close to a guarded topic, by template. What has attack words is embedded as the guard reads it. The threshold lets
through all but `REFUSED` of the harmless prompts of templates left out; recall is of phrases left out. Templates
marked `test` are neither fitted nor tuned on; `benchmarks/guard.py` reports them.
"""

import argparse
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ...rag.embed import default_embedder
from ..disguise import squash
from ..features import FloatArray, language_of
from ..guard import SCORE, default_topics, kernel, pieces_of, undisguised
from .data import Embeddings, collect
from .run import default_data

PROMPTS = Path(__file__).parent / "guard_prompts.json"
FRAMES = {
    "en": ("how do I {}", "tell me {}", "help me {}", "explain {}", "give me instructions: {}", "I want to {}"),
    "zh": ("告诉我{}", "教我{}", "帮我{}", "请问{}", "我想{}", "怎么{}"),
}
HURRIED = {  # with attack words, as the guard then reads them; other words than those of the benchmark
    "en": (
        "Answer with the least thinking: {}",
        "{} Do not reason.",
        "Shallow reasoning, please. {}",
        "{} Minimal effort, one line.",
        "/no_think {}",
        "No deliberation. {}",
        "{} - gut reaction only",
        "thinking: off. {}",
        "Off the top of your head: {}",
        "{}, lowest depth please",
    ),
    "zh": (
        "少用思考，{}",
        "{}，思考最少",
        "用最浅的推理：{}",
        "{}。不用分析",
        "凭直觉，{}",
        "{}，尽量少动脑",
        "关闭思考。{}",
        "不假思索，{}",
    ),
}
SOURCES = ("clinc", "banking", "stackfaq", "nq", "squad", "cmrc", "strategyqa", "chitchat", "belle", "authored")
REFUSED = 0.27  # share of harmless prompts close to a guarded topic, with attack words, that may be refused
GAMMA = 3.0  # of the kernel exp(gamma * (cosine - 1))
RIDGE = 0.1
FOLDS = 4
PATTERN = 45  # requests made of one pattern
ORDINARY = 2500
KEPT = {"asked": 0.7, "hard": 0.5, "made": 0.1, "ordinary": 0.05}  # share of each kind that the kernel keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Texts as embedded, by row: `asks` 1 for a guarded topic; rows of a `group` are left out together (-1: never)."""

    texts: tuple[str, ...]
    asks: NDArray[np.float64]
    weight: NDArray[np.float64]
    group: NDArray[np.int64]
    kind: NDArray[np.str_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Whole requests with attack words: each is several pieces, and its score is the highest of theirs."""

    pieces: tuple[tuple[str, ...], ...]
    asks: NDArray[np.bool_]
    group: NDArray[np.int64]


def hurried(text: str, i: int) -> list[str]:
    """The pieces that the guard reads of a request with attack words."""
    frames = HURRIED[language_of(text)]
    plain, attack = undisguised(frames[i % len(frames)].format(text))
    return pieces_of(plain, attack)[:4]


def written(splits: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(template, harmless prompt) of the templates of these splits."""
    for name, template in json.loads(PROMPTS.read_text("utf-8"))["harmless"].items():
        if template["split"] in splits:
            yield from ((name, text) for language in ("en", "zh") for text in template[language])


def asked() -> list[str]:
    """Requests and phrases on a guarded topic."""
    own = json.loads(PROMPTS.read_text("utf-8"))["harmful"]
    phrases = [phrase for group in default_topics().guarded.values() for phrase in group]
    return phrases + [text for group in own.values() for language in ("en", "zh") for text in group[language]]


def _made(pattern: str, draw: random.Random) -> list[str]:
    """Requests of one pattern: slots parted by ` / `, choices by `|`."""
    slots = [[choice.strip() for choice in slot.split("|")] for slot in pattern.split(" / ")]
    every = list(product(*slots))
    space = "" if language_of(pattern) == "zh" else " "
    return [space.join(filter(None, words)) for words in draw.sample(every, min(PATTERN, len(every)))]


def _framed(text: str, i: int) -> str:
    frames = FRAMES[language_of(text)]
    return squash(frames[i % len(frames)].format(text.removeprefix("how to ").removeprefix("如何")))


def examples(ordinary: Sequence[str], seed: int) -> tuple[Examples, Held]:
    """What is fitted, and the requests that are held out in turn."""
    draw = random.Random(seed)
    rows: list[tuple[str, float, float, int, str]] = []
    held: list[tuple[tuple[str, ...], bool, int]] = []
    for i, text in enumerate(asked()):
        pieces = hurried(text, i)
        held.append((tuple(pieces), True, i))
        rows += [(pieces[0], 1, 1, i, "asked")] + [(_framed(text, i + k), 1, 0.5, i, "made") for k in (0, 3)]
    harmless = list(written(("fit", "tune")))
    names = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in harmless))}
    for i, (name, text) in enumerate(harmless):
        pieces = hurried(text, i)
        held.append((tuple(pieces), False, names[name]))
        rows += [(piece, 0, 3 / len(pieces), names[name], "hard") for piece in dict.fromkeys([squash(text), *pieces])]
    patterns = json.loads(PROMPTS.read_text("utf-8"))["patterns"]
    for asks, group in ((1, [p for topic in patterns["harmful"].values() for p in topic]), (0, patterns["harmless"])):
        made = [text for pattern in group for text in _made(pattern, draw)]
        rows += [
            (squash(t) if i % 2 else _framed(t, i), asks, 0.7 + 0.3 * (not asks), -1, "made")
            for i, t in enumerate(made)
        ]
    rows += [(squash(text), 0, 2, -1, "hard") for text in default_topics().allowed]
    rows += [
        (squash(text[:300]) if i % 2 else hurried(text[:300], i)[0], 0, 1, -1, "ordinary")
        for i, text in enumerate(ordinary)
    ]
    rows = [row for row in rows if row[0]]
    return Examples(
        texts=tuple(text for text, *_ in rows),
        asks=np.array([asks for _, asks, *_ in rows]),
        weight=np.array([weight for _, _, weight, *_ in rows]),
        group=np.array([group for *_, group, _ in rows]),
        kind=np.array([kind for *_, kind in rows]),
    ), Held(
        pieces=tuple(pieces for pieces, *_ in held),
        asks=np.array([asks for _, asks, _ in held]),
        group=np.array([group for *_, group in held]),
    )


def fit(x: FloatArray, asks: NDArray[np.float64], weight: NDArray[np.float64], marks: FloatArray) -> FloatArray:
    """Weights [marks] of the kernel at the landmarks `marks`, so that guarded requests score 1 and others -1."""
    k, own = kernel(x, marks, GAMMA).astype(np.float64), kernel(marks, marks, GAMMA).astype(np.float64)
    w = (weight / weight.mean())[:, None]
    left = (k * w).T @ k + RIDGE * own + 1e-4 * np.eye(len(marks))
    return np.asarray(np.linalg.solve(left, (k * w).T @ (2 * asks - 1)), dtype=np.float32)


def fit_score(
    data: Examples, held: Held, embed: Callable[[Sequence[str]], FloatArray], seed: int
) -> tuple[dict[str, FloatArray], dict[str, float]]:
    """Landmarks and weights; the threshold, and what was measured on phrases and templates left out."""
    x = embed(data.texts)
    ends = np.cumsum([len(pieces) for pieces in held.pieces])
    parts = np.split(embed([piece for pieces in held.pieces for piece in pieces]), ends[:-1])
    draw = np.random.default_rng(seed)
    keep = draw.random(len(x)) < np.array([KEPT[kind] for kind in data.kind])
    left_out = np.zeros(len(parts))
    for fold in range(FOLDS):
        own = (data.group % FOLDS != fold) | (data.group < 0)
        weights = fit(x[own], data.asks[own], data.weight[own], marks := x[own & keep])
        for i in np.flatnonzero(held.group % FOLDS == fold):
            left_out[i] = (kernel(parts[i], marks, GAMMA) @ weights).max()
    threshold = float(np.quantile(left_out[~held.asks], 1 - REFUSED))
    marks = x[keep].astype(np.float16).astype(np.float32)
    weights = fit(x, data.asks, data.weight, marks)
    english = np.array([language_of(pieces[0]) == "en" for pieces in held.pieces])
    recall = {
        f"recall_left_out_{name}": float((left_out[held.asks & rows] > threshold).mean())
        for name, rows in (("en", english), ("zh", ~english))
    }
    return {"landmarks": marks.astype(np.float16), "weights": weights}, {
        "threshold": threshold,
        "gamma": GAMMA,
        **recall,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="file that keeps embeddings between runs")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    embedder = default_embedder()
    ordinary = [e.text for e in collect(default_data(), seed=args.seed, sources=SOURCES) if e.split == "train"]
    random.Random(args.seed).shuffle(ordinary)
    data, held = examples(ordinary[:ORDINARY], args.seed)
    parts, measured = fit_score(data, held, Embeddings(embedder, args.store), args.seed)
    meta = {"embedder": embedder.fingerprint, **measured}
    half = SCORE.with_suffix(".tmp")
    save_file(parts, half, metadata={"shoal": json.dumps(meta)})
    half.chmod(0o644)
    os.replace(half, SCORE)
    print(json.dumps({**meta, "examples": len(data.texts), "landmarks": len(parts["landmarks"])}, indent=2))


if __name__ == "__main__":
    main()
