"""A skipped branch costs nothing and leaves exactly the hole that a mask would."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.gated_llm import GatedLLM
from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.model import Decoder, RunMask
from shoal.gated_llm.rope import rope_tables

LAYERS = 6
PRODUCTS = ("mm", "addmm", "bmm", "linear", "matmul", "_weight_int8pack_mm", "_weight_int4pack_mm_for_cpu")
ATTENTION = ("scaled_dot_product", "softmax")
ALL: RunMask = ((True, True),) * LAYERS


class Count(TorchDispatchMode):
    """Counts matrix products and attention calls."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.attentions = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.products += name in PRODUCTS
        self.attentions += any(word in name for word in ATTENTION)
        return func(*args, **(kwargs or {}))


def count(decoder: Decoder, mask: RunMask, *, tokens: int = 1, **options: bool) -> tuple[int, int]:
    counter = Count()
    with torch.no_grad(), counter:
        ids = torch.full((1, tokens), 5)
        decoder.forward(ids, torch.arange(tokens)[None], decoder.cache(tokens), mask, **options)
    return counter.products, counter.attentions


@pytest.fixture(scope="module", params=["fp32", "bf16", "int8", "int4"])
def decoder(request: pytest.FixtureRequest, tiny_folder: Path) -> Decoder:
    return Decoder(DecoderConfig.from_folder(tiny_folder), read_tensors(tiny_folder), dtype=request.param)


@pytest.mark.parametrize("tokens", [1, 12])
def test_a_skipped_branch_runs_no_matrix_product(decoder: Decoder, tokens: int) -> None:
    assert count(decoder, ALL, tokens=tokens) == (4 * LAYERS, LAYERS)
    for skipped, saved in (((False, True), (2, 1)), ((True, False), (2, 0)), ((False, False), (4, 1))):
        mask = (*ALL[:2], skipped, *ALL[3:])
        assert count(decoder, mask, tokens=tokens) == (4 * LAYERS - saved[0], LAYERS - saved[1])
    assert count(decoder, ((False, False),) * LAYERS, tokens=tokens) == (0, 0)


def test_storing_keys_of_a_skipped_branch_costs_one_product(decoder: Decoder) -> None:
    mask = ((False, False), *ALL[1:])
    assert count(decoder, mask, keep_skipped=True) == (4 * (LAYERS - 1) + 1, LAYERS - 1)


def dense_reference(weights: dict[str, Tensor], config: DecoderConfig, ids: list[int], masks: list[RunMask]) -> Tensor:
    """Slow and obvious: every branch of every token is computed, and what should not have run is masked away."""
    cos, sin = (table[: len(ids)].double() for table in rope_tables(config))
    n, half = len(ids), config.head_dim // 2
    w = {name: tensor.double() for name, tensor in weights.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt() * w[name]

    def turn(x: Tensor) -> Tensor:
        return x * cos[:, None] + torch.roll(x, half, -1) * sin[:, None]

    x = w["model.embed_tokens.weight"][torch.tensor(ids)]
    for layer in range(config.layers):
        at = f"model.layers.{layer}."
        ran = torch.tensor([mask[layer] for mask in masks], dtype=torch.bool)
        h = norm(x, at + "input_layernorm.weight")
        q, k, v = (
            (h @ w[f"{at}self_attn.{part}_proj.weight"].T).view(n, -1, config.head_dim) for part in ("q", "k", "v")
        )
        group = config.heads // config.kv_heads
        q, k, v = turn(q), turn(k).repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(config.head_dim)
        visible = torch.ones(n, n, dtype=torch.bool).tril() & (ran[None, :, 0] | torch.eye(n, dtype=torch.bool))
        mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -math.inf).softmax(-1), v)
        x = x + ran[:, :1] * (mixed.reshape(n, -1) @ w[at + "self_attn.o_proj.weight"].T)
        h = norm(x, at + "post_attention_layernorm.weight")
        inner = F.silu(h @ w[at + "mlp.gate_proj.weight"].T) * (h @ w[at + "mlp.up_proj.weight"].T)
        x = x + ran[:, 1:] * (inner @ w[at + "mlp.down_proj.weight"].T)
    return norm(x, "model.norm.weight") @ w["lm_head.weight"].T


masks = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=LAYERS, max_size=LAYERS)


@settings(max_examples=40, deadline=None)
@given(patterns=st.lists(masks, min_size=1, max_size=12), read=st.integers(0, 6), seed=st.integers(0, 99))
def test_any_pattern_of_skips_equals_masking(
    tiny: GatedLLM, tiny_folder: Path, patterns: Any, read: int, seed: int
) -> None:
    config, weights = DecoderConfig.from_folder(tiny_folder), read_tensors(tiny_folder)
    decoder = Decoder(config, weights, dtype="fp32")
    ids = torch.randint(3, 270, (1, read + len(patterns)), generator=torch.Generator().manual_seed(seed))
    cache, outs = decoder.cache(1), []
    with torch.inference_mode():
        if read:
            outs.append(decoder.forward(ids[:, :read], torch.arange(read)[None], cache)[0])
        for at, pattern in enumerate(patterns, read):
            outs.append(decoder.forward(ids[:, at : at + 1], torch.tensor([[at]]), cache, pattern)[0])
        got = decoder.logits(torch.cat(outs))
        want = dense_reference(weights, config, ids[0].tolist(), [ALL] * read + patterns)
    assert float((got - want).abs().max()) < 1e-3 * float(want.abs().max())
    for layer in range(LAYERS):
        assert cache.lengths[layer] == read + sum(pattern[layer][0] for pattern in patterns)


@torch.inference_mode()
def test_a_many_token_pass_over_holes_equals_single_steps(tiny_folder: Path) -> None:
    decoder = Decoder(DecoderConfig.from_folder(tiny_folder), read_tensors(tiny_folder), dtype="fp32")
    ids = torch.randint(3, 270, (1, 12), generator=torch.Generator().manual_seed(3))
    hole: RunMask = ((True, True), (False, True), (False, False), *ALL[3:])
    outs = []
    for sizes in ([4, 3, 5], [1] * 12):
        cache, at, hidden = decoder.cache(1), 0, []
        for size in sizes:
            mask = hole if 4 <= at < 7 else ALL
            hidden.append(decoder.forward(ids[:, at : at + size], torch.arange(at, at + size)[None], cache, mask))
            at += size
        outs.append(torch.cat(hidden, 1))
    assert float((outs[0] - outs[1]).abs().max()) < 1e-4


@torch.inference_mode()
def test_skipping_stores_less_and_rewind_forgets(tiny_folder: Path) -> None:
    decoder = Decoder(DecoderConfig.from_folder(tiny_folder), read_tensors(tiny_folder), dtype="fp32")
    ids = torch.randint(3, 270, (1, 8), generator=torch.Generator().manual_seed(4))
    cache = decoder.cache(8)
    decoder.forward(ids[:, :4], torch.arange(4)[None], cache)
    whole, mark = cache.bytes_used, cache.mark()
    skip: RunMask = ((False, True), (False, True), *ALL[2:])
    first = decoder.forward(ids[:, 4:], torch.arange(4, 8)[None], cache, skip)
    assert cache.bytes_used == whole + whole * (LAYERS - 2) // LAYERS
    cache.rewind(mark)
    assert cache.bytes_used == whole
    assert torch.equal(first, decoder.forward(ids[:, 4:], torch.arange(4, 8)[None], cache, skip))
    assert cache.positions(0).tolist() == [[0, 1, 2, 3]]
