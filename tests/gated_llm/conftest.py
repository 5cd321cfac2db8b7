"""Tiny random checkpoints, made with transformers, whose tokens are bytes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.gated_llm import GatedLLM, Plan
from shoal.gated_llm.checkpoint import fingerprint, read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.policy import Branch

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPE = {
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
# Some branches of the six layers in the order in which they leave; the last three layers always run.
ORDER: list[Branch] = [("attention", 1), ("mlp", 0), ("mlp", 2), ("attention", 2)]


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of 256 bytes after three control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={word: i for i, word in enumerate([*SPECIAL, *letters])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def hf_model(kind: str, **changes: Any) -> Any:
    """A random transformers model of one shape."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    config = AutoConfig.for_model(kind, **{**SHAPE, **changes})
    config._attn_implementation = "eager"
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


MakeModel = Callable[..., Path]


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    def make(kind: str = "llama", plan: bool = True, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("models") / f"tiny-{kind}"
        hf_model(kind, **changes).save_pretrained(folder)
        write_tokenizer(folder)
        if plan:
            config = DecoderConfig.from_folder(folder)
            made = Plan.from_order(
                ORDER,
                [0.001, 0.002, 0.02, 0.3],
                total=config.layers,
                attention_share=config.attention_share,
                model_fingerprint=fingerprint(read_tensors(folder)),
            )
            made.write(folder / "plan.json")
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_folder(make_model: MakeModel) -> Path:
    return make_model()


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Iterator[GatedLLM]:
    """Six random layers in fp32, with a plan."""
    with GatedLLM.load(tiny_folder, dtype="fp32") as llm:
        yield llm


@pytest.fixture(scope="session")
def default_llm() -> Iterator[GatedLLM]:
    """The default model as users get it."""
    with GatedLLM.load() as llm:
        yield llm
