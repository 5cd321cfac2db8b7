"""Training an adapter: packs equal single sequences, gradients are right, a killed run ends like an unbroken one."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from shoal.gated_llm import GatedError, Plan
from shoal.gated_llm.checkpoint import fingerprint, read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.gates import Gates
from shoal.gated_llm.lora import Adapter, merge
from shoal.gated_llm.model import Decoder
from shoal.gated_llm.tokenizer import ChatTokenizer
from shoal.gated_llm.train.adapter import train_adapter
from shoal.gated_llm.train.grounded_sources import Asked, Passage
from shoal.gated_llm.train.packs import Pack, batches, pack_passages, packed
from shoal.gated_llm.train.recipe import Recipe, Source
from shoal.gated_llm.train.run import Run
from shoal.gated_llm.train.student import Student

END = 2


@pytest.fixture(scope="module")
def folder(make_model) -> Path:  # type: ignore[no-untyped-def]
    made: Path = make_model(num_hidden_layers=6, max_position_embeddings=1024)
    return made


@pytest.fixture(scope="module")
def packs(folder: Path) -> list[Pack]:
    asked = (Asked(question="Who?", answer="Ann"), Asked(question="Where was it?", answer="In a barn"))
    passage = Passage(text="Ann slept in a barn.", asked=asked, article="Ann", source="x")
    other = Passage(text="Bo ran.", asked=(Asked(question="Who ran?", answer="Bo"),), article="Bo", source="x")
    tokenizer, draw = ChatTokenizer(folder), random.Random(1)
    return [
        pack
        for group in ((passage,), (passage, other))
        for pack in pack_passages(group, tokenizer, plain=True, longest=400, end=END, total=6, draw=draw)
    ]


def student(folder: Path, *, rank: int = 3, seed: int = 1) -> Student:
    config = DecoderConfig.from_folder(folder)
    return Student(config, read_tensors(folder), rank=rank, seed=seed, dtype=torch.float32)


def plan_of(folder: Path) -> Plan:
    return Plan.read(folder / "plan.json", model_fingerprint=fingerprint(read_tensors(folder)))


def test_questions_share_one_reading_of_their_passage(packs: list[Pack], folder: Path) -> None:
    assert [len(pack.branches) for pack in packs] == [2, 3]
    alone = ChatTokenizer(folder).encode_prompt("Context: Ann slept in a barn.\n\nQuestion: Who?")
    spelt = [[*packs[0].trunk, *branch.ids[: -branch.answer]] for branch in packs[0].branches]
    assert alone in spelt
    assert all(branch.ids[-1] == END for pack in packs for branch in pack.branches)


@pytest.mark.parametrize(("dropped", "read_whole"), [(0, False), (3, False), (3, True)])
def test_a_pack_gives_what_single_sequences_give(
    packs: list[Pack], folder: Path, dropped: int, read_whole: bool
) -> None:
    learner, decoder = student(folder), Decoder(DecoderConfig.from_folder(folder), read_tensors(folder), dtype="fp32")
    mask = plan_of(folder).mask(dropped) if dropped else None
    size = max(pack.size for pack in packs) + 5
    got = learner.logits(packed(packs, size=size, dtype=torch.float32), mask, read_whole=read_whole).detach()
    at = 0
    for pack in packs:
        for branch in pack.branches:
            ids = torch.tensor([[*pack.trunk, *branch.ids]])
            places, read = torch.arange(ids.shape[1])[None], ids.shape[1] - branch.answer - 1
            cache = decoder.cache(ids.shape[1])
            decoder.forward(ids[:, :read], places[:, :read], cache, None if read_whole else mask)
            hidden = decoder.forward(ids[:, read:-1], places[:, read:-1], cache, mask)
            assert torch.allclose(got[at : at + branch.answer], decoder.logits(hidden[0]), atol=2e-3)
            at += branch.answer
    assert at == len(got)


def test_gradients_equal_those_of_the_merged_weights(
    packs: list[Pack], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = student(folder)
    torch.manual_seed(3)
    for name, tensor in learner.parameters.items():
        if "lora_B" in name:
            tensor.copy_(torch.randn_like(tensor) * 0.02)
    learner.refresh()
    batch = packed(packs, size=400, dtype=torch.float32)
    F.cross_entropy(learner.logits(batch), batch.targets).backward()
    found = learner.gradients()
    monkeypatch.setattr("shoal.gated_llm.train.student._merged", lambda x, weight, *low: x @ weight.t())
    whole = learner._live[3][3] = learner._live[3][3].clone().requires_grad_()
    F.cross_entropy(learner.logits(batch), batch.targets).backward()
    assert whole.grad is not None
    name = "model.layers.3.mlp.down_proj"
    a, b = (learner.parameters[f"{name}.lora_{side}.weight"] for side in "AB")
    for side, expected in (("A", b.t() @ whole.grad), ("B", whole.grad @ a.t())):
        got = found[f"{name}.lora_{side}.weight"]
        assert (got - learner.scale * expected).norm() < 1e-4 * got.norm()


def test_branches_left_out_get_no_gradient(packs: list[Pack], folder: Path) -> None:
    learner, plan = student(folder), plan_of(folder)
    batch = packed(packs, size=400, dtype=torch.float32)
    F.cross_entropy(learner.logits(batch, plan.mask(1)), batch.targets).backward()
    found = learner.gradients()
    kind, layer = plan.points[0].drop
    assert kind == "attention"
    assert found[f"model.layers.{layer}.self_attn.q_proj.lora_B.weight"].abs().max() == 0
    assert found[f"model.layers.{layer}.mlp.up_proj.lora_B.weight"].abs().max() > 0


def test_batches_hold_every_pack_once_within_the_size(packs: list[Pack]) -> None:
    many = packs * 7
    made = batches(many, tokens=512, sizes=(128, 256, 512), draw=random.Random(0))
    assert sorted(id(pack) for batch in made for pack in batch) == sorted(map(id, many))
    assert all(len(batch) == 1 or len(batch) * max(pack.size for pack in batch) <= 512 for batch in made)


def recipe(folder: Path, **changes: object) -> Recipe:
    base = Recipe(
        sources=(Source(kind="lines", path="mine.jsonl"),),
        model=str(folder),
        rank=3,
        steps=8,
        warmup=2,
        rate=5e-3,
        tokens=400,
        sizes=(128, 256, 400),
        longest=400,
        full=1,
        min_share=0.5,
        check_every=4,
        save_every=2,
        compiled=False,
        half=False,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rows = [{"prompt": f"What is {n} and {n}?", "answer": f"It is {2 * n}."} for n in range(24)]
    rows += [{"passages": f"Box {n} is red.", "question": f"Colour of box {n}?", "answer": "red"} for n in range(6)]
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return folder


def test_training_makes_an_adapter_that_lowers_the_loss(folder: Path, data: Path, tmp_path: Path) -> None:
    said: list[str] = []
    made = train_adapter(recipe(folder, steps=30), data, tmp_path / "run", say=said.append)
    assert made.adapter is not None
    assert made.gates is None
    adapter, weights = Adapter.read(made.adapter), read_tensors(folder)
    merged = merge(
        weights, adapter, model_fingerprint=fingerprint(weights), plan_fingerprint=plan_of(folder).fingerprint
    )
    config, tokenizer = DecoderConfig.from_folder(folder), ChatTokenizer(folder)
    ids = torch.tensor([[*tokenizer.encode_prompt("What is 3 and 3?"), *tokenizer.encode_text("It is 6."), END]])
    losses = []
    for held in (weights, merged):
        decoder = Decoder(config, held, dtype="fp32")
        hidden = decoder.forward(ids, torch.arange(ids.shape[1])[None], decoder.cache(ids.shape[1]))
        losses.append(float(F.cross_entropy(decoder.logits(hidden[0, -10:-1]), ids[0, -9:])))
    assert losses[1] < losses[0] - 0.5
    assert adapter.about["seed"] == 1
    assert adapter.about["tokens"] > 0
    assert any("minutes" in line and "tokens/s" in line for line in said)
    assert (tmp_path / "run" / "curve.csv").read_text("utf-8").startswith("step,seconds,full")
    assert (tmp_path / "run" / "curve.png").stat().st_size > 1000


SCRIPT = """
import sys, json
from pathlib import Path
from shoal.gated_llm.train.adapter import train_adapter
from shoal.gated_llm.train.recipe import Recipe
import torch
torch.set_num_threads(1)
raw = json.loads(sys.argv[1])
train_adapter(Recipe.of(raw, "test"), Path(sys.argv[2]), Path(sys.argv[3]), say=lambda line: None)
"""


def test_a_killed_run_ends_like_an_unbroken_one(folder: Path, data: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain = recipe(folder, steps=12, gated=0.5)
        whole = train_adapter(plain, data, tmp_path / "whole", say=lambda line: None)
        arguments = [
            sys.executable,
            "-c",
            SCRIPT,
            json.dumps(dataclasses.asdict(plain)),
            str(data),
            str(tmp_path / "cut"),
        ]
        process = subprocess.Popen(arguments, env={**os.environ, "OMP_NUM_THREADS": "1"})
        checkpoint = tmp_path / "cut" / "checkpoint.safetensors"
        deadline = time.monotonic() + 60
        while not checkpoint.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "cut" / "adapter.safetensors").exists()
        said: list[str] = []
        resumed = train_adapter(plain, data, tmp_path / "cut", resume=True, say=said.append)
    finally:
        torch.set_num_threads(threads)
    assert any(line.startswith("going on from step") for line in said)
    files = [whole.adapter, resumed.adapter, whole.gates, resumed.gates]
    paths = [path for path in files if path is not None]
    first, second = map(Adapter.read, paths[:2])
    gates, again = map(Gates.read, paths[2:])
    assert gates.fingerprint == again.fingerprint
    assert gates.model_fingerprint == first.merged_fingerprint
    assert gates.weight.any()
    assert first.fingerprint == second.fingerprint
    assert {**first.about, "seconds": 0} == {**second.about, "seconds": 0}


def test_a_checkpoint_of_another_recipe_is_refused(folder: Path, data: Path, tmp_path: Path) -> None:
    train_adapter(recipe(folder, steps=2), data, tmp_path, say=lambda line: None)
    with pytest.raises(GatedError, match="another recipe"):
        train_adapter(recipe(folder, steps=2, rate=1e-4), data, tmp_path, resume=True, say=lambda line: None)
    with pytest.raises(GatedError, match="holds a run already"):
        train_adapter(recipe(folder, steps=2), data, tmp_path, say=lambda line: None)


def test_no_gain_on_held_out_answers_ends_the_run(folder: Path, packs: list[Pack], tmp_path: Path) -> None:
    stubborn = recipe(folder, steps=1000, rate=0.0, check_every=1, patience=3, save_every=1000)
    run = Run(
        stubborn,
        DecoderConfig.from_folder(folder),
        read_tensors(folder),
        plan_of(folder),
        packs,
        packs,
        tmp_path,
        say=lambda line: None,
        dtype=torch.float32,
    )
    run.train()
    assert run.state["step"] == 4
