"""The kernel's passes against torch's: the same logits, whichever of the two read the prompt."""

from typing import Any

import numpy as np
import pytest
import torch

from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.model import Decoder
from shoal.gated_llm.native import NativeDecoder, available
from shoal.gated_llm.passes import MANY, KernelModel, Model, Store, Stretch, TorchModel

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


def step(model: Model, store: Store, ids: list[int], run: Any = None) -> torch.Tensor:
    """Logits [vocab] after one stretch by itself."""
    return model.run([Stretch(store=store, ids=ids, run=run)])[0].logits[-1]


def some(layers: int = 6) -> np.ndarray:
    """A mask that leaves out attention in odd layers and the MLP of layer 1."""
    return np.array([[i % 2 == 0, i != 1] for i in range(layers)], np.uint8)


@pytest.mark.parametrize("length", [1, 5, MANY, MANY + 40])
@pytest.mark.parametrize("skip", [False, True])
def test_kernel_follows_torch(pair: tuple[KernelModel, TorchModel], length: int, skip: bool) -> None:
    ids = torch.randint(3, 200, (length + 4,), generator=torch.Generator().manual_seed(length)).tolist()
    run = some() if skip else None
    both = [(model, model.store([len(ids)] * 6)) for model in pair]
    assert close(*(step(model, store, ids[:length]) for model, store in both))
    for token in ids[length:]:
        assert close(*(step(model, store, [token], run) for model, store in both))
    assert both[0][1].tokens == both[1][1].tokens == len(ids)


def test_skipped_branches_run_nothing_in_the_kernel(pair: tuple[KernelModel, TorchModel]) -> None:
    model, run = pair[0], np.array([[i != 2, i != 4] for i in range(6)], np.uint8)
    store = model.store([8] * 6)
    step(model, store, [5, 6, 7])
    before = model.kernel.branch_runs.copy()
    step(model, store, [8], run)
    assert (model.kernel.branch_runs - before).tolist() == run.tolist()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("every", [False, True])
def test_a_batch_gives_each_request_what_it_gets_alone(
    pair: tuple[KernelModel, TorchModel], which: int, every: bool
) -> None:
    """A step, a step under a mask, drafts and a short prompt, beside a long one (G8)."""
    model, random = pair[which], torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, 200, (n,), generator=random).tolist() for n in (4, 30, MANY + 9, 7)]
    nexts: list[tuple[list[int], Any]] = [([9], None), ([11], some()), ([12, 13, 14], None), ([15] * 20, None)]

    def stores() -> list[Store]:
        made = [model.store([160] * 6) for _ in prompts]
        for store, prompt in zip(made, prompts, strict=True):
            step(model, store, prompt)
        return made

    def stretches(of: list[Store]) -> list[Stretch]:
        return [Stretch(store=s, ids=ids, run=run, every=every) for s, (ids, run) in zip(of, nexts, strict=True)]

    alone = [model.run([one])[0].logits for one in stretches(stores())]
    assert [len(logits) for logits in alone] == [len(ids) if every else 1 for ids, _ in nexts]
    together = [passed.logits for passed in model.run(stretches(stores()))]
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("keep", [1, 2, 4])
@pytest.mark.parametrize("read", [3, MANY + 4])
def test_rewinding_leaves_no_trace(pair: tuple[KernelModel, TorchModel], which: int, keep: int, read: int) -> None:
    """After drafts that were not what the model chose, it goes on as if they had never been (G16)."""
    model, run = pair[which], some()
    straight, back = model.store([160] * 6), model.store([160] * 6)
    for store in (straight, back):
        step(model, store, list(range(3, 3 + read)))
    drafts = [20, 21, 22, 23]
    model.run([Stretch(store=back, ids=drafts, run=run, every=True)])
    back.rewind(keep)
    for token in drafts[:keep]:
        step(model, straight, [token], run)
    assert back.tokens == straight.tokens == read + keep
    assert back.bytes_used == straight.bytes_used
    assert close(step(model, straight, [30], run), step(model, back, [30], run))


def test_the_same_request_gives_the_same_bits(pair: tuple[KernelModel, TorchModel]) -> None:
    ids = list(range(3, 3 + MANY + 8))
    both = []
    for _ in range(2):
        store = pair[0].store([len(ids)] * 6)
        step(pair[0], store, ids[:MANY])
        both.append(torch.stack([step(pair[0], store, [token]) for token in ids[MANY:]]))
    assert torch.equal(*both)


@pytest.mark.parametrize("which", [0, 1])
def test_a_block_taken_over_is_as_good_as_read(pair: tuple[KernelModel, TorchModel], which: int) -> None:
    model, ids = pair[which], list(range(3, 3 + 2 * MANY))
    read, taken = model.store([250] * 6), model.store([250] * 6)
    step(model, read, ids[:MANY])
    block = read.block(0, MANY)
    assert block is not None
    step(model, read, ids[MANY:])
    taken.preload(block)
    assert taken.tokens == MANY
    step(model, taken, ids[MANY:])
    assert torch.equal(step(model, read, [7]), step(model, taken, [7]))


def test_without_a_reader_the_kernel_reads_alone(pair: tuple[KernelModel, TorchModel]) -> None:
    alone, ids = KernelModel(None, pair[0].kernel), list(range(3, 3 + MANY + 8))
    store = alone.store([200] * 6)
    assert close(step(alone, store, ids), step(pair[1], pair[1].store([200] * 6), ids))
    assert store.block(0, MANY) is None
