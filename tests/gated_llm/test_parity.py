"""Logits at full depth equal those of transformers, in fp32, within 1e-4."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.gated_llm import GatedLLM, WeightsError
from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.model import Decoder
from shoal.gated_llm.native import supports
from shoal.gated_llm.weights import pull

from .conftest import SHAPE, hf_model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
GEMMA = {"query_pre_attn_scalar": 24, "sliding_window": 7, "hidden_size": 48, "num_attention_heads": 4, "head_dim": 20}
ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"] * 2
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-one-kv-head": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama-wide-heads": ("llama", {"head_dim": 40}),
    "llama-rope-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-rope-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "mistral-window": ("mistral", {"sliding_window": 7, "head_dim": 24}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
    "qwen2-rope-yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {}),
    "qwen3-biases": ("qwen3", {"attention_bias": True, "rope_parameters": {**YARN, "beta_fast": 8, "truncate": False}}),
    "gemma2": ("gemma2", {**GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}),
    "gemma3": ("gemma3_text", GEMMA),
    "gemma3-ropes": ("gemma3_text", {**GEMMA, "layer_types": MIXED, "rope_parameters": ROPES}),
    "gemma3-caps": ("gemma3_text", {**GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}),
    "gemma3-untied": ("gemma3_text", {**GEMMA, "tie_word_embeddings": False, "attention_bias": True}),
}
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


@pytest.fixture(params=SHAPES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Decoder, Any]:
    """Ours and that of transformers, from one folder, with norms and biases that differ from each other."""
    kind, changes = SHAPES[request.param]
    reference = hf_model(kind, initializer_range=0.1, **changes)
    for name, weight in reference.named_parameters():
        if "norm" in name or "bias" in name:
            weight.data += 0.1 * torch.randn(weight.shape)
    reference.save_pretrained(tmp_path)
    return ours(tmp_path), reference


@torch.inference_mode()
def test_tiny_models_of_every_shape(pair: tuple[Decoder, Any]) -> None:
    decoder, reference = pair
    ids = torch.randint(3, 270, (1, 24), generator=torch.Generator().manual_seed(1))
    want = reference(ids).logits
    same(prefill(decoder, ids), want)
    same(stepwise(decoder, ids, chunks=[1] * 24), want)
    same(stepwise(decoder, ids, chunks=[9, 1, 1, 8, 5]), want)
    check_padded(decoder, reference, vocab=270)


def check_padded(decoder: Decoder, reference: Any, *, vocab: int, relative: float = 0.0) -> None:
    lengths, longest = [5, 17, 11], 17
    ids = torch.randint(3, vocab, (3, longest), generator=torch.Generator().manual_seed(2))
    real = torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]
    positions = (real.cumsum(1) - 1).masked_fill(~real, -1)
    hidden = decoder.forward(ids, positions, decoder.cache(longest, batch=3), padded=True)
    want = reference(ids, attention_mask=real.long(), position_ids=positions.clamp(min=0)).logits
    same(rows(decoder, hidden)[real], want[real], relative=relative)


@torch.inference_mode()
def test_the_text_part_of_a_model_that_sees_pictures(tmp_path: Path) -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    torch.manual_seed(7)
    eye = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config={**SHAPE, **GEMMA}, vision_config={**eye, "image_size": 28, "patch_size": 14}, image_token_index=271
    )
    reference = Gemma3ForConditionalGeneration(config).eval()
    reference.save_pretrained(tmp_path)
    ids = torch.randint(3, 270, (1, 24), generator=torch.Generator().manual_seed(1))
    same(prefill(ours(tmp_path), ids), reference(ids).logits)


def test_the_embedding_scale_is_rounded_as_transformers_rounds_it(tmp_path: Path) -> None:
    reference = hf_model("gemma3_text", **GEMMA).bfloat16()
    reference.save_pretrained(tmp_path)
    decoder = Decoder(DecoderConfig.from_folder(tmp_path), read_tensors(tmp_path), dtype="bf16")
    ids = torch.arange(3, 270)[None]
    assert torch.equal(decoder.embed(ids), reference.get_input_embeddings()(ids))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab_size": 300}, r"embed_tokens.weight' is \(272, 48\), config.json makes it \(300, 48\)"),
        ({"head_dim": 24}, r"q_proj.weight' is \(80, 48\), config.json makes it \(96, 48\)"),
        ({"tie_word_embeddings": False}, "has no tensor 'lm_head.weight'"),
    ],
)
def test_weights_that_the_config_does_not_describe_are_refused(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    hf_model("gemma3_text", **GEMMA).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(WeightsError, match=said):
        ours(tmp_path)


def test_the_kernel_leaves_what_it_cannot_run_to_torch() -> None:
    wide = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 2}
    raw = {**wide, "head_dim": 32, "num_key_value_heads": 2, "vocab_size": 64}
    for kind, change, runs in [
        ("llama", {}, True), ("qwen2", {}, True), ("qwen3", {}, True), ("mistral", {"sliding_window": 9}, True),
        ("llama", {"attention_bias": True}, False), ("llama", {"mlp_bias": True}, False),
        ("llama", {"hidden_act": "gelu_pytorch_tanh"}, False), ("gemma2", {}, False), ("gemma3_text", {}, False),
    ]:  # fmt: skip
        assert supports(DecoderConfig.from_hf({"model_type": kind, **raw, **change})) is runs


PUBLISHED: dict[str, dict[str, Any]] = {
    # as Gemma 3 1B and 4B and Qwen2.5 say it on the hub
    "gemma3-1b": {
        "model_type": "gemma3_text", "num_hidden_layers": 7, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "sliding_window": 512, "sliding_window_pattern": 6, "head_dim": 256, "rope_scaling": None,
    },
    "gemma3-4b": {
        "model_type": "gemma3", "eos_token_id": [1, 106], "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 7,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
    },
    "gemma2": {"model_type": "gemma2", "num_hidden_layers": 7, "hidden_act": "gelu_pytorch_tanh"},
    "qwen2.5": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
        "num_hidden_layers": 7, "num_key_value_heads": 2, "vocab_size": 151936, "rope_theta": 1e6,
        "max_position_embeddings": 32768,
        "sliding_window": 32768, "max_window_layers": 3, "use_sliding_window": True, "tie_word_embeddings": True,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_mean_what_transformers_reads_in_them(name: str) -> None:
    from transformers import AutoConfig

    raw = PUBLISHED[name]
    kind = raw["model_type"]
    theirs = AutoConfig.for_model(**raw).to_dict()
    if kind == "gemma3":
        theirs = {**theirs, "text_config": dict(theirs["text_config"])}
    assert DecoderConfig.from_hf(raw) == DecoderConfig.from_hf(theirs)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mamba"}, "'mamba' is not supported; supported are llama, .*gemma3_text"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "Rotary scaling .*longrope.* supported are default, linear"),
        ({"hidden_act": "relu"}, "Activation 'relu'.*silu, gelu_pytorch_tanh"),
        ({"partial_rotary_factor": 0.5}, "turned in part"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "attend to later tokens"),
        ({"num_key_value_heads": 3}, "14 attention heads cannot share 3"),
        ({"num_hidden_layers": 8, "layer_types": ["sliding_attention"] * 7}, "7 layer types for 8 layers"),
        ({"hidden_size": None}, "does not say hidden_size"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers.*'many'"),
    ],
)
def test_configs_that_cannot_be_run_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(WeightsError, match=said):
        DecoderConfig.from_hf({**PUBLISHED["qwen2.5"], **change})


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
