"""The kernel's passes against torch's: the same logits, whichever of the two read the prompt."""

import pytest
import torch

from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.model import Decoder
from shoal.gated_llm.native import NativeDecoder, available
from shoal.gated_llm.passes import MANY, KernelModel, TorchModel

from .conftest import MakeModel

pytestmark = pytest.mark.skipif(not available(), reason="no C++ compiler here: the kernel is optional")
WIDE = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "initializer_range": 0.1}


NAMES = {"q": "self_attn.q", "k": "self_attn.k", "v": "self_attn.v", "o": "self_attn.o"} | {
    part: f"mlp.{part}" for part in ("gate", "up", "down")
}


@pytest.fixture(scope="module")
def pair(make_model: MakeModel) -> tuple[KernelModel, TorchModel]:
    """A kernel with int8 weights, and torch in fp32 over what those int8 weights stand for."""
    folder = make_model(plan=False, tie_word_embeddings=True, **WIDE)
    config, weights = DecoderConfig.from_folder(folder), dict(read_tensors(folder))
    packed = NativeDecoder(config, weights, bits=8)
    weights["model.embed_tokens.weight"] = packed.weight("embed")
    for layer in range(config.layers):
        for kind, name in NAMES.items():
            weights[f"model.layers.{layer}.{name}_proj.weight"] = packed.weight(kind, layer)
    packed.close()
    kernel = KernelModel.load(config, weights, bits=8)
    assert kernel is not None
    return kernel, TorchModel(Decoder(config, weights, dtype="fp32"))


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal but for bf16 keys, values and, where torch read the prompt, activations."""
    return float((a - b).norm() / b.norm()) < 0.05


@pytest.mark.parametrize("length", [1, 5, MANY, MANY + 40])
@pytest.mark.parametrize("skip", [False, True])
def test_kernel_follows_torch(pair: tuple[KernelModel, TorchModel], length: int, skip: bool) -> None:
    ids = torch.randint(3, 200, (length + 4,), generator=torch.Generator().manual_seed(length)).tolist()
    mask = tuple((i % 2 == 0 or not skip, i != 1 or not skip) for i in range(6))
    kernel, torch_only = (model.passes([len(ids)] * 6) for model in pair)
    assert close(kernel(ids[:length], None), torch_only(ids[:length], None))
    for token in ids[length:]:
        assert close(kernel([token], mask), torch_only([token], mask))
    assert kernel.tokens == torch_only.tokens == len(ids)


def test_skipped_branches_run_nothing_in_the_kernel(pair: tuple[KernelModel, TorchModel]) -> None:
    kernel = pair[0].kernel
    passes = pair[0].passes([8] * 6)
    passes([5, 6, 7], None)
    before = kernel.branch_runs.copy()
    passes([8], tuple((i != 2, i != 4) for i in range(6)))
    ran = (kernel.branch_runs - before).tolist()
    assert ran == [[int(i != 2), int(i != 4)] for i in range(6)]


def test_the_same_request_gives_the_same_bits(pair: tuple[KernelModel, TorchModel]) -> None:
    ids = list(range(3, 3 + MANY + 8))
    both = []
    for _ in range(2):
        passes = pair[0].passes([len(ids)] * 6)
        passes(ids[:MANY], None)
        both.append(torch.stack([passes([token], None) for token in ids[MANY:]]))
    assert torch.equal(*both)
