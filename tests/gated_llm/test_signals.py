"""Signals against slow and obvious formulas."""

import math

import numpy as np
import pytest
import torch

from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.native import NativeDecoder, Watch, available
from shoal.gated_llm.signals import WINDOW, Reading, Window, entropy, read, residual

from .conftest import MakeModel

RANDOM = np.random.default_rng(0)


def test_entropy_of_known_spreads() -> None:
    axes = np.zeros((8, 20), np.float32)
    for i in range(4):  # four components of equal energy
        axes[2 * i, i], axes[2 * i + 1, i] = 1, -1
    assert entropy(axes) == pytest.approx(math.log(4), abs=1e-5)
    line = np.outer(np.arange(8), RANDOM.normal(size=20)).astype(np.float32)
    assert entropy(line + 5) == pytest.approx(0, abs=1e-4)
    assert entropy(np.ones((8, 20), np.float32)) == 0
    assert math.isnan(entropy(axes[:2]))


def test_entropy_is_the_local_pca_s() -> None:
    states = RANDOM.normal(size=(WINDOW, 40)).astype(np.float32)
    values = np.linalg.svd(states - states.mean(0), compute_uv=False) ** 2
    shares = values / values.sum()
    kept = shares[: int(np.searchsorted(shares.cumsum(), 0.95)) + 1]
    kept /= kept.sum()
    assert entropy(states) == pytest.approx(-(kept * np.log(kept)).sum(), rel=1e-4)


def test_a_window_forgets() -> None:
    window, states = Window(), RANDOM.normal(size=(30, 40)).astype(np.float32)
    assert math.isnan(window.push(states[0]))
    found = [window.push(state) for state in states[1:]]
    assert found[-1] == pytest.approx(entropy(states[-WINDOW:]), rel=1e-4)


def test_residual_is_the_share_that_the_ffn_added() -> None:
    x = RANDOM.normal(size=16).astype(np.float32)
    assert residual(x, x) == 0
    assert residual(x, x * 0.75) == pytest.approx(0.25, abs=1e-6)
    assert math.isnan(residual(x * 0, x))


def test_what_was_skipped_is_not_known() -> None:
    gone = np.full(16, np.nan, np.float32)
    signals = read(Reading(state=gone * 0 + 1, middle=gone, gaps=gone[:3]), Window(), 0.5)
    assert math.isnan(signals.entropy)
    assert math.isnan(signals.residual)
    assert math.isnan(signals.attention_kl)
    assert signals.confidence == 0.5


@pytest.mark.skipif(not available(), reason="no C++ compiler here: the kernel is optional")
def test_the_kernel_watches_a_layer(make_model: MakeModel) -> None:
    changes = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "initializer_range": 0.1}
    folder = make_model(plan=False, **changes)
    config = DecoderConfig.from_folder(folder)
    native = NativeDecoder(config, dict(read_tensors(folder)), kv="fp32", threads=2)
    ids, layer = list(range(40, 77)), 2
    watch, states = Watch.of(config, len(ids), layer), np.zeros((len(ids), 128), np.float32)

    def run(skipped: tuple[int, int] | None = None) -> torch.Tensor:
        mask, kv = np.ones((config.layers, 2), np.uint8), native.new_kv(64)
        if skipped:
            mask[skipped] = 0
        native.forward(ids, [kv] * len(ids), range(len(ids)), mask, layers=(0, layer + 1), states=states, watch=watch)
        return kv.view(layer)[0]

    keys = run()
    after = states.copy()
    run((layer, 1))  # without its MLP the block ends where the middle was
    assert np.allclose(watch.middle, states, atol=1e-6)
    assert (after != states).any()
    # attention rows by hand: the queries are those keys' layer inputs through q, turned as keys are
    assert keys.shape[1] == len(ids)
    assert (watch.gaps[0] == 0).all()  # one key: nothing to choose from
    bound = np.log(np.arange(1, len(ids) + 1))[:, None]
    assert ((watch.gaps >= 0) & (watch.gaps <= bound + 1e-5)).all()

    alone = native.new_kv(64)  # a row's figures do not depend on the rows beside it
    native.forward(ids[:-1], [alone] * 36, range(36), layers=(0, layer + 1), states=states[:36])
    single = Watch.of(config, 1, layer)
    state = np.zeros((1, 128), np.float32)
    native.forward(ids[-1:], [alone], [36], layers=(0, layer + 1), states=state, watch=single)
    assert (single.gaps[0] == watch.gaps[-1]).all()
    assert (state[0] == after[-1]).all()
    skipped = Watch.of(config, 1, layer)
    mask = np.ones((config.layers, 2), np.uint8)
    mask[layer] = 0
    native.forward([50], [alone], [37], mask, layers=(0, layer + 1), states=state, watch=skipped)
    assert np.isnan(skipped.gaps).all()
    assert np.isnan(skipped.middle).all()
    with pytest.raises(ValueError, match="watch"):
        native.forward([50], [alone], [38], watch=Watch.of(config, 2, layer))
    native.close()
