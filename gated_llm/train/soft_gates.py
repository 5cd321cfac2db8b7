"""Gates while they are trained: one per residual branch, from what its block takes in and from the thrift (G1).

alpha = sigmoid(weight · x / |x| + bias - thrift * slope), where |x| is the root mean square and thrift 0 at full depth,
1 at the shallowest. A branch whose alpha is below a half is left out, with the same holes in keys and values that
decoding has; one that runs is scaled by alpha. Gradients pass straight through the choice. The start is the plan:
alpha is 0.99 without thrift, and a half where the plan leaves the branch out. Ideas: GateSkip, arXiv 2510.13876;
straight-through, arXiv 1308.3432.
"""

from typing import Self

import torch
from torch import Tensor

from ..gates import SAFE, SKIP
from ..policy import SAFE_LAYERS, Plan

OPEN = 4.595  # logit of 0.99, where gates start
_QUICK = 10.0  # bias and slope learn so many times faster than one weight
_STEEP = 8.0  # what all weights together learn so much faster than one, for a state of unit mean square
_NEVER = 4.0  # thrift at which a branch that the plan keeps would leave


class SoftGates:
    """`parameters`: `gates.weight` [layers, 2, hidden], `gates.bias` and `gates.slope` [layers, 2], as `values` has
    them but for constant factors. `floor`: depth in layers that thrift 1 stands for.
    """

    def __init__(self, plan: Plan, hidden: int, *, floor: float) -> None:
        self.total, self.floor, self._share = plan.total, floor, plan.attention_share
        slope = torch.full((plan.total, 2), OPEN / _NEVER)
        for point in plan.points:
            kind, layer = point.drop
            slope[layer, int(kind == "mlp")] = OPEN / self.thrift(point.depth)
        slope[plan.total - SAFE_LAYERS :] = 0
        self.parameters = {
            "gates.weight": torch.zeros(plan.total, 2, hidden),
            "gates.bias": torch.full((plan.total, 2), OPEN / _QUICK),
            "gates.slope": slope / _QUICK,
        }
        self._scale = {"gates.weight": _STEEP * hidden**-0.5, "gates.bias": _QUICK, "gates.slope": _QUICK}
        self._thrift, self._temperature = 0.0, 1.0
        self._free = torch.ones(1, 1, dtype=torch.bool)
        self._ran: list[Tensor] = []
        self.refresh()

    def thrift(self, depth: float) -> float:
        """0 at full depth, 1 at the floor."""
        return (self.total - depth) / (self.total - self.floor)

    def refresh(self) -> None:
        """Takes over `parameters` after they have changed."""
        self._leaves = {name: value.clone().requires_grad_() for name, value in self.parameters.items()}

    def gradients(self) -> dict[str, Tensor]:
        """By the names of `parameters`; clears them."""
        found = {n: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for n, leaf in self._leaves.items()}
        for leaf in self._leaves.values():
            leaf.grad = None
        return found

    def at(self, thrift: float, free: Tensor, *, temperature: float = 1.0) -> Self:
        """Begins a pass: `free` [rows, 1] says which tokens may be shortened."""
        self._thrift, self._free, self._temperature, self._ran = thrift, free, temperature, []
        return self

    def __call__(self, layer: int, x: Tensor) -> Tensor:
        """What the layer's branches are scaled by, [rows, 2], 0 where they are left out, for `x` [rows, hidden]."""
        weight, bias, slope = (self._leaves[f"gates.{n}"][layer] * s for n, s in zip(
            ("weight", "bias", "slope"), self._scale.values(), strict=True
        ))  # fmt: skip
        wide = x.float()
        unit = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        logit = unit @ weight.t() + bias - self._thrift * slope
        alpha, soft = torch.sigmoid(logit), torch.sigmoid(logit / self._temperature)
        if layer >= self.total - SAFE_LAYERS:
            return torch.where(self._free, alpha.clamp(min=SAFE), 1.0)
        runs = (alpha >= SKIP).float()
        self._ran.append(torch.where(self._free, soft + (runs - soft).detach(), 0.0))
        scaled = soft + (alpha * runs - soft).detach()
        return torch.where(self._free, scaled, 1.0)

    def depth(self) -> Tensor:
        """Mean depth in layers of the tokens that may be shortened, in the last pass."""
        shares = torch.tensor((self._share, 1 - self._share))
        ran = torch.stack(self._ran).sum(0) @ shares
        return SAFE_LAYERS + ran.sum() / self._free.sum().clamp(min=1)

    def values(self) -> dict[str, Tensor]:
        """`weight`, `bias` and `slope` as the formula above takes them."""
        return {name.split(".")[1]: self.parameters[name] * scale for name, scale in self._scale.items()}
