"""Calibration of thresholds on a tiny checkpoint, and replays that must equal decoding one by one."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from shoal.gated_llm.checkpoint import fingerprint, read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.gating import Bound, Level, Rule, new_gating, run_mask
from shoal.gated_llm.native import NativeDecoder, available
from shoal.gated_llm.policy import Plan, resolve_budget
from shoal.gated_llm.rules import Rules
from shoal.gated_llm.train.cohort import Cohort
from shoal.gated_llm.train.samples import Sample
from shoal.gated_llm.train.signals import calibrate_signals, signal_columns

from .conftest import MakeModel

pytestmark = pytest.mark.skipif(not available(), reason="no C++ compiler here: the kernel is optional")
WIDE = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "num_hidden_layers": 8}


@pytest.fixture(scope="module")
def folder(make_model: MakeModel) -> Path:
    return make_model(plan=False, **WIDE)


def test_a_replay_alone_and_beside_others_is_the_same(folder: Path) -> None:
    config = DecoderConfig.from_folder(folder)
    plan = Plan(total=config.layers, attention_share=config.attention_share, model_fingerprint="abc")
    draw = random.Random(0)
    samples = [
        Sample(kind="text", prefix=draw.choices(range(3, 250), k=9), rest=draw.choices(range(3, 250), k=n))
        for n in (12, 7, 12)
    ]
    kernel = NativeDecoder(config, dict(read_tensors(folder)))
    whole = Cohort(kernel, samples)
    middle = float(np.nanmedian(signal_columns(whole, whole.see(2, [run_mask(plan, [])]))["residual"]))
    bound = Bound(side="<=", value=middle)
    rule = Rule(levels=(Level(drops=(("mlp", 3), ("attention", 4)), bounds={"residual": bound}),), probe=2)
    budget = resolve_budget(8, plan, quality=0.0)

    def run(chosen: list[Sample], rule: Rule | None) -> tuple[Cohort, np.ndarray, np.ndarray]:
        cohort = Cohort(kernel, chosen)
        policy = "signals" if rule else "full"
        found = cohort.replay(lambda i: new_gating(policy, plan, budget, rule=rule))
        return cohort, found.kl, found.depth

    together, kl, depth = run(samples, rule)
    assert 0 < (depth < 8).mean() < 1
    for i, sample in enumerate(samples):
        of_it = [place for place, (_, owner) in enumerate(together.places) if owner == i]
        _, alone_kl, alone_depth = run([sample], rule)
        assert (alone_depth == depth[of_it]).all()
        assert np.allclose(alone_kl, kl[of_it], atol=1e-5)
    _, same, deep = run(samples, None)
    assert same.max() < 1e-5
    assert (deep == 8).all()
    kernel.close()


def test_thresholds_for_a_tiny_model(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    text = "The harbour was quiet, and nobody spoke of the storm that had come in the night. " * 60
    prompts = [f"Say something about {word}." for word in ("boats", "rain", "bread", "stones", "clocks", "foxes")]
    rules = calibrate_signals(folder, text=text, prompts=prompts, samples=3, probe=2, say=said.append)
    rules.write(tmp_path / "signals.json")
    back = Rules.read(tmp_path / "signals.json", model_fingerprint=fingerprint(read_tensors(folder)))
    assert len(back.points) == len(rules.points)
    assert any("fitting on" in line for line in said)
    for point in back.points:
        assert set(point.depth) == {"chat", "scoring"}
        assert all(depth <= 8 for depth in point.depth.values())


def test_one_command_makes_plan_and_thresholds(
    folder: Path, tmp_path: Path, shoal: Callable[..., tuple[int, str, str]]
) -> None:
    own = shutil.copytree(folder, tmp_path / "model")
    tensors = {name: tensor.clone() for name, tensor in read_tensors(folder).items()}
    for layer in (2, 3, 4):  # branches that may leave
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"] *= 1e-4
        tensors[f"model.layers.{layer}.self_attn.o_proj.weight"] *= 1e-4
    save_file(tensors, own / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "text.txt").write_text("The harbour was quiet, and nobody spoke of the storm of the night. " * 25)
    asked = ["gates", "calibrate", "--model", str(own), "--data", "text.txt", "--min-share", "0.9", "--signals"]
    code, _, said = shoal(*asked)
    assert (code, "--prompts" in said) == (2, True)
    (tmp_path / "none.txt").write_text("")
    code, _, said = shoal(*asked, "--prompts", "none.txt")
    assert (code, "two prompts" in said, (own / "plan.json").exists()) == (2, True, False)
    (tmp_path / "asked.txt").write_text("\n".join(f"Say something about {word}." for word in ("boats", "rain") * 2))
    code, printed, said = shoal(*asked, "--prompts", "asked.txt", "--json")
    assert code == 0, said
    made = json.loads(printed)
    model = fingerprint(tensors)
    assert Plan.read(Path(made["plan"]), model_fingerprint=model).points
    assert Rules.read(Path(made["signals"]), model_fingerprint=model).points
