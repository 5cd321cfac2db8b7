"""Trains the classifier's small network in numpy: one hidden layer, four heads, AdamW, dropout, masked losses.

Knows arrays, no text. On 2 cores a minute is enough, so no torch is needed to train a router of one's own.
Temperatures and the conformal threshold are fitted on the calibration split, never on the data trained on.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..features import FloatArray
from .data import ROUTES, Table

HIDDEN = 256
DEPTHS = 3
HEADS = {"route": len(ROUTES), "depth": DEPTHS, "cacheable": 2}
RIDGE = 300.0  # of the weak-model head: few labels and much noise want a straight line


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Weights, inputs' scaling folded in: w1 [inputs, HIDDEN], w2 [HIDDEN, heads]; a temperature per head.

    `weak` [inputs + 1, the bias last] is a linear head beside them: would a weak model do as well as a strong one?
    """

    w1: FloatArray
    b1: FloatArray
    w2: FloatArray
    b2: FloatArray
    weak: FloatArray
    temperature: dict[str, float]
    conformal: float

    @property
    def parameters(self) -> int:
        return sum(part.size for part in (self.w1, self.b1, self.w2, self.b2, self.weak))

    def logits(self, x: FloatArray) -> dict[str, FloatArray]:
        """Scaled logits of each head, [n, classes]."""
        z = np.maximum(x @ self.w1 + self.b1, 0) @ self.w2 + self.b2
        parts = np.split(z, np.cumsum(list(HEADS.values()))[:-1], axis=1)
        return {
            head: np.asarray(part / self.temperature[head], dtype=np.float32)
            for head, part in zip(HEADS, parts, strict=True)
        }


def labels_of(table: Table) -> dict[str, NDArray[np.int64]]:
    return {"route": table.route, "depth": table.depth, "cacheable": table.cacheable}


def softmax(z: FloatArray) -> FloatArray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def weights_of(table: Table) -> dict[str, FloatArray]:
    """Loss weight per row and head: languages and routes count alike (by square root), missing labels not at all."""
    languages = np.array([example.language == "zh" for example in table.examples])
    weights = {}
    for head, label in labels_of(table).items():
        weight = np.zeros(len(table), dtype=np.float32)
        known = label >= 0
        for value in range(HEADS[head]):
            for zh in (False, True):
                rows = known & (label == value) & (languages == zh)
                if rows.any():
                    weight[rows] = 1 / np.sqrt(rows.sum())
        weights[head] = weight / weight[known].mean() if known.any() else weight
    return weights


def fit(
    train: Table,
    calibration: Table,
    *,
    epochs: int = 14,
    batch: int = 256,
    rate: float = 2e-3,
    decay: float = 0.02,
    dropout: float = 0.3,
    alpha: float = 0.08,
    seed: int = 0,
) -> Fitted:
    """Trains on `train`, then calibrates on `calibration`. `alpha` is the conformal miss rate aimed at."""
    draw = np.random.default_rng(seed)
    mean, scale = train.x.mean(axis=0), _scale(train.x)
    x, labels, weights = (train.x - mean) / scale, labels_of(train), weights_of(train)
    inputs, outputs = x.shape[1], sum(HEADS.values())
    theta = [
        draw.normal(0, np.sqrt(2 / inputs), (inputs, HIDDEN)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        draw.normal(0, np.sqrt(1 / HIDDEN), (HIDDEN, outputs)).astype(np.float32),
        np.zeros(outputs, np.float32),
    ]
    ends = np.cumsum(list(HEADS.values()))
    for head, end in zip(HEADS, ends, strict=True):
        if (labels[head] < 0).all():  # a head that is told nothing says nothing
            theta[2][:, end - HEADS[head] : end] = 0
    first, second = [np.zeros_like(p) for p in theta], [np.zeros_like(p) for p in theta]
    steps, step = epochs * -(-len(x) // batch), 0
    for _ in range(epochs):
        order = draw.permutation(len(x))
        for start in range(0, len(x), batch):
            rows = order[start : start + batch]
            step += 1
            told = {head: label[rows] for head, label in labels.items()}
            weight = {head: each[rows] for head, each in weights.items()}
            gradients = _gradients(theta, x[rows], told, weight, dropout, draw)
            lr = rate * 0.5 * (1 + np.cos(np.pi * step / steps))
            for i, gradient in enumerate(gradients):
                first[i] += 0.1 * (gradient - first[i])
                second[i] += 0.001 * (gradient**2 - second[i])
                update = (first[i] / (1 - 0.9**step)) / (np.sqrt(second[i] / (1 - 0.999**step)) + 1e-8)
                theta[i] -= lr * (update + decay * theta[i] * (theta[i].ndim == 2))
    w1 = theta[0] / scale[:, None] * (train.x.std(axis=0) > 0)[:, None]  # what never varied says nothing
    weak = _weak_head(x, train.weak)
    own = weak[:-1] / scale
    plain = Fitted(
        w1=w1,
        b1=theta[1] - mean @ w1,
        w2=theta[2],
        b2=theta[3],
        weak=np.append(own, weak[-1] - mean @ own).astype(np.float32),
        temperature=dict.fromkeys(HEADS, 1.0),
        conformal=0.0,
    )
    return calibrate(plain, calibration, alpha=alpha)


def _scale(x: FloatArray) -> FloatArray:
    """What inputs are divided by. Rare flags keep their size, or one would outweigh all else when it is set."""
    spread = x.std(axis=0)
    return np.asarray(np.where(np.abs(x).max(axis=0) > 0.5, np.maximum(spread, 0.1), spread + 1e-3), dtype=np.float32)


def _weak_head(x: FloatArray, label: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weights [inputs + 1] of the linear head; zeros, which say nothing, without labels of both kinds."""
    known = label >= 0
    if len(np.unique(label[known])) < 2:
        return np.zeros(x.shape[1] + 1)
    return logistic(x[known], label[known].astype(np.float64), np.ones(int(known.sum())), ridge=RIDGE)


def logistic(
    x: FloatArray, y: NDArray[np.float64], weight: NDArray[np.float64], ridge: float = 1.0
) -> NDArray[np.float64]:
    """Weights [features + 1] of a ridge-penalised logistic regression, the bias last, by Newton's method."""
    a = np.hstack([x.astype(np.float64), np.ones((len(x), 1))])
    theta, penalty = np.zeros(a.shape[1]), np.full(a.shape[1], ridge)
    penalty[-1] = 0.0
    for _ in range(12):
        p = 1 / (1 + np.exp(-np.clip(a @ theta, -30, 30)))
        gradient = a.T @ (weight * (p - y)) + penalty * theta
        hessian = (a * (weight * p * (1 - p))[:, None]).T @ a + np.diag(penalty + 1e-9)
        theta -= np.linalg.solve(hessian, gradient)
    return theta


def _gradients(
    theta: list[FloatArray],
    x: FloatArray,
    labels: dict[str, NDArray[np.int64]],
    weights: dict[str, FloatArray],
    dropout: float,
    draw: np.random.Generator,
) -> list[FloatArray]:
    w1, b1, w2, b2 = theta
    x = x * (draw.random(x.shape, dtype=np.float32) > 0.1) / np.float32(0.9)
    pre = x @ w1 + b1
    mask = (pre > 0) * (draw.random(pre.shape, dtype=np.float32) > dropout) / np.float32(1 - dropout)
    hidden = pre * mask
    z = hidden @ w2 + b2
    dz, at = np.zeros_like(z), 0
    for head, size in HEADS.items():
        known = labels[head] >= 0
        if known.any():
            p = softmax(np.asarray(z[known, at : at + size], dtype=np.float32))
            p[np.arange(len(p)), labels[head][known]] -= 1
            dz[known, at : at + size] = p * weights[head][known, None] / len(x)
        at += size
    dh = (dz @ w2.T) * mask
    return [x.T @ dh, dh.sum(axis=0), hidden.T @ dz, dz.sum(axis=0)]


def calibrate(plain: Fitted, table: Table, *, alpha: float) -> Fitted:
    """One temperature per head by likelihood; then the split-conformal quantile of `1 - p(true route)`.

    For the quantile every (source, route) counts alike: small, odd sources must be covered as well as large ones.
    """
    logits, labels = plain.logits(table.x), labels_of(table)
    sources = np.array([f"{e.source}:{e.route}" for e in table.examples])
    temperature = {}
    for head in HEADS:
        known = labels[head] >= 0
        temperature[head] = _temperature(logits[head][known], labels[head][known]) if known.any() else 1.0
    known = table.route >= 0
    p = softmax(logits["route"][known] / temperature["route"])
    miss = 1 - p[np.arange(len(p)), table.route[known]]
    order = np.argsort(miss)
    share = np.cumsum(_even(sources[known])[order])
    quantile = float(miss[order][min(len(miss) - 1, int(np.searchsorted(share, 1 - alpha)))])
    return Fitted(
        w1=plain.w1, b1=plain.b1, w2=plain.w2, b2=plain.b2, weak=plain.weak, temperature=temperature, conformal=quantile
    )


def _even(groups: NDArray[np.str_]) -> FloatArray:
    """Weights that sum to one and give each group the same total."""
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    weight = 1 / counts[inverse]
    return np.asarray(weight / weight.sum(), dtype=np.float64)


def _temperature(z: FloatArray, label: NDArray[np.int64]) -> float:
    grid = np.exp(np.linspace(np.log(0.4), np.log(4.0), 60))
    scaled = (softmax(np.asarray(z / t, dtype=np.float32)) for t in grid)
    losses = [-np.log(p[np.arange(len(z)), label] + 1e-12).mean() for p in scaled]
    return float(grid[int(np.argmin(losses))])
