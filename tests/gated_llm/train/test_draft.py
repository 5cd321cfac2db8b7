"""Training of the draft network: what is collected, that a run goes on where it stopped, and that the asset is it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.draft import TrainedDraft
from shoal.gated_llm.native import NativeDecoder, available
from shoal.gated_llm.tokenizer import ChatTokenizer
from shoal.gated_llm.train.answers import collect
from shoal.gated_llm.train.draft import Answers, Fit

HIDDEN, VOCAB = 32, 40
CONFIG: dict[str, Any] = {
    "seed": 0, "short_list": 20, "dim": 16, "inner": 24, "dropout": 0.0,
    "rate": 0.03, "decay": 0.0, "hard": 1.0, "batch": 64, "steps": 100,
}  # fmt: skip


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return {
        "model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=random),
        "model.norm.weight": torch.ones(HIDDEN),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Answers that count up by one, modulo 10; states are noise."""
    random = np.random.default_rng(0)
    for shard in range(3):
        tokens = (np.arange(200) + shard) % 10
        states = random.standard_normal((200, HIDDEN)).astype(np.float16)
        np.savez(tmp_path / f"{shard:04d}.npz", tokens=tokens, states=states, starts=np.array([0, 90, 200]))
    return tmp_path


def test_it_learns_what_follows_and_the_asset_guesses_alike(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    fit = Fit(weights, folder, CONFIG)
    lines = list(fit.run(1e9))
    assert "step 100 of 100" in lines[-1]
    assert fit.check()[0] > 0.9
    fit.export(folder / "draft.safetensors", "abc")
    net = TrainedDraft.load(folder / "draft.safetensors", weights["model.embed_tokens.weight"], "abc")
    assert net is not None
    state = np.random.default_rng(5).standard_normal(HIDDEN).astype(np.float32)
    vector, token = net.start(state), 3
    for follows in (4, 5, 6):
        vector = net.step(vector, token)
        token, chance = net.guess(vector)
        assert token == follows
        assert chance > 0.5


def test_a_stopped_run_goes_on(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    list(Fit(weights, folder, CONFIG).run(1e9))
    whole = (folder / "fit.safetensors").read_bytes()
    (folder / "fit.safetensors").unlink()
    steps = 0
    while steps < CONFIG["steps"]:
        run = Fit(weights, folder, CONFIG)
        assert list(run.run(0.0))[-1].startswith(f"step {steps} of 100")
        run.learn(34)
        steps = min(100, steps + 34)
    assert (folder / "fit.safetensors").read_bytes() == whole


def test_positions_know_how_much_of_their_answer_is_left(folder: Path) -> None:
    answers = Answers.read(sorted(folder.glob("[0-9]*.npz")))
    assert answers.left[:90].tolist() == list(range(89, -1, -1))
    assert answers.left[90] == 109


@pytest.mark.skipif(not available(), reason="no C++ compiler here: the kernel is optional")
def test_answers_are_the_models_own(make_model: Callable[..., Path], tmp_path: Path) -> None:
    model = make_model(hidden_size=128, intermediate_size=192, head_dim=32, initializer_range=0.1)
    config, weights = DecoderConfig.from_folder(model), read_tensors(model)
    kernel = NativeDecoder(config, weights, bits=8, kv="fp32")
    data = tmp_path / "data"
    data.mkdir()
    (data / "tasks.jsonl").write_text(json.dumps({"instruction": "Say", "instances": [{"input": "hi"}]}) + "\n")
    passage = {"context": "The sea is blue. " * 9, "qas": [{"question": "What is blue?"}, {"question": "Is it?"}]}
    (data / "squad.json").write_text(json.dumps({"data": [{"paragraphs": [passage]}]}))
    settings = {
        "seed": 0, "instructions": ["tasks.jsonl"], "conversations": [], "questions": {"en": "squad.json"},
        "passages": {"en": 1}, "longest_passage": {"en": 60}, "per_passage": 2,
        "grounded": {"en": "Read {passages} and say: {question}"},
        "longest": 200, "made_up": 2, "most_made_up": 40, "answer": 12, "shards": 1,
    }  # fmt: skip
    paths = list(collect(kernel, ChatTokenizer(model), data, tmp_path / "out", settings))
    assert len(paths) == 1
    assert list(collect(kernel, ChatTokenizer(model), data, tmp_path / "out", settings)) == []
    shard = np.load(paths[0])
    assert len(shard["starts"]) == len(shard["prompt_starts"]) == 6
    for number in range(5):
        asked = shard["prompts"][slice(*shard["prompt_starts"][number : number + 2])].tolist()
        made = shard["tokens"][slice(*shard["starts"][number : number + 2])].tolist()
        kv = kernel.new_kv(len(asked) + len(made))
        ids = [*asked, *made[:-1]]
        logits = kernel.forward(ids, [kv] * len(ids), range(len(ids)))
        assert logits[len(asked) - 1 :].argmax(1).tolist() == made
    assert np.allclose(np.square(shard["states"].astype(np.float32)).mean(1), 1, atol=0.01)
