"""Fits the scorer and its threshold, and writes `cache/assets/scorer.safetensors` with its card (C4).

    SHOAL_DATA=../shared/data python -m shoal.cache.train.fit [--threshold]

The model is fitted on train parts; the threshold on look-ups of other questions (other FAQs, other passages), to a
budget of false hits per look-up. Half of StackFAQ is in neither and only measured. Prints what every held-out set
would have done when left out of training. `--threshold` leaves the model as it is and fits the threshold only: enough
where the guards changed.
"""

import json
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...rag.embed import default_embedder
from ..calibrate import Outcome, fit_threshold
from ..pair import PAIR, SECOND, second_features
from ..scorer import Layer, Scorer, bundled
from . import corpora
from .episodes import Builder, Embedding, Episode, word_weights

SEED = 0
BUDGET = 0.01  # false hits per look-up: the 95% upper bound of what ships
LEFT_OUT = ("stackfaq", "banking77", "clinc", "chitchat", "sentences", "reworded")
_STRENGTH = 0.3  # inverse of the penalty on weights


def halves(pool: corpora.Pool, half: int) -> corpora.Pool:
    """One half of a pool by group (reading sets: by passage), so that nothing fitted meets what is judged."""

    def side(group: str) -> int:
        return int(group) // 2 % 2 if group.isdigit() else sum(map(ord, group.split(".")[0])) % 2

    kept = [i for i, g in enumerate(pool.groups) if side(g) == half]
    texts, groups = [pool.texts[i] for i in kept], [pool.groups[i] for i in kept]
    return corpora.Pool(name=pool.name, texts=texts, groups=groups, strict=pool.strict)


def training(builder: Builder) -> list[Episode]:
    """Look-ups to fit the model on."""
    out: list[Episode] = []
    for _ in range(4):
        out += builder.split(halves(corpora.stackfaq(0), 0), "stackfaq", questions=10**6, stored=0.4)
    out += builder.split(corpora.banking(), "banking77", questions=1500)
    out += builder.split(corpora.clinc(), "clinc", questions=1000)
    out += builder.split(corpora.chitchat("english"), "chitchat en", questions=700)
    out += builder.split(corpora.chitchat("chinese_simplified"), "chitchat zh", questions=700)
    for pool, part in ((corpora.squad(), "squad"), (corpora.cmrc(), "cmrc")):
        out += builder.reworded(halves(pool, 0), f"{part} reworded", questions=1200)
    for language in ("en", "zh"):
        out += builder.reworded(halves(corpora.sentences(language), 0), f"sentences {language}", questions=1500)
    return out


def calibration(builder: Builder) -> list[Episode]:
    """Look-ups to fit the threshold on: nothing of them was in training."""
    out: list[Episode] = []
    for _ in range(3):
        out += builder.split(halves(corpora.stackfaq(0), 1), "stackfaq", questions=10**6, stored=0.4)
    for pool, part in ((corpora.squad(), "squad"), (corpora.cmrc(), "cmrc")):
        out += builder.reworded(halves(pool, 1), f"{part} reworded", questions=1000)
    for language in ("en", "zh"):
        out += builder.reworded(halves(corpora.sentences(language), 1), f"sentences {language}", questions=1000)
    return out


def fit(episodes: list[Episode], idf: NDArray[np.float32], embedder: str) -> Scorer:
    """The two steps; the second sees ratings of a first step that did not see the question."""
    ratings: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(episodes)
    for fold in (0, 1):
        first = _layer([e.features for e in episodes[1 - fold :: 2]], episodes[1 - fold :: 2])
        for i in range(fold, len(episodes), 2):
            ratings[i] = first(episodes[i].features)
    second = [second_features(e.features, r, e.answers) for e, r in zip(episodes, ratings, strict=True)]
    return Scorer(
        embedder=embedder, threshold=0.5, pair=_layer([e.features for e in episodes], episodes),
        second=_layer(second, episodes), idf=idf,
    )  # fmt: skip


def _layer(rows: list[NDArray[np.float32]], episodes: list[Episode]) -> Layer:
    """A logistic model over the labelled candidates; sets and labels weigh the square root of their number."""
    from sklearn.linear_model import LogisticRegression

    x, y = np.concatenate(rows), np.concatenate([e.labels for e in episodes])
    part = np.concatenate([np.full(len(e.labels), e.part) for e in episodes])
    x, y, part = x[y >= 0], y[y >= 0], part[y >= 0]
    weight = np.zeros(len(y))
    for name in np.unique(part):
        for label in (0, 1):
            chosen = (part == name) & (y == label)
            weight[chosen] = 1 / np.sqrt(max(1, chosen.sum()))
    mean, scale = x.mean(0), x.std(0) + 1e-6
    model = LogisticRegression(C=_STRENGTH, max_iter=1000)
    model.fit((x - mean) / scale, y, sample_weight=weight / weight.mean())
    return Layer(
        mean=mean.astype(np.float32), scale=scale.astype(np.float32), weight=model.coef_[0].astype(np.float32),
        bias=float(model.intercept_[0]),
    )  # fmt: skip


def outcomes(scorer: Scorer, episodes: list[Episode]) -> list[Outcome]:
    """Best confidence per look-up and whether that answer is right; unknown ones are left out."""
    found = []
    for episode in episodes:
        if not len(episode.labels):
            found.append(Outcome(confidence=0.0, right=False, part=episode.part))
            continue
        rated = scorer.rate(episode.features, episode.answers)
        best = int(np.argmax(rated))
        if episode.labels[best] >= 0:
            found.append(Outcome(confidence=float(rated[best]), right=episode.labels[best] == 1, part=episode.part))
    return found


def report(title: str, results: list[Outcome], threshold: float) -> list[dict[str, object]]:
    """Print and return right, wrong and missed look-ups per part."""
    rows = []
    for part in sorted({r.part for r in results}):
        mine = [r for r in results if r.part == part]
        right = sum(r.right and r.confidence >= threshold for r in mine) / len(mine)
        wrong = sum(not r.right and r.confidence >= threshold for r in mine) / len(mine)
        rows.append({"set": part, "look_ups": len(mine), "right": round(right, 4), "wrong": round(wrong, 4)})
        print(f"{title:12} {part:16} {len(mine):6} look-ups  right {right:.3f}  wrong {wrong:.4f}")
    return rows


def main() -> None:
    begun = time.time()
    embedder = default_embedder()
    if "--threshold" in sys.argv:
        finish(bundled(), calibration(Builder(Embedding(embedder), bundled().idf, SEED)))
        return
    pools = [corpora.banking(), corpora.clinc(), corpora.squad(), corpora.cmrc(), corpora.stackfaq(0)]
    idf = word_weights([*pools, corpora.sentences("en"), corpora.sentences("zh")])
    builder = Builder(Embedding(embedder), idf, SEED)
    train, judge = training(builder), calibration(builder)
    print(
        f"{len(train)} look-ups to fit on, {len(judge)} to fit the threshold on ({time.time() - begun:.0f} s)",
        flush=True,
    )
    for left_out in LEFT_OUT:
        scorer = fit([e for e in train if left_out not in e.part], idf, embedder.fingerprint)
        fitted = fit_threshold(outcomes(scorer, [e for e in judge if left_out not in e.part]), BUDGET)
        report("left out", outcomes(scorer, [e for e in train if left_out in e.part]), fitted.threshold)
    finish(fit(train, idf, embedder.fingerprint), judge)


def finish(scorer: Scorer, judge: list[Episode]) -> None:
    """Fit the threshold and write the files."""
    results = outcomes(scorer, judge)
    fitted = fit_threshold(results, BUDGET, bounded=True)
    rows = report("fitted", results, fitted.threshold)
    print(fitted)
    save(scorer, fitted.threshold, {"calibration": rows, "false_hits": fitted.false_hits, "upper": fitted.upper})


def save(scorer: Scorer, threshold: float, card: dict[str, object]) -> None:
    from safetensors.numpy import save_file

    folder = Path(str(files("shoal.cache").joinpath("assets")))
    tensors: dict[str, NDArray[Any]] = {"idf": scorer.idf.astype(np.float16)}
    for step, layer in (("pair", scorer.pair), ("second", scorer.second)):
        tensors |= {f"{step}.{name}": getattr(layer, name) for name in ("mean", "scale", "weight")}
        tensors[f"{step}.bias"] = np.array([layer.bias], dtype=np.float32)
    meta = {
        "features": json.dumps([*PAIR, *SECOND]), "embedder": scorer.embedder, "threshold": f"{threshold:.6f}"
    }  # fmt: skip
    save_file(tensors, folder / "scorer.safetensors", metadata=meta)
    steps = ((PAIR, scorer.pair), (SECOND, scorer.second))
    weights = {n: round(float(w), 3) for names, layer in steps for n, w in zip(names, layer.weight, strict=True)}
    card = {"threshold": round(threshold, 6), "budget": BUDGET, "seed": SEED, **card, "weights": weights}
    (folder / "scorer.json").write_text(json.dumps(card, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
