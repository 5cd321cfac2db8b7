"""Learned gates (G1, G5): kernel, torch and formula agree; what they leave out is not run; files and choice."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.gated_llm import GatedLLM, Plan, PlanError
from shoal.gated_llm.checkpoint import fingerprint, read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.gated_pass import TorchGates
from shoal.gated_llm.gates import GatePoint, Gates, Thrift
from shoal.gated_llm.model import Decoder
from shoal.gated_llm.native import Gated, NativeDecoder, available
from shoal.gated_llm.rules import choose_policy

from .conftest import MakeModel
from .test_native import LAYERS, WIDE, error, load, stood_for, tokens

HIDDEN = WIDE["hidden_size"]
kernel_only = pytest.mark.skipif(not available(), reason="no C++ compiler here: the kernel is optional")


def some_gates(layers: int = LAYERS, hidden: int = int(HIDDEN), seed: int = 0, model: str = "abc") -> Gates:
    """Gates of which about half are below a half at thrift 0.5, differently for every token."""
    draw = np.random.default_rng(seed)
    return Gates(
        model_fingerprint=model,
        floor=layers / 2,
        weight=draw.normal(0, 2 * hidden**-0.5, (layers, 2, hidden)).astype(np.float32),
        bias=np.full((layers, 2), 2.0, np.float32),
        slope=np.full((layers, 2), 4.0, np.float32),
        about={},
        points=(GatePoint(thrift=0.5, depth={"chat": layers * 0.6}, loss={"chat": 0.0}),),
    )


@kernel_only
def test_the_kernel_s_gates_are_those_of_the_formula_and_its_pass_repeats(make_model: MakeModel) -> None:
    config, weights = load(make_model)
    native, gates = NativeDecoder(config, weights, kv="fp32", threads=2), some_gates()
    native.set_gates(gates)
    ids, thrifts = tokens(20), [None] * 4 + [Thrift(value=0.5)] * 15 + [Thrift(value=0.0)]
    whole = np.ones((20, LAYERS, 2), np.uint8)
    kv, parts = native.new_kv(32), native.new_kv(32)
    gated = Gated.of(config, thrifts, whole)
    logits = native.forward(ids, [kv] * 20, range(20), gated.run, gated=gated)
    gated = Gated.of(config, thrifts, whole)
    states = np.zeros((20, config.hidden), np.float32)
    native.branch_runs[:] = 0
    for layer in range(LAYERS):
        if layer:
            expected = gates.alpha(layer, states, 0.5)[4:19]
        native.forward(ids, [parts] * 20, range(20), gated.run, layers=(layer, layer + 1), states=states, gated=gated)
        if layer:
            assert np.allclose(gated.alpha[4:19, layer], expected, atol=1e-5)
    assert np.array_equal(gated.run == 1, (gated.alpha >= 0.5) | (np.arange(LAYERS) >= LAYERS - 3)[:, None])
    assert 0.2 < gated.run[4:19, :3].mean() < 0.8
    assert gated.run[:4].all()
    assert (gated.alpha[:, -3:] >= 0.7).all()
    assert (gated.alpha[:4] == 1).all()
    assert np.array_equal(native.branch_runs, gated.run.sum(0))  # what is left out is not run
    assert kv.lengths.tolist() == parts.lengths.tolist() == gated.run[:, :, 0].sum(0).tolist()
    again = native.forward(ids, [native.new_kv(32)] * 20, range(20), gated.run, alpha=gated.alpha)
    assert torch.equal(again, logits)
    native.close()


@kernel_only
@pytest.mark.parametrize("store", [False, True])
def test_torch_reads_with_gates_as_the_kernel_does(make_model: MakeModel, store: bool) -> None:
    config, weights = load(make_model)
    native, gates = NativeDecoder(config, weights, bits=8, kv="fp32"), some_gates(seed=3)
    native.set_gates(gates)
    reference = Decoder(config, stood_for(native, weights), dtype="fp32")
    reference.gates = TorchGates(gates, reference.device)
    ids, kv, cache, base = tokens(30), native.new_kv(32), reference.cache(64), np.ones((LAYERS, 2), np.uint8)
    base[2, 1] = base[1, 0] = 0
    for start, stop in ((0, 24), (24, 29), (29, 30)):
        free = [Thrift(value=0.5, store=store) if at >= 4 else None for at in range(start, stop)]
        gated = Gated.of(config, free, np.broadcast_to(base, (stop - start, LAYERS, 2)))
        got = native.forward(ids[start:stop], [kv] * (stop - start), range(start, stop), gated.run, gated=gated)
        with torch.inference_mode():
            places = torch.arange(start, stop)[None]
            seen = reference.gates.begin(Thrift(value=0.5, store=store), places, prompt=True)
            mask = [(bool(a), bool(m)) for a, m in base.tolist()]
            hidden = reference.forward(torch.tensor([ids[start:stop]]), places, cache, mask, gates=seen)
            assert error(got, reference.logits(hidden[0])) < 2e-3
        assert np.array_equal(seen.ran.numpy() == 1, gated.run == 1)
        assert np.allclose(seen.alpha.numpy(), gated.alpha, atol=2e-3)
    assert kv.lengths.tolist() == cache.lengths
    assert cache.lengths[1] == 0
    assert cache.positions(2)[0].tolist() == kv.view(2)[2].tolist()
    assert (cache.lengths[2] == 30) == store
    native.close()


@kernel_only
def test_gates_without_a_decoder_that_has_them_are_refused(make_model: MakeModel) -> None:
    config, weights = load(make_model)
    native = NativeDecoder(config, weights)
    with pytest.raises(ValueError, match="gates first"):
        native.forward(
            [3], [native.new_kv(4)], [0], gated=Gated.of(config, [Thrift(value=0.5)], np.ones((1, LAYERS, 2), np.uint8))
        )
    with pytest.raises(PlanError, match="9 layers"):
        native.set_gates(some_gates(layers=9))
    native.close()


@pytest.fixture(scope="module", params=["kernel", "torch"])
def gated_folder(request: pytest.FixtureRequest, make_model: MakeModel) -> Path:
    if request.param == "kernel" and not available():
        pytest.skip("no C++ compiler here")
    shape = WIDE if request.param == "kernel" else {}
    folder = make_model(**shape)
    config = DecoderConfig.from_folder(folder)
    gates = some_gates(config.layers, config.hidden, model=fingerprint(read_tensors(folder)))
    gates.write(folder / "gates.safetensors")
    return folder


def test_an_engine_decides_by_gates_token_by_token(gated_folder: Path) -> None:
    prompt = "Say something long about boats and rain, please, and do not stop."
    with GatedLLM.load(gated_folder, quality=0.02) as llm:
        whole = llm.generate(prompt, max_tokens=12, policy="full")
        made = llm.generate(prompt, max_tokens=12, policy="gates", trace=True)
        assert made.depth.policy == "gates"
        assert made.depth.gate_fingerprint != llm.plan.fingerprint
        assert whole.depth.mean == llm.total > made.depth.mean
        assert len(set(made.depth.per_token)) > 1
        assert made.trace is not None
        for token in made.trace.tokens[1:]:
            assert len(token.gates) == 2 * llm.total
            ran = [letter.isupper() for letter in token.branches]
            assert all(run == (gate >= 0.5) for run, gate in zip(ran[:-6], token.gates[:-6], strict=True))
            assert min(token.gates[-6:]) >= 0.7
        again = llm.generate(prompt, max_tokens=12, policy="gates", drafts=False)
        assert (again.text, again.depth.per_token) == (made.text, made.depth.per_token)
        # under a budget no token is deeper than its plan, and alone or beside others it is the same
        within = llm.generate(prompt, max_tokens=12, policy="gates", max_depth=5)
        assert within.depth.max <= 5
        read = llm.generate(prompt, max_tokens=12, policy="gates", gate_prefill=True)
        assert made.depth.prefill == llm.total > read.depth.prefill
        assert read.usage.layer_tokens < made.usage.layer_tokens
        assert llm.generate(prompt, max_tokens=4, policy="auto").depth.policy == "gates"
        assert llm.generate(prompt, max_tokens=4, max_depth=5).depth.policy == "plan"


def test_rows_with_gates_are_the_same_beside_others(gated_folder: Path) -> None:
    prompts = [f"Say something about {word}, as long as it takes." for word in ("boats", "rain", "a very old map")]
    with GatedLLM.load(gated_folder, quality=0.02) as llm:
        settings = {"max_tokens": 10, "policy": "gates", "gate_prefill": True}
        alone = [llm.generate(prompt, **settings) for prompt in prompts]
        streams = [llm.stream(prompt, **settings) for prompt in prompts]
        parts: list[list[str]] = [[] for _ in prompts]
        depths = {}
        open_streams = dict(enumerate(streams))
        while open_streams:
            for i, stream in list(open_streams.items()):
                chunk = next(stream, None)
                if chunk is None:
                    del open_streams[i]
                else:
                    parts[i].append(chunk.text)
                    depths[i] = chunk.depth.per_token
        assert ["".join(part) for part in parts] == [made.text for made in alone]
        assert [depths[i] for i in range(3)] == [made.depth.per_token for made in alone]


def test_a_file_comes_back_and_damage_is_named(tmp_path: Path) -> None:
    gates, path = some_gates(), tmp_path / "gates.safetensors"
    gates.write(path)
    read = Gates.read(path)
    assert (read.points, read.floor, read.model_fingerprint) == (gates.points, gates.floor, "abc")
    assert np.allclose(read.weight, gates.weight, atol=2e-3)
    with pytest.raises(PlanError, match="made for model abc, this one is xyz"):
        read.check(LAYERS, int(HIDDEN), "xyz", path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(PlanError, match=r"gates\.safetensors holds no gates.*shoal gates train"):
        Gates.read(path)
    for change in ({"bias": gates.bias[:2]}, {"floor": 0.0}, {"floor": 99.0}, {"slope": gates.slope * np.nan}):
        with pytest.raises(PlanError, match="Gates"):
            replace(gates, **change)
    for point in ({"thrift": -1.0}, {"depth": {}}, {"loss": {"chat": float("nan")}}, {"loss": {"other": 0.1}}):
        with pytest.raises(PlanError, match="point of the gates"):
            replace(gates.points[0], **point)


def test_gates_are_chosen_within_the_quality_and_the_budget() -> None:
    plan = Plan.from_order([("mlp", 2)], [0.5], total=6, attention_share=0.25, model_fingerprint="abc")
    points = tuple(
        GatePoint(thrift=t, depth={"chat": d, "grounded": d - 1}, loss={"chat": loss, "grounded": 2 * loss})
        for t, d, loss in ((0.2, 5.5, 0.01), (0.5, 5.0, 0.02), (0.9, 4.0, 0.2))
    )
    gates = replace(some_gates(), points=points)

    def chosen(**settings: object) -> tuple[str, float | None, float]:
        made = choose_policy(settings.pop("depth", "auto"), plan, None, gates=gates, **settings)  # type: ignore[arg-type]
        return made.policy, made.thrift, made.budget.depth

    assert chosen(quality=0.0201, work="chat") == ("gates", 0.5, 6)
    assert chosen(quality=0.0201) == ("gates", 0.2, 6)
    assert chosen(quality=0.001) == ("full", None, 6)
    assert chosen(quality=0.0201, depth=6, policy="gates", work="chat") == ("gates", 0.5, 6)
    assert chosen(quality=0.0201, depth=6) == ("full", None, 6)
    assert choose_policy("auto", plan, None, quality=0.5, policy="gates").policy == "plan"
    with pytest.raises(PlanError, match="measured for chat, grounded"):
        chosen(quality=0.5, work="scoring")
