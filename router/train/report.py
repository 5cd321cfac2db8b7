"""How good a classifier is on held-out requests: accuracy, macro-F1, calibration error, coverage, confusion.

Knows arrays and, for the picture, matplotlib (extra `plots`). No thresholds are fitted here.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingExtra, RouterError
from ..features import FloatArray
from .data import ROUTES, Table
from .fit import Fitted, softmax

BINS = 15


def macro_f1(truth: NDArray[np.int64], guess: NDArray[np.int64]) -> tuple[float, dict[str, float]]:
    """Macro-F1 over the routes present in `truth`, and F1 of each."""
    each = {}
    for i, route in enumerate(ROUTES):
        hit = int(((truth == i) & (guess == i)).sum())
        if (truth == i).any():
            each[route.value] = 2 * hit / max(1, int((truth == i).sum() + (guess == i).sum()))
    return float(np.mean(list(each.values()))) if each else 0.0, each


def calibration_error(p: FloatArray, right: NDArray[np.bool_], bins: int = BINS) -> float:
    """Expected calibration error of confidences `p` [n] against whether they were right."""
    edges = np.minimum((p * bins).astype(int), bins - 1)
    return float(
        sum(
            abs(p[edges == b].mean() - right[edges == b].mean()) * (edges == b).mean()
            for b in range(bins)
            if (edges == b).any()
        )
    )


def reliability(p: FloatArray, right: NDArray[np.bool_], bins: int = BINS) -> list[tuple[float, float, int]]:
    """Per bin of confidences `p` [n] that has any: their mean, the share that was right, how many."""
    place = np.minimum((p * bins).astype(int), bins - 1)
    used = [place == b for b in range(bins) if (place == b).any()]
    return [(float(p[m].mean()), float(right[m].mean()), int(m.sum())) for m in used]


def confusion(truth: NDArray[np.int64], guess: NDArray[np.int64]) -> list[list[int]]:
    """Counts, [true route][guessed route], in the order of ROUTES."""
    table = np.zeros((len(ROUTES), len(ROUTES)), dtype=int)
    np.add.at(table, (truth, guess), 1)
    return [[int(n) for n in row] for row in table]


def measure(fitted: Fitted, test: Table) -> dict[str, Any]:
    """Metrics of a fitted network by language, by source, and over all, on the rows that carry a route."""
    table = test.where(lambda e: e.route is not None)
    p = softmax(fitted.logits(table.x)["route"])
    language = np.array([e.language for e in table.examples])
    source = np.array([e.source for e in table.examples])
    groups = {"all": np.ones(len(table), dtype=bool), **{name: language == name for name in sorted(set(language))}}
    sources = {
        name: float((p[source == name].argmax(1) == table.route[source == name]).mean()) for name in sorted(set(source))
    }
    return {
        "routes": [route.value for route in ROUTES],
        **{name: route_metrics(p[rows], table.route[rows], fitted.conformal) for name, rows in groups.items()},
        "accuracy_by_source": {name: round(value, 4) for name, value in sources.items()},
    }


def taken_routes(p: FloatArray, conformal: float) -> NDArray[np.int64]:
    """Routes after abstention: the deepest of the conformal set, or of the two likeliest where the set is empty."""
    inside = p >= 1 - conformal
    last = p.shape[1] - 1 - inside[:, ::-1].argmax(axis=1)
    return np.asarray(np.where(inside.any(axis=1), last, np.argsort(p, axis=1)[:, -2:].max(axis=1)), dtype=np.int64)


def route_metrics(p: FloatArray, truth: NDArray[np.int64], conformal: float) -> dict[str, Any]:
    """Metrics of route probabilities [n, routes] with the conformal threshold that abstention uses."""
    guess = p.argmax(axis=1)
    f1, each = macro_f1(truth, guess)
    inside = p >= 1 - conformal
    deepest = taken_routes(p, conformal)
    single = inside.sum(axis=1) == 1
    return {
        "n": len(truth),
        "accuracy": round(float((guess == truth).mean()), 4),
        "macro_f1": round(f1, 4),
        "f1": {name: round(value, 4) for name, value in each.items()},
        "ece": round(calibration_error(p.max(axis=1), guess == truth), 4),
        "coverage": round(float(inside[np.arange(len(truth)), truth].mean()), 4),
        "decided": round(float(single.mean()), 4),
        "accuracy_decided": round(float((guess == truth)[single].mean()), 4) if single.any() else None,
        "too_shallow": round(float((guess < truth).mean()), 4),
        "too_shallow_after_abstention": round(float((deepest < truth).mean()), 4),
        "confusion": confusion(truth, guess),
        "cost_curve": cost_curve(p, truth),
    }


def cost_curve(p: FloatArray, truth: NDArray[np.int64]) -> list[dict[str, float]]:
    """What careful routing costs: shares of requests sent deeper than their route and shallower, by conformal level."""
    rows = []
    for level in (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0):
        taken = taken_routes(p, level)
        deeper, shallower = float((taken > truth).mean()), float((taken < truth).mean())
        rows.append({"level": level, "too_deep": round(deeper, 4), "too_shallow": round(shallower, 4)})
    return rows


def can_draw(path: Path) -> None:
    """Raises MissingExtra without matplotlib, RouterError for a name that is no PNG's."""
    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "plots")
    if path.suffix.lower() != ".png":
        raise RouterError(f"{path.name}: pictures are drawn as .png; choose a name that ends so")


def draw(fitted: Fitted, test: Table, path: Path) -> None:
    """Reliability diagram, confusion matrix and cost curve as one PNG. Raises as `can_draw` does."""
    can_draw(path)
    from matplotlib.figure import Figure

    table = test.where(lambda e: e.route is not None)
    p = softmax(fitted.logits(table.x)["route"])
    guess, best = p.argmax(axis=1), p.max(axis=1)
    said, true, _ = zip(*reliability(best, guess == table.route), strict=True)
    figure = Figure(figsize=(13, 4), layout="constrained")
    left, right, third = figure.subplots(1, 3)
    left.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    left.plot(said, true, marker="o")
    left.set(xlabel="predicted probability", ylabel="share right", title="Reliability", xlim=(0, 1), ylim=(0, 1))
    counts = np.array(confusion(table.route, guess))
    right.imshow(counts / np.maximum(1, counts.sum(axis=1, keepdims=True)), cmap="Blues", vmin=0, vmax=1)
    names = [route.value for route in ROUTES]
    right.set(
        xticks=range(len(names)),
        xticklabels=names,
        yticks=range(len(names)),
        yticklabels=names,
        xlabel="routed to",
        ylabel="is",
        title="Confusion",
    )
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            right.text(
                j,
                i,
                str(count),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if count > counts[i].sum() / 2 else "black",
            )
    curve = cost_curve(p, table.route)
    here = taken_routes(p, fitted.conformal)
    third.plot([row["too_deep"] for row in curve], [row["too_shallow"] for row in curve], marker=".")
    third.plot([(here > table.route).mean()], [(here < table.route).mean()], "o", label="as calibrated")
    third.set(xlabel="share routed deeper than needed", ylabel="share routed too shallow", title="Cost", ylim=0)
    third.legend(frameon=False)
    figure.savefig(path, dpi=110)
