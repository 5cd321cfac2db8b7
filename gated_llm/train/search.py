"""Searches the order in which branches leave a model (G2): greedy, then swaps.

Greedy: at every step each branch that is left is tried without, on few samples, the best few on all, and the one that
adds least KL to the full model per depth saved leaves. Swaps: greedy takes what is best now, not what is best together,
so later branches are then moved forward wherever that lowers the area under the curve of KL over depth. Ranking layers
by how little they turn their input misleads: it finds layer 11 of the default model idle, KL 2.0 without it.

What has been found is one plain record: a search that goes on from a saved one ends as an unbroken one does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..config import DecoderConfig
from ..policy import SAFE_LAYERS, Branch
from .bench import Bench, mask_without

_WIDE_EVERY, _NARROW = 5, 12  # every so many steps all branches are tried, else this many of the best so far
_FINAL = 3  # of those are tried on all samples
_REACH, _SWEEPS = 4, 2  # a swap moves a branch forward by up to so many places; how often all places are tried
_DISLIKED = 0.01  # KL that a branch counts as dearer where every disliked answer had skipped it, and no other
_WORTH = 0.01  # of the area that a swap changes is what it has to gain on few samples, to be tried on all


@dataclass(slots=True, kw_only=True)
class Found:
    """`order` so far, the last price (KL per layer) seen of every branch that is left, and places tried for swaps."""

    order: list[Branch] = field(default_factory=list)
    price: dict[Branch, float] = field(default_factory=dict)
    settled: int = 0


class Search:
    """`rough` measures on few samples, `exact` on all; goes down to `min_depth` layers from what is `found`.

    `marks`: a branch marked 0.5 counts as half as dear again as it measures (G15).
    """

    def __init__(
        self,
        rough: Bench,
        exact: Bench,
        config: DecoderConfig,
        *,
        min_depth: float,
        found: Found | None = None,
        marks: Mapping[Branch, float] | None = None,
    ) -> None:
        self._rough, self._exact, self._layers = rough, exact, config.layers
        self._share = {"attention": config.attention_share, "mlp": 1 - config.attention_share}
        self._marks = marks or {}
        self._min_depth = min_depth
        self._seen: dict[tuple[Bench, frozenset[Branch]], float] = {}
        self.found = found or Found()

    @property
    def depth(self) -> float:
        """Layers without all branches of the order."""
        return self._layers - sum(self._share[kind] for kind, _ in self.found.order)

    def grow(self) -> bool:
        """Lets one more branch leave; False where the depth is reached or none is left."""
        found = self.found
        left = [b for b in self._candidates() if b not in found.order]
        if self.depth <= self._min_depth + 1e-9 or not left:
            return False
        self._rough.adopt(mask_without(found.order, self._layers))
        self._exact.adopt(mask_without(found.order, self._layers))
        base, floor = self._kl(self._rough, found.order), self._kl(self._exact, found.order)
        wide = len(found.order) % _WIDE_EVERY == 0
        tried = left if wide else sorted(left, key=found.price.__getitem__)[:_NARROW]
        for branch in tried:
            found.price[branch] = self._price(branch, self._kl(self._rough, [*found.order, branch]) - base)
        exact = {
            branch: self._price(branch, self._kl(self._exact, [*found.order, branch]) - floor)
            for branch in sorted(tried, key=found.price.__getitem__)[:_FINAL]
        }
        chosen = min(exact, key=exact.__getitem__)
        del found.price[chosen]
        found.order.append(chosen)
        return True

    def settle(self) -> bool:
        """Tries at one more place of the order whether a later branch should stand there; False where all are tried."""
        found = self.found
        if found.settled >= _SWEEPS * len(found.order):
            return False
        at = found.settled % len(found.order)
        self._rough.adopt(mask_without(found.order[:at], self._layers))
        later = range(at + 1, min(at + 1 + _REACH, len(found.order)))
        moves = [move for move in later if found.order[move] not in self._marks]
        gains = {at_later: self._gain(self._rough, at, at_later) for at_later in moves}
        worth = [move for move in moves if gains[move] > _WORTH * self._area(self._rough, found.order, at, move)]
        best = max(worth, key=gains.__getitem__, default=None)
        if best is not None:
            self._exact.adopt(mask_without(found.order[:at], self._layers))
            if self._gain(self._exact, at, best) > 0:
                found.order = self._moved(at, best)
        found.settled += 1
        return True

    def kl(self) -> float:
        """KL without all branches of the order, on all samples."""
        return self._kl(self._exact, self.found.order)

    def _price(self, branch: Branch, kl: float) -> float:
        """Per depth saved; what is marked costs more, even where it measures as free."""
        mark = self._marks.get(branch, 0.0)
        return (kl * (1 + mark) + mark * _DISLIKED) / self._share[branch[0]]

    def _candidates(self) -> Iterable[Branch]:
        for layer in range(self._layers - SAFE_LAYERS):
            yield "attention", layer
            yield "mlp", layer

    def _kl(self, bench: Bench, gone: list[Branch]) -> float:
        key = bench, frozenset(gone)
        if key not in self._seen:
            self._seen[key] = bench.kl(mask_without(gone, self._layers))
        return self._seen[key]

    def _moved(self, to: int, start: int) -> list[Branch]:
        order = list(self.found.order)
        order.insert(to, order.pop(start))
        return order

    def _gain(self, bench: Bench, to: int, start: int) -> float:
        moved = self._moved(to, start)
        return self._area(bench, self.found.order, to, start) - self._area(bench, moved, to, start)

    def _area(self, bench: Bench, order: list[Branch], first: int, last: int) -> float:
        """KL times layers, over the depths that the places `first` to `last` of `order` serve."""
        return sum(
            self._kl(bench, order[: place + 1]) * self._share[order[place][0]] for place in range(first, last + 1)
        )
