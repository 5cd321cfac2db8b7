"""Weight matrices and how they multiply: dense, or weight-only in int8 or int4 (G17).

Few rows (decoding) are bound by weight traffic, so they use the narrow form; many rows (prefill) are bound by
arithmetic, so they use a dense bf16 copy. Knows nothing of layers.
"""

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

# Below this the narrow form wins by moving fewer bytes; from about ten rows bf16 on AMX or AVX-512 wins.
_FEW_ROWS: Final = 8
_GROUP: Final = 32

# A linear map: [rows, in] -> [rows, out].
Matrix = Callable[[Tensor], Tensor]


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


class Int4:
    """int4 in groups of 32 with scale and minimum, made from `weight` [out, in]; takes and gives bf16.

    Weights that come from 4-bit blocks of that form (GGUF's Q4_1) are held without loss but for the rounding of scale
    and minimum to bf16.
    """

    __slots__ = ("_packed", "_scales", "bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        q, scale, low = _to_int4(weight)
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
        # the kernel computes (q - 8) * scale + zero
        pair = torch.stack([scale, low + 8 * scale], dim=-1).to(torch.bfloat16)
        self._scales = pair.transpose(0, 1).contiguous()
        self.weight = weight.to(torch.bfloat16)
        self.bias = None if bias is None else bias.to(torch.bfloat16)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] > _FEW_ROWS:
            return F.linear(x, self.weight, self.bias)
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._packed, _GROUP, self._scales)
        return out if self.bias is None else out.add_(self.bias)


def make_matrix(weight: Tensor, bias: Tensor | None, dtype: str) -> Matrix:
    """`weight` in the form that `dtype` names: "fp32", "bf16", "int8", "int4", or "exact", int4 where it loses nothing,
    else int8.
    """
    if dtype == "exact":
        dtype = "int4" if is_4bit(weight) else "int8"
    if dtype == "int4" and weight.shape[0] % 16 == 0 and weight.shape[1] % _GROUP == 0:
        return Int4(weight, bias)
    if dtype in ("int8", "int4"):
        return Int8(weight, bias)
    kind = torch.float32 if dtype == "fp32" else torch.bfloat16
    return Dense(weight.to(kind), None if bias is None else bias.to(kind))


def _to_int4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes 0 to 15 [out, in], and scale and minimum [out, in / 32]; the scale is rounded to fp16, as GGUF keeps it."""
    groups = weight.float().view(weight.shape[0], -1, _GROUP)
    low, high = groups.aminmax(dim=-1)
    scale = ((high - low) / 15).half().float().clamp_(min=1e-7)
    q = ((groups - low[..., None]) / scale[..., None]).round_().clamp_(0, 15)
    return q.view(weight.shape).to(torch.int32), scale, low


def is_4bit(weight: Tensor) -> bool:
    """Whether int4 in groups of 32 holds `weight` [out, in] without loss, as it does GGUF's Q4_1; looks at 64 rows."""
    if weight.shape[0] % 16 or weight.shape[1] % _GROUP:
        return False
    sample = weight[:64]
    q, scale, low = _to_int4(sample)
    back = q.view(*scale.shape, _GROUP) * scale[..., None] + low[..., None]
    return bool((back - sample.float().view(back.shape)).abs().max() <= 1e-5 * sample.abs().max())
