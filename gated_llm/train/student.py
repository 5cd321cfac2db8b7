"""A frozen decoder with trainable low-rank additions, built to train on few CPU cores.

Every projection runs as one matrix, the base with its addition merged in, as it will at run time; the additions'
gradients come from skinny products beside the backward pass, so that a step costs little more than the frozen model
forward and back. Branches can be left out, for all tokens, from some token on or by gates. Knows no data, no optimiser.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import DecoderConfig
from ..lora import ALPHA, TARGETS
from ..model import RunMask
from ..rope import rope_tables

_UNSEEN = -1e4  # added to the scores of keys that were not stored; finite, as a token may see none at all
_GROUPS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Sequences side by side. `ids`, `positions` [batch, seq]; `mask` [batch, 1, seq, seq], 0 where a token is seen and
    -inf elsewhere; `late` [batch * seq, 1], 0 for tokens that are chosen under a budget, 1 for those that are only
    read; `judged` flat indices whose next token is learned, `targets` and `weights` of those tokens.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    late: Tensor
    judged: Tensor
    targets: Tensor
    weights: Tensor


class _Merged(torch.autograd.Function):
    """`x` [rows, in] times the merged weight; gradients for the stacked A [parts * rank, in] and each part's B."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, a: Tensor, scale: float, *bs: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, a, *bs)
        ctx.scale = scale
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy,), (x, weight, a, *bs) = grads, ctx.saved_tensors
        u, rank = x @ a.t(), a.shape[0] // len(bs)
        dus, dbs, at = [], [], 0
        for part, b in enumerate(bs):
            piece = dy[:, at : at + b.shape[0]]
            dus.append(piece @ b)
            dbs.append((u[:, part * rank : (part + 1) * rank].t() @ piece).t() * ctx.scale)
            at += b.shape[0]
        da = torch.cat(dus, 1).t() @ x * ctx.scale
        return dy @ weight, None, da, None, *dbs


def _merged(x: Tensor, weight: Tensor, a: Tensor, scale: float, *bs: Tensor) -> Tensor:
    made: Tensor = _Merged.apply(x, weight, a, scale, *bs)  # type: ignore[no-untyped-call]
    return made


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((x[..., half:], x[..., :half]), -1) * sin


def _attention(
    x: Tensor, norm: Tensor, qkv: Sequence[Any], out: Sequence[Any], rotary: tuple[Tensor, Tensor], mask: Tensor,
    sizes: tuple[int, int, int], eps: float, scale: float,
) -> Tensor:  # fmt: skip
    heads, kv_heads, dim = sizes
    batch, _, seq, _ = mask.shape
    made = _merged(_norm(x, norm, eps), qkv[0], qkv[1], scale, *qkv[2])
    q, k, v = torch.split(made.view(batch, seq, heads + 2 * kv_heads, dim), [heads, kv_heads, kv_heads], 2)
    q, k = _turn(q, *rotary), _turn(k, *rotary)
    group = heads // kv_heads
    q = q.view(batch, seq, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(batch * kv_heads, group * seq, dim)
    k = k.permute(0, 2, 3, 1).reshape(batch * kv_heads, dim, seq)
    v = v.transpose(1, 2).reshape(batch * kv_heads, seq, dim)
    scores = torch.bmm(q, k).view(batch, kv_heads, group, seq, seq)
    shares = (scores.float() * dim**-0.5 + mask.unsqueeze(1)).softmax(-1).to(x.dtype)
    mixed = torch.bmm(shares.view(batch * kv_heads, group * seq, seq), v)
    mixed = mixed.view(batch, kv_heads * group, seq, dim).transpose(1, 2).reshape(batch * seq, heads * dim)
    return _merged(mixed, out[0], out[1], scale, *out[2])


def _mlp(x: Tensor, norm: Tensor, gate_up: Sequence[Any], down: Sequence[Any], eps: float, scale: float) -> Tensor:
    gate, up = _merged(_norm(x, norm, eps), gate_up[0], gate_up[1], scale, *gate_up[2]).chunk(2, -1)
    return _merged(F.silu(gate) * up, down[0], down[1], scale, *down[2])


class Student:
    """`parameters`: fp32 additions by their peft names (`model.layers.0.mlp.up_proj.lora_A.weight`)."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        *,
        rank: int,
        seed: int,
        dtype: torch.dtype = torch.bfloat16,
        compiled: bool = False,
    ) -> None:
        self.config, self.rank, self.scale, self._dtype = config, rank, ALPHA / rank, dtype
        draw = torch.Generator().manual_seed(seed)
        self.parameters: dict[str, Tensor] = {}
        for layer in range(config.layers):
            for target in TARGETS:
                name = f"model.layers.{layer}.{target}"
                rows, columns = weights[f"{name}.weight"].shape
                bound = columns**-0.5
                a = torch.empty(rank, columns).uniform_(-bound, bound, generator=draw)
                self.parameters[f"{name}.lora_A.weight"] = a
                self.parameters[f"{name}.lora_B.weight"] = torch.zeros(rows, rank)
        self.embedding = weights["model.embed_tokens.weight"].to(dtype)
        self._head = self.embedding if config.tied else weights["lm_head.weight"].to(dtype)
        self._norm = weights["model.norm.weight"].to(dtype)
        self._cos, self._sin = (table.to(dtype) for table in rope_tables(config))
        self._norms = [
            tuple(weights[f"model.layers.{i}.{n}_layernorm.weight"].to(dtype) for n in ("input", "post_attention"))
            for i in range(config.layers)
        ]
        self._base = [
            [torch.cat([weights[f"{name}.weight"].float() for name in self._names(i, group)]) for group in _GROUPS]
            for i in range(config.layers)
        ]
        self._live = [[base.to(dtype, copy=True) for base in bases] for bases in self._base]
        self._low: list[list[tuple[Tensor, list[Tensor]]]] = []
        self._run_attention: Callable[..., Tensor] = torch.compile(_attention) if compiled else _attention
        self._run_mlp: Callable[..., Tensor] = torch.compile(_mlp) if compiled else _mlp
        self.refresh()

    def _names(self, layer: int, group: Sequence[str]) -> list[str]:
        return [f"model.layers.{layer}.{t}" for part in group for t in TARGETS if t.endswith(part)]

    @torch.no_grad()
    def refresh(self) -> None:
        """Merges the additions anew, after `parameters` have changed."""
        self._low = []
        for layer, (bases, lives) in enumerate(zip(self._base, self._live, strict=True)):
            row = []
            for group, base, live in zip(_GROUPS, bases, lives, strict=True):
                names = self._names(layer, group)
                low_a = [self.parameters[f"{n}.lora_A.weight"] for n in names]
                low_b = [self.parameters[f"{n}.lora_B.weight"] for n in names]
                at = 0
                for a, b in zip(low_a, low_b, strict=True):
                    part = slice(at, at + b.shape[0])
                    live[part] = torch.addmm(base[part], b, a, alpha=self.scale)
                    at += b.shape[0]
                stacked = torch.cat(low_a).to(self._dtype).requires_grad_()
                row.append((stacked, [b.to(self._dtype, copy=True).requires_grad_() for b in low_b]))
            self._low.append(row)

    def gradients(self) -> dict[str, Tensor]:
        """fp32 gradients by the names of `parameters`, zero where a branch never ran; clears them."""
        found: dict[str, Tensor] = {}
        for layer, row in enumerate(self._low):
            for group, (a, bs) in zip(_GROUPS, row, strict=True):
                names = self._names(layer, group)
                das = (torch.zeros_like(a) if a.grad is None else a.grad).float().chunk(len(names))
                for name, da, b in zip(names, das, bs, strict=True):
                    found[f"{name}.lora_A.weight"] = da
                    found[f"{name}.lora_B.weight"] = (torch.zeros_like(b) if b.grad is None else b.grad).float()
                    b.grad = None
                a.grad = None
        return found

    def logits(
        self,
        batch: Packed,
        run: RunMask | None = None,
        *,
        read_whole: bool = False,
        gates: Callable[[int, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """fp32 logits [judged, vocab]; `run` leaves branches out, of all tokens or, with `read_whole`, of the late.

        `gates` gives what a layer's branches are scaled by, [rows, 2]; what attention scales by 0, no other token sees.
        """
        config = self.config
        sizes = (config.heads, config.kv_heads, config.head_dim)
        rotary = tuple(table[batch.positions].unsqueeze(2) for table in (self._cos, self._sin))
        x = F.embedding(batch.ids.flatten(), self.embedding)
        for layer in range(config.layers):
            attention, mlp = (True, True) if run is None else run[layer]
            low, live = self._low[layer], self._live[layer]
            (w0, w1, w2, w3), ((a0, b0), (a1, b1), (a2, b2), (a3, b3)) = live, low
            eps, mask = config.norm_eps, batch.mask
            alpha = None if gates is None else gates(layer, x).to(x.dtype)
            if alpha is not None:
                holes = (alpha[:, 0].detach() == 0).view(batch.ids.shape)
                mask = mask + holes[:, None, None].to(mask.dtype) * _UNSEEN
            if attention or read_whole:
                added = self._run_attention(
                    x, self._norms[layer][0], (w0, a0, b0), (w1, a1, b1), rotary, mask, sizes, eps, self.scale
                )
                x = x + (added if attention else added * batch.late) * (1 if alpha is None else alpha[:, :1])
            if mlp or read_whole:
                added = self._run_mlp(x, self._norms[layer][1], (w2, a2, b2), (w3, a3, b3), eps, self.scale)
                x = x + (added if mlp else added * batch.late) * (1 if alpha is None else alpha[:, 1:])
        return (_norm(x[batch.judged], self._norm, config.norm_eps) @ self._head.t()).float()

    def load(self, parameters: Mapping[str, Tensor]) -> Self:
        """Takes over saved additions."""
        for name, tensor in self.parameters.items():
            tensor.copy_(parameters[name])
        self.refresh()
        return self
