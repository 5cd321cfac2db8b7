"""What trained gates do on text they were not trained on: depth and loss at several thrifts, and their alphas (G1).

Sequences go token by token through the native kernel, with the holes that the gates' own choices lead to; prompts are
read at full depth. Knows no training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gates import GatePoint, Gates, Thrift
from ..gating import Choice, Mask, run_mask
from ..native import NativeDecoder
from ..policy import SAFE_LAYERS, Plan
from .cohort import Cohort
from .samples import Sample

THRIFTS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
DORMANT = 0.1  # alpha below which a branch counts as nearly dormant
_KINDS = {"own_chats": "chat", "text": "scoring"}  # of packs' sources; all others are grounded answers


@dataclass(slots=True)
class Heard(Choice):
    """A chooser that keeps every alpha."""

    heard: list[NDArray[np.float32]] = field(default_factory=list)

    def gated(self, run: Mask, alpha: NDArray[np.float32]) -> None:
        Choice.gated(self, run, alpha)
        self.heard.append(alpha.copy())


def held_samples(packs: Sequence[Any], most: int) -> list[Sample]:
    """Prompts and answers of held-out packs, at most so many of each kind of work."""
    found: dict[str, list[Sample]] = {}
    for pack in packs:
        for branch in pack.branches:
            kind = _KINDS.get(branch.source, "grounded")
            read = [*pack.trunk, *branch.ids[: -branch.answer]]
            found.setdefault(kind, []).append(Sample(kind=kind, prefix=read, rest=list(branch.ids[-branch.answer :])))
    return [sample for samples in found.values() for sample in samples[:most]]


def measured(
    gates: Gates, kernel: NativeDecoder, samples: Sequence[Sample], plan: Plan, *, thrifts: Sequence[float] = THRIFTS
) -> Gates:
    """The gates with a point for every thrift, and in `about` what their alphas are: per thrift the median, the share
    that is nearly dormant, and per layer and branch the mean.

    A loss is never given as less than the KL, which samples of this size can miss.
    """
    kernel.set_gates(gates)
    cohort = Cohort(kernel, samples)
    points, alphas = [], {}
    for thrift in thrifts:
        choices = [
            Heard(policy="gates", plan=plan, base=run_mask(plan, []), thrift=Thrift(value=thrift)) for _ in samples
        ]
        run = cohort.replay(lambda i, choices=choices: choices[i])  # type: ignore[misc]
        lost = run.nll - cohort.nll
        of = {kind: cohort.kinds == kind for kind in sorted(set(cohort.kinds.tolist()))}
        points.append(
            GatePoint(
                thrift=thrift,
                depth={kind: round(float(run.depth[rows].mean()), 4) for kind, rows in of.items()},
                loss={k: round(float(max(lost[rows].mean(), run.kl[rows].mean())), 6) for k, rows in of.items()},
            )
        )
        alphas[str(thrift)] = report(np.concatenate([choice.heard for choice in choices]))
    tokens = {kind: int((cohort.kinds == kind).sum()) for kind in set(cohort.kinds.tolist())}
    return replace(gates, points=tuple(points), about={**gates.about, "measured": tokens, "alphas": alphas})


def report(alpha: NDArray[np.float32]) -> dict[str, Any]:
    """Of alphas [tokens, layers, 2], the last layers left out of the shares: median, share nearly dormant, means."""
    free = alpha[:, : alpha.shape[1] - SAFE_LAYERS]
    return {
        "median": round(float(np.median(free)), 4),
        "dormant": round(float((free < DORMANT).mean()), 4),
        "mean": [[round(float(value), 3) for value in pair] for pair in alpha.mean(0)],
    }


def draw_alphas(alphas: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """A picture of the mean alpha of every branch: before training (0.99 everywhere) and at each thrift."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, at, name in zip(figure.subplots(1, 2, sharey=True), range(2), ("attention", "MLP"), strict=True):
        rows = [[0.99] * len(next(iter(alphas.values()))["mean"])]
        rows += [[pair[at] for pair in one["mean"]] for one in alphas.values()]
        image = axes.imshow(rows, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
        axes.set_yticks(range(len(rows)), ["before", *(f"thrift {thrift}" for thrift in alphas)])
        axes.set_xlabel(f"layer, {name}")
    figure.colorbar(image, label="mean alpha")
    figure.savefig(out, dpi=120)
