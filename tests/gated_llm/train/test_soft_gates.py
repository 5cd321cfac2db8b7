"""Gates under training: they start as the plan, give what they will give at run time, and learn to keep to a depth."""

from pathlib import Path

import pytest
import torch

from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.gated_pass import TorchGates
from shoal.gated_llm.gates import Gates, Thrift
from shoal.gated_llm.model import Decoder
from shoal.gated_llm.train.packs import Pack, packed
from shoal.gated_llm.train.run import _free
from shoal.gated_llm.train.soft_gates import SoftGates

from .test_run import folder, packs, plan_of, student  # noqa: F401


def gates_of(folder: Path, *, noise: float = 0.0) -> SoftGates:  # noqa: F811
    config = DecoderConfig.from_folder(folder)
    made = SoftGates(plan_of(folder), config.hidden, floor=3.0)
    torch.manual_seed(5)
    made.parameters["gates.weight"].add_(torch.randn_like(made.parameters["gates.weight"]) * noise)
    made.refresh()
    return made


def test_they_start_as_the_plan(folder: Path) -> None:  # noqa: F811
    plan, soft = plan_of(folder), gates_of(folder)
    values = {name: value.numpy() for name, value in soft.values().items()}
    gates = Gates(model_fingerprint="", floor=soft.floor, about={}, **values)
    states = torch.randn(3, DecoderConfig.from_folder(folder).hidden).numpy()
    assert gates.alpha(2, states, 0.0) == pytest.approx(0.99, abs=1e-3)
    for dropped in range(len(plan.points) + 1):
        thrift = soft.thrift(plan.depth_at(dropped)) + 1e-3
        runs = [tuple(bool(alpha >= 0.5) for alpha in gates.alpha(i, states, thrift)[0]) for i in range(plan.total)]
        assert runs == [tuple(map(bool, pair)) for pair in plan.mask(dropped)]


@pytest.mark.parametrize("read_whole", [False, True])
def test_they_give_what_the_decoder_will_give(packs: list[Pack], folder: Path, read_whole: bool) -> None:  # noqa: F811
    config, weights = DecoderConfig.from_folder(folder), read_tensors(folder)
    soft, thrift = gates_of(folder, noise=2.0), 0.5
    learner, decoder = student(folder), Decoder(config, weights, dtype="fp32")
    values = {name: value.numpy() for name, value in soft.values().items()}
    decoder.gates = TorchGates(Gates(model_fingerprint="", floor=3.0, about={}, **values), decoder.device)
    batch = packed(packs, size=max(pack.size for pack in packs) + 5, dtype=torch.float32)
    got = learner.logits(batch, gates=soft.at(thrift, _free(batch, read_whole=read_whole))).detach()
    at, depths = 0, list[float]()
    for pack in packs:
        for branch in pack.branches:
            ids = torch.tensor([[*pack.trunk, *branch.ids]])
            places, read = torch.arange(ids.shape[1])[None], ids.shape[1] - branch.answer - 1
            cache, passes = decoder.cache(ids.shape[1]), []
            for part, prompt in ((slice(0, read), True), (slice(read, -1), False)):
                gated = None
                if not (prompt and read_whole):
                    gated = decoder.gates.begin(Thrift(value=thrift), places[:, part], prompt=prompt)
                    passes.append(gated)
                hidden = decoder.forward(ids[:, part], places[:, part], cache, gates=gated)
            assert torch.allclose(got[at : at + branch.answer], decoder.logits(hidden[0]), atol=2e-3)
            depths.append(float(passes[-1].ran.float().mean()))
            at += branch.answer
    assert at == len(got)
    assert 0.3 < min(depths) < max(depths) < 0.95


def test_they_learn_to_keep_to_a_depth(packs: list[Pack], folder: Path) -> None:  # noqa: F811
    learner, soft = student(folder), gates_of(folder, noise=1.0)
    batch = packed(packs, size=max(pack.size for pack in packs), dtype=torch.float32)
    target, distances = 4.0, list[float]()
    for _ in range(40):
        learner.logits(batch, gates=soft.at(soft.thrift(target), _free(batch), temperature=2.0))
        distance = (soft.depth() - target).abs()
        distance.backward()
        distances.append(float(distance.detach()))
        for name, gradient in soft.gradients().items():
            soft.parameters[name].sub_(torch.sign(gradient) * 0.02)
        soft.refresh()
    assert min(distances[-5:]) < 0.3 * distances[0]
