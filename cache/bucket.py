"""Depth buckets and the rules of depth-aware reuse (C1, C2). Pure functions of numbers.

Knows nothing of prompts, tiers or time. Reference edges are 20 and 35 of 40 layers; for N layers they scale to
`round(20/40 * N)` and `round(35/40 * N)`. A bucket's *rank* is its place from shallow (0) to deep (2).
"""

import math
from collections.abc import Sequence

from .errors import CacheInputError

EDGES = (20 / 40, 35 / 40)


def check_budget(budget: float, total: int) -> float:
    """The budget in layers as float; raises `CacheInputError` outside `0..total` or when it is not a number."""
    if isinstance(total, bool) or not isinstance(total, int) or total < 1:
        raise CacheInputError(f"total must be a positive number of layers, got {total!r}")
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not math.isfinite(budget):
        raise CacheInputError(f"budget must be a number of layers from 0 to {total}, got {budget!r}")
    if not 0 <= budget <= total:
        raise CacheInputError(f"budget must lie between 0 and {total} layers, got {budget}")
    return float(budget)


def limits(total: int, edges: Sequence[float] = EDGES) -> tuple[int, ...]:
    """The deepest budget, in layers, of every bucket but the last."""
    if not edges or any(not 0 < edge < 1 for edge in edges) or list(edges) != sorted(set(edges)):
        raise CacheInputError(f"edges must be rising shares between 0 and 1, got {tuple(edges)}")
    return tuple(math.floor(edge * total + 0.5) for edge in edges)


def rank_of(budget: float, total: int, edges: Sequence[float] = EDGES) -> int:
    """Place of the budget's bucket, 0 the shallowest."""
    budget = check_budget(budget, total)
    return sum(budget > limit for limit in limits(total, edges))


def name_of(rank: int, total: int, edges: Sequence[float] = EDGES) -> str:
    """Name of a bucket, such as `16-26`; the last one is open: `27+`."""
    bounds = limits(total, edges)
    low = 0 if rank == 0 else bounds[rank - 1] + 1
    return f"{low}+" if rank == len(bounds) else f"{low}-{bounds[rank]}"


def bucket_of(budget: float, total: int, edges: Sequence[float] = EDGES) -> str:
    """Name of the bucket a budget (layers) falls in: for 30 layers `0-15`, `16-26`, `27+`."""
    return name_of(rank_of(budget, total, edges), total, edges)


def serves(stored_rank: int, wanted_rank: int) -> bool:
    """C2: an answer made under a deeper (or the same) budget may serve a shallower request, never the reverse."""
    return stored_rank >= wanted_rank


def upgrades(new_rank: int, new_budget: float, old_rank: int, old_budget: float) -> bool:
    """C2: whether a newly made answer takes the place of a stored, still fresh one."""
    return (new_rank, new_budget) >= (old_rank, old_budget)
