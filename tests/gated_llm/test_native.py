"""The native kernel: against torch over the weights that its packed ones stand for, and against itself to the bit."""

import gc
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.gated_llm import GatedError, WeightsError
from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.model import Decoder
from shoal.gated_llm.native import NativeDecoder, NativeKV, available, build, supports

from .conftest import MakeModel

pytestmark = pytest.mark.skipif(not available(), reason="no C++ compiler here: the kernel is optional")
WIDE = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "initializer_range": 0.1}
NAMES = {part: f"self_attn.{part}_proj" for part in "qkvo"} | {p: f"mlp.{p}_proj" for p in ("gate", "up", "down")}
LAYERS = 6
Loaded = tuple[DecoderConfig, dict[str, torch.Tensor]]


def load(make_model: MakeModel, kind: str = "llama", **changes: object) -> Loaded:
    folder = make_model(kind, plan=False, **{**WIDE, **changes})
    return DecoderConfig.from_folder(folder), dict(read_tensors(folder))


def stood_for(native: NativeDecoder, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights with each packed matrix replaced by what it stands for."""
    out = {**weights, "model.embed_tokens.weight": native.weight("embed")}
    if "lm_head.weight" in weights:
        out["lm_head.weight"] = native.weight("embed" if native.config.tied else "head")
    for layer in range(native.config.layers):
        for kind, name in NAMES.items():
            out[f"model.layers.{layer}.{name}.weight"] = native.weight(kind, layer)
    return out


def read(
    native: NativeDecoder, ids: list[int], kv: NativeKV, start: int = 0, run: np.ndarray | None = None
) -> torch.Tensor:
    return native.forward(ids, [kv] * len(ids), range(start, start + len(ids)), run)


def tokens(n: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 250, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def error(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Loaded:
    return load(make_model)


@pytest.fixture(scope="module")
def native(model: Loaded) -> Iterator[NativeDecoder]:
    decoder = NativeDecoder(*model)
    yield decoder
    decoder.close()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4, "vocab_size": 261}),
        ("mistral", {"sliding_window": 8, "head_dim": 64}),
        ("qwen2", {"num_key_value_heads": 1}),
        ("qwen3", {}),
    ],
)
def test_logits_are_torch_s(make_model: MakeModel, kind: str, changes: dict[str, object], bits: int) -> None:
    config, weights = load(make_model, kind, **changes)
    native = NativeDecoder(config, weights, bits=bits, kv="fp32", threads=2)
    reference = Decoder(config, stood_for(native, weights), dtype="fp32")
    ids, kv, cache = tokens(45), native.new_kv(4), reference.cache(64)
    run = np.ones((LAYERS, 2), np.uint8)
    run[2, 0] = run[3, 1] = run[4] = 0
    with torch.inference_mode():
        for start, stop, mask in ((0, 40, None), (40, 41, run), (41, 42, None), (42, 45, run)):
            places = torch.arange(start, stop)[None]
            pairs = None if mask is None else [(bool(a), bool(m)) for a, m in mask.tolist()]
            expected = reference.logits(reference.forward(torch.tensor([ids[start:stop]]), places, cache, pairs)[0])
            assert error(read(native, ids[start:stop], kv, start, mask), expected) < 2e-4
    assert kv.lengths.tolist() == cache.lengths
    for layer in range(LAYERS):
        keys, values, places = kv.view(layer)
        stored = cache.stored(layer)[0].transpose(0, 1)
        assert error(torch.cat([keys, values]), stored) < 2e-4
        assert places.tolist() == cache.positions(layer)[0].tolist()
    native.close()


def test_grids_of_gguf_come_back_exactly(make_model: MakeModel) -> None:
    """Q4_1 (16 steps from a group's least to its greatest), Q8_0 (127 steps either way), half-precision scales."""
    config, weights = load(make_model, tie_word_embeddings=True)
    generator = torch.Generator().manual_seed(1)

    def grid(shape: torch.Size, steps: int) -> torch.Tensor:
        codes = torch.randint(0, steps + 1, (shape[0], shape[1] // 32, 32), generator=generator).float()
        codes[..., 0], codes[..., 1] = 0, steps
        scale = (torch.rand(codes.shape[:2], generator=generator) * 0.01 + 1e-4).half().float()[..., None]
        low = (torch.randn(codes.shape[:2], generator=generator) * 0.1).half().float()[..., None]
        return (codes * scale + low if steps == 15 else (codes - 127) * scale).reshape(shape)

    for name, tensor in weights.items():
        if tensor.dim() == 2:
            weights[name] = grid(tensor.shape, 254 if "embed" in name else 15)
    native = NativeDecoder(config, weights)
    for name, tensor in stood_for(native, weights).items():
        assert torch.equal(tensor, weights[name]), name
    native.close()


@pytest.mark.parametrize("kv", ["fp32", "fp16", "bf16"])
def test_a_block_of_rows_equals_single_steps(model: Loaded, kv: str) -> None:
    native, ids = NativeDecoder(*model, kv=kv), tokens(70)  # type: ignore[arg-type]
    alone = native.new_kv(70)
    steps = torch.cat([read(native, [token], alone, i) for i, token in enumerate(ids)])
    for cuts in ((70,), (33, 37), (1, 16, 20, 33)):
        together, parts, start = native.new_kv(1), [], 0
        for n in cuts:
            parts.append(read(native, ids[start : start + n], together, start))
            start += n
        assert torch.equal(torch.cat(parts), steps)
    native.close()


def test_a_batch_equals_its_rows_alone(native: NativeDecoder) -> None:
    """Requests of different lengths, each with its own mask (G8)."""
    random = np.random.default_rng(5)
    lengths, masks = [3, 40, 17, 1, 64, 9, 2], random.integers(0, 2, (7, LAYERS, 2)).astype(np.uint8)
    masks[1, 2, 0] = 2  # only stores its keys and values there
    alone, together = ([native.new_kv(8) for _ in lengths] for _ in range(2))
    for kvs in (alone, together):
        for i, (kv, n) in enumerate(zip(kvs, lengths, strict=True)):
            read(native, tokens(n, i), kv)
    for step in range(3):
        ids, places = tokens(7, 90 + step), [n + step for n in lengths]
        single = [native.forward([ids[i]], [alone[i]], [places[i]], masks[i]) for i in range(7)]
        assert torch.equal(native.forward(ids, together, places, masks), torch.cat(single))
    for a, b in zip(alone, together, strict=True):
        assert a.lengths.tolist() == b.lengths.tolist()


def test_rows_of_several_requests_in_one_pass(native: NativeDecoder) -> None:
    """A draft of one request, a prompt of another and a step of a third."""
    ids, kvs = tokens(30), [native.new_kv(32) for _ in range(3)]
    owners = [kvs[0]] * 5 + [kvs[1]] * 24 + [kvs[2]]
    places = [*range(5), *range(24), 0]
    together = native.forward(ids, owners, places, wanted=[4, 28, 29])
    parts = [read(native, part, native.new_kv(32))[-1] for part in (ids[:5], ids[5:29], ids[29:])]
    assert torch.equal(together, torch.stack(parts))


def test_a_pass_in_two_parts_is_the_same_pass(native: NativeDecoder) -> None:
    """What decides between two layers sees the residual stream and costs no bit (G3)."""
    ids, hidden = tokens(9), native.config.hidden
    whole, parts = native.new_kv(16), native.new_kv(16)
    states, last = np.zeros((9, hidden), np.float32), np.zeros((9, hidden), np.float32)
    expected = native.forward(ids, [whole] * 9, range(9), states=last)
    first = native.forward(ids, [parts] * 9, range(9), layers=(0, 2), states=states)
    assert first.shape[0] == 0
    assert parts.lengths.tolist() == [9, 9] + [0] * (LAYERS - 2)
    found = native.forward(ids, [parts] * 9, range(9), layers=(2, LAYERS), states=states)
    assert torch.equal(found, expected)
    assert np.array_equal(states, last)
    assert parts.lengths.tolist() == whole.lengths.tolist()


@pytest.mark.parametrize("layers", [(-1, 2), (3, 1), (0, LAYERS + 1), (1, LAYERS)])
def test_parts_that_do_not_fit(native: NativeDecoder, layers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="layers="):
        native.forward([5], [native.new_kv(1)], [0], layers=layers)


@pytest.mark.parametrize("states", [np.zeros((2, 64), np.float32), np.zeros((1, 64)), np.zeros((1, 3), np.float32)])
def test_states_that_do_not_fit(native: NativeDecoder, states: np.ndarray) -> None:
    with pytest.raises(ValueError, match="states"):
        native.forward([5], [native.new_kv(1)], [0], states=states)


def test_threads_change_nothing(native: NativeDecoder) -> None:
    ids, found = tokens(50), []
    for threads in (1, 2, 3, 5, 1):
        native.set_threads(threads)
        kv = native.new_kv(64)
        steps = [read(native, ids[:40], kv), *(read(native, [t], kv, 40 + i) for i, t in enumerate(ids[40:]))]
        found.append(torch.cat(steps))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_skipped_branches_do_not_run(native: NativeDecoder) -> None:
    kv, run = native.new_kv(8), np.ones((LAYERS, 2), np.uint8)
    run[1] = run[3, 0] = run[5, 1] = 0
    run[2, 0] = 2
    read(native, [5, 6, 7], kv)
    before = native.branch_runs.copy()
    read(native, [8], kv, 3, run)
    assert (native.branch_runs - before).tolist() == (run == 1).astype(int).tolist()
    assert kv.lengths.tolist() == [4, 3, 4, 3, 4, 4]
    assert kv.bytes_used == 22 * kv.bytes_per_token == 22 * 2 * 2 * 32 * 2


def test_stored_but_skipped_keys_are_those_of_a_run(native: NativeDecoder) -> None:
    run = np.ones((LAYERS, 2), np.uint8)
    run[0] = 2, 1
    ran, stored = native.new_kv(8), native.new_kv(8)
    read(native, [5], ran)
    read(native, [5], stored, 0, run)
    assert torch.equal(ran.view(0)[0], stored.view(0)[0])
    assert torch.equal(ran.view(0)[1], stored.view(0)[1])


def test_alpha_scales_a_branch(native: NativeDecoder) -> None:
    def logits(run: np.ndarray | None, alpha: np.ndarray | None) -> torch.Tensor:
        kv = native.new_kv(8)
        read(native, [5, 6, 7], kv)
        return native.forward([8], [kv], [3], run, alpha=alpha)

    ones, none = np.ones((LAYERS, 2), np.float32), np.ones((LAYERS, 2), np.float32)
    none[[1, 4], [0, 1]] = 0
    full, half = logits(None, None), logits(None, none * 0.5 + 0.5)
    assert torch.equal(logits(None, ones), full)
    assert torch.equal(logits(None, none), logits(none.astype(np.uint8), None))
    assert 0 < error(half, full) < error(logits(None, none), full)


def test_a_forgotten_draft_leaves_no_trace(native: NativeDecoder) -> None:
    kv, clean = native.new_kv(1), native.new_kv(1)
    for store in (kv, clean):
        read(native, tokens(30), store)
    held, twin = kv.lengths.copy(), kv.copy()
    read(native, tokens(100, 7), kv, 30)
    kv.truncate(held)
    expected = read(native, [9, 10], clean, 30)
    assert torch.equal(read(native, [9, 10], kv, 30), expected)
    assert torch.equal(read(native, [9, 10], twin, 30), expected)
    with pytest.raises(ValueError, match="shorten"):
        kv.truncate(held + 100)


def test_appended_keys_and_values_are_as_if_read(native: NativeDecoder) -> None:
    kv, moved = native.new_kv(64), native.new_kv(4)
    read(native, tokens(37), kv)
    for layer in range(LAYERS):
        keys, values, places = kv.view(layer)
        both = torch.cat([keys, values]).transpose(0, 1)
        moved.append(layer, both[:20], places[:20])
        moved.append(layer, both[20:], places[20:])
    assert torch.equal(read(native, [9], kv, 37), read(native, [9], moved, 37))


@pytest.mark.parametrize("flags", [build.PORTABLE, ("-march=haswell",)])
def test_other_instruction_sets_agree(model: Loaded, native: NativeDecoder, flags: tuple[str, ...]) -> None:
    cpu = Path("/proc/cpuinfo")
    if flags != build.PORTABLE and not (cpu.exists() and " avx2 " in cpu.read_text("utf-8")):
        pytest.skip("not a processor with AVX2")
    library = build.library(flags)
    for bits in (4, 8):
        native, other = NativeDecoder(*model, bits=bits), NativeDecoder(*model, bits=bits, lib=library, threads=2)
        for kind in NAMES:
            assert torch.equal(native.weight(kind, 1), other.weight(kind, 1))
        kvs = native.new_kv(40), other.new_kv(40)
        assert error(read(other, tokens(40), kvs[1]), read(native, tokens(40), kvs[0])) < 1e-3
        native.close()
        other.close()


def test_broken_weights_give_nan_not_a_guess(model: Loaded) -> None:
    config, weights = model
    broken = {**weights, "model.layers.2.post_attention_layernorm.weight": torch.full((config.hidden,), torch.nan)}
    native = NativeDecoder(config, broken)
    assert read(native, [5, 6], native.new_kv(4)).isnan().all()
    native.close()


def test_callers_in_several_threads_take_turns(native: NativeDecoder) -> None:
    native.set_threads(2)
    expected = {i: read(native, tokens(20, i), native.new_kv(20)) for i in range(4)}
    same: list[bool] = []

    def work(i: int) -> None:
        same.extend(torch.equal(read(native, tokens(20, i), native.new_kv(20)), expected[i]) for _ in range(5))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(same) == 20
    assert all(same)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts pages as Linux does")
def test_closing_gives_everything_back(model: Loaded) -> None:
    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGESIZE")

    def cycle() -> None:
        decoder = NativeDecoder(*model, threads=3)
        read(decoder, tokens(40), decoder.new_kv(40))
        decoder.close()
        decoder.close()

    for _ in range(3):
        cycle()
    before, threads = resident(), len(os.listdir("/proc/self/task"))
    for _ in range(20):
        cycle()
    assert len(os.listdir("/proc/self/task")) == threads
    assert resident() - before < 8 << 20


def test_wrong_use_is_refused(model: Loaded, native: NativeDecoder) -> None:
    config, weights = model
    kv = native.new_kv(4)
    with pytest.raises(ValueError, match="vocabulary"):
        read(native, [config.vocab], kv)
    with pytest.raises(ValueError, match="context"):
        read(native, [5], kv, config.context)
    with pytest.raises(ValueError, match="one of each"):
        native.forward([5, 6], [kv], [0, 1])
    assert kv.lengths.tolist() == [0] * LAYERS
    closed = NativeDecoder(config, weights)
    closed.close()
    with pytest.raises(GatedError, match="closed"):
        read(closed, [5], kv)
    for change in ({}, {"model.norm.weight": torch.ones(3)}):
        rest = {name: w for name, w in weights.items() if name != "model.norm.weight"}
        with pytest.raises(WeightsError, match="norm"):
            NativeDecoder(config, rest | change)
    with pytest.raises(ValueError, match="bits"):
        NativeDecoder(config, weights, bits=5)


def test_odd_shapes_are_left_to_torch(make_model: MakeModel) -> None:
    config, weights = load(make_model, head_dim=16)
    assert not supports(config)
    with pytest.raises(WeightsError, match="torch"):
        NativeDecoder(config, weights)


@pytest.mark.parametrize("compiler", ["/bin/false", "/nowhere/g++"])
def test_no_kernel_without_a_compiler(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with caplog.at_level(logging.WARNING):
        assert build.library.__wrapped__(None, tmp_path) is None
    assert "torch" in caplog.text
    assert not list((tmp_path / "native").iterdir())
