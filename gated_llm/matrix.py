"""Weight matrices and how they multiply: dense in fp32 or bf16, or int8 weight-only with one scale per row (G17).

Few rows (decoding) are bound by weight traffic, so they use int8; many rows (prefill) are bound by arithmetic, so they use
a dense bf16 copy. Knows nothing of layers.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

# At one to eight rows int8 moves a quarter of fp32's bytes and wins; from about ten rows bf16 on AMX or AVX-512 wins.
_FEW_ROWS = 8


class Matrix(Protocol):
    """A linear map: [rows, in] -> [rows, out]."""

    def __call__(self, x: Tensor) -> Tensor: ...


class Dense:
    """`weight` [out, in] as it is, `bias` [out] or None."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Int8:
    """int8 rows with one bf16 scale each, made from `weight` [out, in]; takes and gives bf16."""

    __slots__ = ("_q", "_scale", "bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        full = weight.float()
        self._scale = (full.abs().amax(dim=1) / 127).clamp_(min=1e-12).to(torch.bfloat16)
        self._q = (full / self._scale.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        self.weight = weight.to(torch.bfloat16)
        self.bias = None if bias is None else bias.to(torch.bfloat16)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] > _FEW_ROWS:
            return F.linear(x, self.weight, self.bias)
        out = torch._weight_int8pack_mm(x, self._q, self._scale)
        return out if self.bias is None else out.add_(self.bias)
