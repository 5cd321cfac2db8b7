"""Depth: whether the depth a question needs can be told from the question, and what that saves.

Needed depth: the shallowest one from which on the reference answer's likelihood on the local model stays within 0.05
nats per token of full depth (`python -m shoal.router.train.depth_labels` measures it and keeps it in benchmarks/out/).
Predictors: the shipped depth head, a ridge regression on the classifier's inputs fitted to needed depth on the other
folds, how hard a question's set says it is, and its length. Reported: rank correlation with needed depth, and the
layers per answer token that each spends for the same mean likelihood as a fixed budget.
"""

import numpy as np

from benchmarks._router import DATA, OUT, SEED, embeddings, table, write
from shoal.rag.embed import default_embedder
from shoal.router.classifier import Classifier
from shoal.router.decision import Message
from shoal.router.features import read
from shoal.router.train.answered import answered
from shoal.router.train.depth_labels import Judged, key_of, read_labels

LABELS = OUT / "depth_labels.jsonl"
RIDGE = 300.0
FOLDS = 8
Array = np.ndarray


def ranks(values: Array) -> Array:
    """Ranks from 0; ties share their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts + 1) / 2)[inverse]


def spearman(a: Array, b: Array) -> float:
    x, y = ranks(a), ranks(b)
    return float(np.corrcoef(x, y)[0, 1]) if x.std() and y.std() else 0.0


def interval(a: Array, b: Array, *, rounds: int = 1000) -> tuple[float, float]:
    """95% bootstrap interval of the rank correlation."""
    draw = np.random.default_rng(SEED)
    picks = (draw.integers(0, len(a), len(a)) for _ in range(rounds))
    low, high = np.quantile([spearman(a[p], b[p]) for p in picks], (0.025, 0.975))
    return float(low), float(high)


def correlated(name: str, score: Array, needed: Array) -> dict[str, object]:
    low, high = interval(score, needed)
    row: dict[str, object] = {"predictor": name, "n": len(needed), "rank correlation": spearman(score, needed)}
    return {**row, "95% from": low, "to": high}


def ridge(x: Array, y: Array, unseen: Array) -> Array:
    """Predictions for `unseen` rows by a ridge regression on standardised inputs."""
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-3
    a = (x - mean) / scale
    w = np.linalg.solve(a.T @ a + RIDGE * np.eye(a.shape[1]), a.T @ (y - y.mean()))
    return np.asarray((unseen - mean) / scale @ w + y.mean())


def held_out(x: Array, y: Array) -> Array:
    """Predictions of every row by a ridge regression fitted on the other folds."""
    fold = np.random.default_rng(SEED).permutation(len(y)) % FOLDS
    out = np.zeros(len(y))
    for k in range(FOLDS):
        out[fold == k] = ridge(x[fold != k], y[fold != k], x[fold == k])
    return out


def spent(score: Array, depths: Array, lost: Array, tokens: Array, fixed: int) -> tuple[float, float]:
    """(layers per token, loss) of giving the deepest budget to the highest scores and the next one below to the others,
    such that the loss per token is that of depth `fixed` or less; two budgets, the cheapest pair that does it.

    `lost` [questions, depths] in nats per token.
    """
    weight = tokens / tokens.sum()
    goal = float(weight @ lost[:, list(depths).index(fixed)])
    order = np.argsort(-score, kind="stable")
    best = (float(fixed), goal)
    for low in range(len(depths)):
        for high in range(low + 1, len(depths)):
            gain = np.concatenate([[0.0], np.cumsum((weight * (lost[:, high] - lost[:, low]))[order])])
            loss = float(weight @ lost[:, low]) + gain
            cost = depths[low] + (depths[high] - depths[low]) * np.concatenate([[0.0], np.cumsum(weight[order])])
            fits = np.flatnonzero(loss <= goal + 1e-9)
            if len(fits) and cost[fits].min() < best[0]:
                at = fits[cost[fits].argmin()]
                best = (float(cost[at]), float(loss[at]))
    return best


def main() -> None:
    labels = read_labels(LABELS)
    if not labels:
        raise SystemExit(f"no labels in {LABELS}: run python -m shoal.router.train.depth_labels first")
    questions = {key_of(row["question"]): row["question"] for row in answered(DATA)}
    rows: list[Judged] = [label for key, label in sorted(labels.items()) if key in questions]
    texts = [questions[row.id] for row in rows]
    features = [read((Message(role="user", content=text),)) for text in texts]
    vectors = embeddings()([f.focus for f in features])
    x = np.hstack([vectors, np.array([f.cheap for f in features])])
    needed = np.array([row.needed for row in rows], dtype=float)
    found = Classifier.load(default_embedder()).from_features(features, vectors)
    scores = {
        "shipped depth head": np.array([p.depth[1] + 2 * p.depth[2] for p in found]),
        "ridge on needed depth": held_out(x, needed),
        "length of the question": np.array([float(len(text)) for text in texts]),
        "needed depth itself": needed,
        "random": np.random.default_rng(SEED).random(len(rows)),
    }
    correlation = [correlated(name, score, needed) for name, score in scores.items()]
    for source in sorted({row.source for row in rows if row.graded is not None}):
        m = np.array([row.source == source for row in rows])
        grades = np.array([float(row.graded or 0) for row in rows])
        correlation.append(correlated(f"steps or grade, {source}", grades[m], needed[m]))
    depths, lost = np.array(rows[0].depths), np.array([row.lost for row in rows])
    tokens = np.array([float(row.tokens) for row in rows])
    saved = []
    for fixed in [d for d in depths.tolist() if depths.min() < d < depths.max()]:
        for name, score in scores.items():
            cost, loss = spent(score, depths, lost, tokens, fixed)
            saved.append(
                {"fixed budget": fixed, "by": name, "layers per token": cost, "loss": loss, "saved": 1 - cost / fixed}
            )
    spread = [
        {
            "source": source, "n": sum(mine), "mean needed": float(needed[mine].mean()),
            "need full depth": float((needed[mine] == depths[-1]).mean()),
        }
        for source in sorted({row.source for row in rows})
        if (mine := [row.source == source for row in rows])
    ]  # fmt: skip
    for part in (spread, correlation, saved):
        print("\n" + table(part))
    note = (
        f"{len(rows)} questions with reference answers, each predicted by a ridge regression that did not see it "
        f"({FOLDS} folds). Loss is in nats per answer token "
        "against full depth; a mixed budget gives one of two depths to each question, by predicted need."
    )
    parts = {"needed layers": spread, "correlation": correlation, "at equal likelihood": saved}
    write("router_depth", "Needed depth: can it be told from the question?", {"note": note, **parts})


if __name__ == "__main__":
    main()
