"""A training run's curve as CSV and, where matplotlib is at hand, as a picture."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

_COLUMNS = (
    "step", "seconds", "full", "shallow", "gated", "distance", "norm", "exact", "exact_nll", "exact_shallow",
    "exact_shallow_nll", "exact_gated", "exact_gated_nll", "depth_gated",
)  # fmt: skip
_WAYS = {"": "full depth", "_shallow": "by the plan", "_gated": "by gates"}


def draw_curve(curve: Sequence[Mapping[str, float]], out: Path) -> None:
    """Writes `curve.csv` and `curve.png` in `out`: losses every few steps, held-out quality where it was measured."""
    with (out / "curve.csv").open("w", encoding="utf-8", newline="") as file:
        more = {key for row in curve for key in row} - set(_COLUMNS)
        writer = csv.DictWriter(file, [*_COLUMNS, *sorted(more)])
        writer.writeheader()
        writer.writerows({key: round(value, 5) for key, value in row.items()} for row in curve)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(8, 4), layout="constrained")
    FigureCanvasAgg(figure)
    losses, quality = figure.subplots(1, 2)
    for axes, names, label in (
        (losses, {"full": "full depth", "shallow": "by the plan", "gated": "by gates"}, "training loss, nats"),
        (
            quality,
            {"exact": "full depth", "exact_shallow": "by the plan", "exact_gated": "by gates"},
            "held-out answers word for word",
        ),
    ):
        for key, name in names.items():
            if not (rows := [row for row in curve if key in row]):
                continue
            axes.plot([row["step"] for row in rows], [row[key] for row in rows], label=name)
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        if axes.lines:
            axes.legend()
    figure.savefig(out / "curve.png", dpi=120)
