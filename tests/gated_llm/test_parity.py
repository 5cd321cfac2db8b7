"""Logits at full depth equal those of transformers, in fp32, within 1e-4."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.gated_llm import GatedLLM
from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.model import Decoder
from shoal.gated_llm.weights import pull

from .conftest import hf_model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("llama", {"attention_bias": True, "num_key_value_heads": 4}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}),
    ("mistral", {"sliding_window": 7}),
    ("qwen2", {}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
    ("qwen3", {}),
]
TOLERANCE = 1e-4
# The default model's logits reach 28, where fp32 steps by 2e-6, and both sides sum 30 layers in another order: what is
# added to the 1e-4 is five such steps.
RELATIVE = 1e-5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """How a sum is split over threads changes its rounding: the comparison is always made on one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ours(folder: Path) -> Decoder:
    return Decoder(DecoderConfig.from_folder(folder), read_tensors(folder), dtype="fp32")


def prefill(decoder: Decoder, ids: Tensor) -> Tensor:
    positions = torch.arange(ids.shape[1]).expand(ids.shape)
    return rows(decoder, decoder.forward(ids, positions, decoder.cache(ids.shape[1], batch=ids.shape[0])))


def stepwise(decoder: Decoder, ids: Tensor, *, chunks: list[int]) -> Tensor:
    cache, out, at = decoder.cache(2), [], 0
    for size in chunks:
        positions = torch.arange(at, at + size)[None]
        out.append(rows(decoder, decoder.forward(ids[:, at : at + size], positions, cache)))
        at += size
    return torch.cat(out, dim=1)


def rows(decoder: Decoder, hidden: Tensor) -> Tensor:
    return decoder.logits(hidden.reshape(-1, hidden.shape[-1])).view(*hidden.shape[:2], -1)


def same(got: Tensor, want: Tensor, *, relative: float = 0.0) -> None:
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=relative)


@pytest.mark.parametrize(("kind", "changes"), SHAPES, ids=[f"{k}-{'-'.join(c) or 'plain'}" for k, c in SHAPES])
@torch.inference_mode()
def test_tiny_models_of_every_shape(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    reference = hf_model(kind, **changes)
    reference.save_pretrained(tmp_path)
    decoder = ours(tmp_path)
    ids = torch.randint(3, 270, (1, 24), generator=torch.Generator().manual_seed(1))
    want = reference(ids).logits
    same(prefill(decoder, ids), want)
    same(stepwise(decoder, ids, chunks=[1] * 24), want)
    same(stepwise(decoder, ids, chunks=[9, 1, 1, 8, 5]), want)


@pytest.mark.parametrize(("kind", "changes"), [SHAPES[0], SHAPES[5], SHAPES[8]], ids=["llama", "window", "qk-norm"])
@torch.inference_mode()
def test_padded_batch(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    reference = hf_model(kind, **changes)
    reference.save_pretrained(tmp_path)
    check_padded(ours(tmp_path), reference, vocab=270)


def check_padded(decoder: Decoder, reference: Any, *, vocab: int, relative: float = 0.0) -> None:
    lengths, longest = [5, 17, 11], 17
    ids = torch.randint(3, vocab, (3, longest), generator=torch.Generator().manual_seed(2))
    real = torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]
    positions = (real.cumsum(1) - 1).masked_fill(~real, -1)
    hidden = decoder.forward(ids, positions, decoder.cache(longest, batch=3), padded=True)
    want = reference(ids, attention_mask=real.long(), position_ids=positions.clamp(min=0)).logits
    same(rows(decoder, hidden)[real], want[real], relative=relative)


@pytest.mark.model
@torch.inference_mode()
def test_default_model() -> None:
    from transformers import AutoModelForCausalLM

    folder = pull()
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    decoder = ours(folder)
    with GatedLLM.load(folder, dtype="fp32") as llm:
        ids = torch.tensor(
            [llm.tokenizer.encode_prompt("Why is the sky blue? Answer in 3 lines. 天空为什么是蓝色的？")]
        )
    want = reference(ids).logits
    same(prefill(decoder, ids), want, relative=RELATIVE)
    same(stepwise(decoder, ids, chunks=[20] + [1] * (ids.shape[1] - 20)), want, relative=RELATIVE)
    check_padded(decoder, reference, vocab=49_000, relative=RELATIVE)


@pytest.mark.model
def test_default_tokenizer_and_template() -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(pull())
    messages = [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "It's 1234 km, isn't it?\n\n  def f(x):\t return x  你好，世界 🐟"},
    ]
    with GatedLLM.load() as llm:
        got = llm.tokenizer.encode_prompt(messages)
    assert got == reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
