"""Branches that answers people disliked had left out unusually often (G15), from their depth reports.

Plain counting: what was skipped for a disliked answer's tokens, beyond what is skipped for the others. The next
calibration weighs these branches, so that they leave later. Knows no store and no model.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .policy import Branch

_LEAST = 0.05  # of the tokens: a smaller excess is chance


def marks_of(disliked: Iterable[Mapping[str, Any]], others: Iterable[Mapping[str, Any]]) -> dict[Branch, float]:
    """Share of tokens, 0 to 1, by which each branch was skipped more for disliked answers than for the others.

    Depth reports as `DepthReport.to_dict` gives them; those without generated tokens say nothing. Branches that stand
    out by less than 5% of the tokens are left out.
    """
    bad, usual = _skipped(disliked), _skipped(others)
    if bad is None:
        return {}
    excess = bad if usual is None or usual.shape != bad.shape else bad - usual
    found: dict[Branch, float] = {}
    for layer, (attention, mlp) in enumerate(excess.tolist()):
        found |= {("attention", layer): attention, ("mlp", layer): mlp}
    return {branch: share for branch, share in found.items() if share > _LEAST}


def _skipped(reports: Iterable[Mapping[str, Any]]) -> NDArray[np.float64] | None:
    """Share [layers, 2] of an answer's tokens that skipped a branch, mean over the answers; None without any."""
    shares = [
        1 - np.array(report["branch_runs"], float) / len(report["per_token"])
        for report in reports
        if report.get("per_token") and report.get("branch_runs")
    ]
    layers = {len(share) for share in shares}
    if len(layers) != 1:  # none, or of several models
        return None
    mean: NDArray[np.float64] = np.mean(shares, axis=0)
    return mean
