"""The decoder: token ids and positions in, logits out; branches that a mask leaves out are not run at all (G1, G4).

Our own forward pass over a Hugging Face checkpoint of the Llama, Mistral, Qwen or Gemma shape, because skipping and
per-layer keys and values cannot be had from `generate()`. Held equal to transformers by a test. Knows no budgets, text
or sampling.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import DecoderConfig
from .errors import WeightsError
from .gated_pass import GatedPass, TorchGates
from .kv import KVCache
from .matrix import Matrix, make_matrix
from .rope import rope_tables

# Which branches a pass runs: one (attention, MLP) pair per layer.
RunMask = Sequence[tuple[bool, bool]]
# Cosines and signed sines [batch, seq, 1, head_dim] of a pass, for global layers and for those with a window.
Rotary = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one block: query, key and value in one matrix, gate and up in one; norms that its shape lacks None."""

    attention_norm: Tensor
    qkv: Matrix
    out: Matrix
    q_norm: Tensor | None
    k_norm: Tensor | None
    attention_post_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix
    mlp_post_norm: Tensor | None
    window: int | None


class Decoder:
    """A model in memory. Read-only after construction, so many threads may call it, each with its own cache."""

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, Tensor], *, dtype: str, device: str = "cpu"
    ) -> None:
        """`weights` by their Hugging Face names; `dtype` as `make_matrix` takes it. Raises WeightsError."""
        self.config = config
        self.device = torch.device(device)
        self.dtype = torch.float32 if dtype == "fp32" else torch.bfloat16

        def get(name: str) -> Tensor:
            if name not in weights:
                raise WeightsError(f"The checkpoint has no tensor {name!r}: it is incomplete or of another shape.")
            tensor = weights[name]
            if (shape := tuple(tensor.shape)) != (wanted := config.shape_of(name)):
                raise WeightsError(
                    f"The checkpoint's {name!r} is {shape}, config.json makes it {wanted}: pull it again."
                )
            return tensor.to(self.device)

        def norm(name: str) -> Tensor:
            return (get(f"{name}.weight").float() + config.norm_offset).to(self.dtype)

        def matrix(*names: str) -> Matrix:
            weight = torch.cat([get(f"{name}.weight") for name in names])
            biased = f"{names[0]}.bias" in weights
            bias = torch.cat([get(f"{name}.bias") for name in names]) if biased else None
            return make_matrix(weight, bias, dtype)

        # Gemma norms what comes out of a branch as well, and so has another name for the norm before the MLP
        mlp_norm = "pre_feedforward_layernorm" if config.post_norms else "post_attention_layernorm"
        self.embedding = get("model.embed_tokens.weight").to(self.dtype)
        self.norm = norm("model.norm")
        self.layers: list[Layer] = []
        for index in range(config.layers):
            at = f"model.layers.{index}"
            self.layers.append(
                Layer(
                    attention_norm=norm(f"{at}.input_layernorm"),
                    qkv=matrix(*(f"{at}.self_attn.{part}_proj" for part in "qkv")),
                    out=matrix(f"{at}.self_attn.o_proj"),
                    q_norm=norm(f"{at}.self_attn.q_norm") if config.qk_norm else None,
                    k_norm=norm(f"{at}.self_attn.k_norm") if config.qk_norm else None,
                    attention_post_norm=norm(f"{at}.post_attention_layernorm") if config.post_norms else None,
                    mlp_norm=norm(f"{at}.{mlp_norm}"),
                    gate_up=matrix(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"),
                    down=matrix(f"{at}.mlp.down_proj"),
                    mlp_post_norm=norm(f"{at}.post_feedforward_layernorm") if config.post_norms else None,
                    window=config.windows[index],
                )
            )
        self.head: Matrix = matrix("model.embed_tokens" if config.tied else "lm_head")
        self._activation = _ACTIVATIONS[config.activation]
        self._embed_scale = torch.tensor(config.embed_scale, dtype=self.dtype, device=self.device)
        self._global = self._rope(config.rope)
        self._local = self._rope(config.local_rope) if config.local_rope else self._global
        self._everything: RunMask = ((True, True),) * config.layers
        self.gates: TorchGates | None = None  # for `forward`'s, where it has learned ones

    def cache(self, capacity: int | Sequence[int], *, batch: int = 1) -> KVCache:
        """An empty cache with room for `capacity` tokens, one number for every layer or one each."""
        each = [capacity] * self.config.layers if isinstance(capacity, int) else capacity
        return KVCache(self.config, each, batch=batch, dtype=self.dtype, device=self.device)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: KVCache,
        run: RunMask | None = None,
        *,
        keep_skipped: bool = False,
        padded: bool = False,
        gates: GatedPass | None = None,
    ) -> Tensor:
        """Hidden states [batch, seq, hidden] after the last norm, for `ids` [batch, seq] at `positions` [batch, seq].

        A branch that `run` leaves out costs nothing, unless `keep_skipped`: then a skipped attention branch still
        stores its keys and values. With `padded`, position -1 marks padding, which nothing attends to. `gates` leave
        out more, token by token, of one sequence without padding.
        """
        cache.advance(positions)
        rotary = self.rotary(positions)
        x = self.embed(ids)
        for index, (attention, mlp) in enumerate(run or self._everything):
            if gates is not None:
                x = self._gated_block(index, x, positions, rotary, cache, gates, attention, mlp, keep=keep_skipped)
            else:
                x = self.block(
                    index, x, positions, rotary, cache, attention, mlp, keep_skipped=keep_skipped, padded=padded
                )
        return self.finish(x)

    def embed(self, ids: Tensor) -> Tensor:
        """What the first layer takes, [batch, seq, hidden], for `ids` [batch, seq]."""
        x = F.embedding(ids, self.embedding)
        return x if self.config.embed_scale == 1 else x * self._embed_scale

    def finish(self, x: Tensor) -> Tensor:
        """`x` [..., hidden] after the last layer, normed."""
        return self._normed(x, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits [rows, vocab] of `hidden` [rows, hidden]."""
        logits, cap = self.head(hidden).float(), self.config.logit_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def rotary(self, positions: Tensor) -> Rotary:
        """What turns queries and keys at `positions` [batch, seq]."""
        whole = self._turn(self._global, positions)
        return whole, whole if self._local is self._global else self._turn(self._local, positions)

    def block(
        self,
        index: int,
        x: Tensor,
        positions: Tensor,
        rotary: Rotary,
        cache: KVCache,
        attention: bool,
        mlp: bool,
        *,
        keep_skipped: bool = False,
        padded: bool = False,
    ) -> Tensor:
        """One layer: `x` [batch, seq, hidden] with the branches asked for added to it."""
        if attention or keep_skipped:
            added = self.attend(index, x, positions, rotary, cache, store_only=not attention, padded=padded)
            if added is not None:
                x = x + added
        return x + self.feed(index, x) if mlp else x

    def _gated_block(
        self, index: int, x: Tensor, positions: Tensor, rotary: Rotary, cache: KVCache, gates: GatedPass,
        attention: bool, mlp: bool, *, keep: bool,
    ) -> Tensor:  # fmt: skip
        """One layer whose branches run for the tokens that the gates let through, scaled by alpha."""
        alpha = gates.decide(index, x, attention, mlp).to(x.dtype)
        if attention and gates.thrift.store:
            added = self.attend(index, x, positions, rotary, cache)
            x = x if added is None else x + added * alpha[:, :1]
        elif attention:
            rows = alpha[:, 0].nonzero().flatten()
            if len(rows) == x.shape[1]:
                added = self.attend(index, x, positions, rotary, cache)
                x = x if added is None else x + added * alpha[:, :1]
            elif len(rows):
                part = [tuple(table[:, rows] for table in tables) for tables in rotary]
                turned: Rotary = (part[0], part[1])  # type: ignore[assignment]
                places = (rows + (cache.tokens - x.shape[1])).tolist()
                added = self.attend(index, x[:, rows], positions[:, rows], turned, cache, rows=places)
                if added is not None:
                    x = x.index_add(1, rows, added * alpha[rows, :1])
        elif keep:
            self.attend(index, x, positions, rotary, cache, store_only=True)
        rows = alpha[:, 1].nonzero().flatten()
        if len(rows) == x.shape[1]:
            return x + self.feed(index, x) * alpha[:, 1:]
        return x.index_add(1, rows, self.feed(index, x[:, rows]) * alpha[rows, 1:]) if len(rows) else x

    def attend(
        self,
        index: int,
        x: Tensor,
        positions: Tensor,
        rotary: Rotary,
        cache: KVCache,
        *,
        store_only: bool = False,
        padded: bool = False,
        rows: Sequence[int] | None = None,
    ) -> Tensor | None:
        """What the attention branch of a layer adds to `x` [batch, seq, hidden]; with `store_only` it only stores keys
        and values and gives None. `rows`: which tokens of the cache these are, where not all of the pass.
        """
        layer, config = self.layers[index], self.config
        batch, seq, hidden = x.shape
        turned = config.heads + config.kv_heads
        h = self._normed(x, layer.attention_norm)
        qkv = layer.qkv(h.view(-1, hidden)).view(batch, seq, turned + config.kv_heads, config.head_dim)
        qk = qkv[:, :, :turned]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk[:, :, : config.heads], qk[:, :, config.heads :]
            q.copy_(self._normed(q, layer.q_norm))
            k.copy_(self._normed(k, layer.k_norm))
        cos, sin = rotary[0] if layer.window is None else rotary[1]
        swapped = qk.roll(config.head_dim // 2, dims=-1)
        qk.mul_(cos).addcmul_(swapped, sin)
        fresh = cache.lengths[index] == 0
        keys, values = cache.append(index, qkv[:, :, config.heads :], rows)
        if store_only:
            return None
        plain = not padded and (layer.window is None or cache.tokens <= layer.window)
        causal = plain and fresh and seq > 1 and config.attention_cap is None
        visible = cache.shared_visible if rows is None else cache.visible
        mask = None if causal or (plain and seq == 1) else visible(index, positions, layer.window)
        queries = qkv[:, :, : config.heads].transpose(1, 2)
        mixed = self._mix(queries, keys, values, mask, causal=causal).transpose(1, 2)
        out = layer.out(mixed.reshape(batch * seq, -1)).view(batch, seq, hidden)
        return out if layer.attention_post_norm is None else self._normed(out, layer.attention_post_norm)

    def feed(self, index: int, x: Tensor) -> Tensor:
        """What the MLP branch of a layer adds to `x` [batch, seq, hidden]."""
        layer = self.layers[index]
        h = self._normed(x, layer.mlp_norm)
        gate, up = layer.gate_up(h.view(-1, self.config.hidden)).chunk(2, dim=-1)
        out = layer.down(self._activation(gate).mul_(up)).view(x.shape)
        return out if layer.mlp_post_norm is None else self._normed(out, layer.mlp_post_norm)

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
        """Values weighed by attention, [batch, heads, seq, head_dim]."""
        scale, cap = self.config.attention_scale, self.config.attention_cap
        group = self.config.heads // self.config.kv_heads
        if cap is None:
            return F.scaled_dot_product_attention(
                queries, keys, values, mask, is_causal=causal, scale=scale, enable_gqa=group > 1
            )
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = (queries @ keys.transpose(2, 3)).mul_(scale).div_(cap).tanh_().mul_(cap)
        if mask is not None:
            scores += mask
        return scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)

    def _rope(self, rope: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        cos, sin = rope_tables(self.config, rope)
        return cos.to(self.device, self.dtype), sin.to(self.device, self.dtype)

    def _turn(self, tables: tuple[Tensor, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
        return tables[0][positions].unsqueeze(2), tables[1][positions].unsqueeze(2)
