"""Gates at work inside one torch pass over one request: which tokens run a branch, and scaled by what (G1).

The torch side of what the native kernel does by itself. Knows no plans and no text.
"""

import torch
from torch import Tensor

from .gates import SAFE, SKIP, WHOLE_PROMPT, Gates, Thrift
from .policy import SAFE_LAYERS


class TorchGates:
    """Gates as tensors on a decoder's device."""

    def __init__(self, gates: Gates, device: torch.device) -> None:
        self.weight, self.bias, self.slope = (
            torch.from_numpy(part.copy()).to(device) for part in (gates.weight, gates.bias, gates.slope)
        )

    def begin(self, thrift: Thrift, positions: Tensor, *, prompt: bool) -> "GatedPass":
        """A pass over tokens at `positions` [1, seq], of a `prompt` or generated."""
        free = positions[0] >= WHOLE_PROMPT if prompt else torch.ones_like(positions[0], dtype=torch.bool)
        return GatedPass(self, thrift, free)


class GatedPass:
    """`ran` uint8 and `alpha` fp32 [seq, layers, 2] say what was done, once the pass is over."""

    def __init__(self, gates: TorchGates, thrift: Thrift, free: Tensor) -> None:
        self._gates, self.thrift, self._free = gates, thrift, free
        shape = len(free), *gates.bias.shape
        self.ran = torch.zeros(shape, dtype=torch.uint8)
        self.alpha = torch.ones(shape)

    def decide(self, layer: int, x: Tensor, attention: bool, mlp: bool) -> Tensor:
        """What each token's branches are scaled by, [seq, 2], 0 where left out, for `x` [1, seq, hidden]; the pass
        itself runs `attention` and `mlp` or not.
        """
        gates, wide = self._gates, x[0].float()
        square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_() / wide.shape[-1]
        logit = (wide @ gates.weight[layer].t()) * torch.rsqrt(square + 1e-6)
        logit += gates.bias[layer] - self.thrift.value * gates.slope[layer]
        alpha = torch.sigmoid(logit)
        if layer >= len(gates.bias) - SAFE_LAYERS:
            alpha = alpha.clamp(min=SAFE)
        alpha = torch.where(self._free[:, None], alpha, 1.0)
        runs = (alpha >= SKIP) & torch.tensor([attention, mlp], device=x.device)
        self.alpha[:, layer], self.ran[:, layer] = alpha.cpu(), runs.to("cpu", torch.uint8)
        return alpha * runs
