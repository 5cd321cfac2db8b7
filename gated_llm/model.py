"""The decoder: token ids and positions in, logits out; branches that a mask leaves out are not run at all (G1, G4).

Our own forward pass over a Hugging Face checkpoint of the Llama, Mistral, Qwen2 or Qwen3 shape, because skipping and
per-layer keys and values cannot be had from `generate()`. Held equal to transformers by a test. Knows no budgets, text
or sampling.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import DecoderConfig
from .errors import WeightsError
from .kv import KVCache
from .matrix import Matrix, make_matrix
from .rope import rope_tables

# Which branches a pass runs: one (attention, MLP) pair per layer.
RunMask = Sequence[tuple[bool, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one block: query, key and value in one matrix, gate and up in one."""

    attention_norm: Tensor
    qkv: Matrix
    out: Matrix
    q_norm: Tensor | None
    k_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix
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
            return weights[name].to(self.device)

        def vector(name: str) -> Tensor:
            return get(name).to(self.dtype)

        def matrix(*names: str) -> Matrix:
            weight = torch.cat([get(f"{name}.weight") for name in names])
            biased = f"{names[0]}.bias" in weights
            bias = torch.cat([get(f"{name}.bias") for name in names]) if biased else None
            return make_matrix(weight, bias, dtype)

        self.embedding = get("model.embed_tokens.weight").to(self.dtype)
        self.norm = vector("model.norm.weight")
        self.layers: list[Layer] = []
        for index in range(config.layers):
            at = f"model.layers.{index}"
            self.layers.append(
                Layer(
                    attention_norm=vector(f"{at}.input_layernorm.weight"),
                    qkv=matrix(*(f"{at}.self_attn.{part}_proj" for part in "qkv")),
                    out=matrix(f"{at}.self_attn.o_proj"),
                    q_norm=vector(f"{at}.self_attn.q_norm.weight") if config.qk_norm else None,
                    k_norm=vector(f"{at}.self_attn.k_norm.weight") if config.qk_norm else None,
                    mlp_norm=vector(f"{at}.post_attention_layernorm.weight"),
                    gate_up=matrix(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"),
                    down=matrix(f"{at}.mlp.down_proj"),
                    window=config.windows[index],
                )
            )
        self.head: Matrix = matrix("model.embed_tokens" if config.tied else "lm_head")
        self._cos, self._sin = (table.to(self.device, self.dtype) for table in rope_tables(config))
        self._everything: RunMask = ((True, True),) * config.layers

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
    ) -> Tensor:
        """Hidden states [batch, seq, hidden] after the last norm, for `ids` [batch, seq] at `positions` [batch, seq].

        A branch that `run` leaves out costs nothing, unless `keep_skipped`: then a skipped attention branch still
        stores its keys and values. With `padded`, position -1 marks padding, which nothing attends to.
        """
        cache.advance(positions)
        rotary = self.rotary(positions)
        x = F.embedding(ids, self.embedding)
        for index, (attention, mlp) in enumerate(run or self._everything):
            x = self.block(index, x, positions, rotary, cache, attention, mlp, keep_skipped=keep_skipped, padded=padded)
        return F.rms_norm(x, (self.config.hidden,), self.norm, self.config.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits [rows, vocab] of `hidden` [rows, hidden]."""
        return self.head(hidden).float()

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [batch, seq, 1, head_dim] for `positions` [batch, seq]."""
        return self._cos[positions].unsqueeze(2), self._sin[positions].unsqueeze(2)

    def block(
        self,
        index: int,
        x: Tensor,
        positions: Tensor,
        rotary: tuple[Tensor, Tensor],
        cache: KVCache,
        attention: bool,
        mlp: bool,
        *,
        keep_skipped: bool = False,
        padded: bool = False,
    ) -> Tensor:
        """One layer: `x` [batch, seq, hidden] with the branches asked for added to it."""
        layer, config = self.layers[index], self.config
        if attention or keep_skipped:
            h = F.rms_norm(x, (config.hidden,), layer.attention_norm, config.norm_eps)
            added = self._attend(index, layer, h, positions, rotary, cache, store_only=not attention, padded=padded)
            if added is not None:
                x = x + added
        if mlp:
            h = F.rms_norm(x, (config.hidden,), layer.mlp_norm, config.norm_eps)
            gate, up = layer.gate_up(h.view(-1, config.hidden)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate).mul_(up)).view(x.shape)
        return x

    def _attend(
        self,
        index: int,
        layer: Layer,
        h: Tensor,
        positions: Tensor,
        rotary: tuple[Tensor, Tensor],
        cache: KVCache,
        *,
        store_only: bool,
        padded: bool,
    ) -> Tensor | None:
        config = self.config
        batch, seq, hidden = h.shape
        turned = config.heads + config.kv_heads
        qkv = layer.qkv(h.view(-1, hidden)).view(batch, seq, turned + config.kv_heads, config.head_dim)
        qk = qkv[:, :, :turned]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk[:, :, : config.heads], qk[:, :, config.heads :]
            q.copy_(F.rms_norm(q, (config.head_dim,), layer.q_norm, config.norm_eps))
            k.copy_(F.rms_norm(k, (config.head_dim,), layer.k_norm, config.norm_eps))
        swapped = qk.roll(config.head_dim // 2, dims=-1)
        qk.mul_(rotary[0]).addcmul_(swapped, rotary[1])
        fresh = cache.lengths[index] == 0
        keys, values = cache.append(index, qkv[:, :, config.heads :])
        if store_only:
            return None
        plain = not padded and (layer.window is None or cache.tokens <= layer.window)
        causal = plain and fresh and seq > 1
        mask = None if causal or (plain and seq == 1) else _mask(positions, cache.positions(index), layer.window)
        queries = qkv[:, :, : config.heads].transpose(1, 2)
        grouped = config.heads != config.kv_heads
        mixed = F.scaled_dot_product_attention(queries, keys, values, mask, is_causal=causal, enable_gqa=grouped)
        return layer.out(mixed.transpose(1, 2).reshape(batch * seq, -1)).view(batch, seq, hidden)


def _mask(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """What queries at [batch, seq] may see of keys at [batch, n]: [batch, 1, seq, n]; padding sees padding."""
    q, k = queries[:, None, :, None], keys[:, None, None, :]
    seen = (k <= q) & (k >= 0)
    if window is not None:
        seen &= k > q - window
    return seen | ((q < 0) & (k < 0))
