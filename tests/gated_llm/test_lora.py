"""Adapters: the file, what it adds, and what it refuses to go with."""

from pathlib import Path

import pytest
import torch

from shoal.gated_llm import GatedLLM, Plan, WeightsError
from shoal.gated_llm.checkpoint import fingerprint, read_tensors
from shoal.gated_llm.lora import ALPHA, TARGETS, Adapter, adapted, find_adapter, merge

RANK = 4


def made(folder: Path, plan: Plan, *, size: float = 0.05) -> Adapter:
    """Random additions to every projection of a model."""
    weights = read_tensors(folder)
    torch.manual_seed(1)
    tensors = {}
    for layer in range(plan.total):
        for target in TARGETS:
            rows, columns = weights[f"model.layers.{layer}.{target}.weight"].shape
            tensors[f"model.layers.{layer}.{target}.lora_A.weight"] = torch.randn(RANK, columns) * size
            tensors[f"model.layers.{layer}.{target}.lora_B.weight"] = torch.randn(rows, RANK) * size
    return Adapter(
        model_fingerprint=fingerprint(weights),
        plans=(plan.fingerprint,),
        rank=RANK,
        tensors=tensors,
        about={"seed": 1, "tokens": 2},
    )


def test_the_file_keeps_everything_but_rounding(tmp_path: Path, tiny_folder: Path, tiny: GatedLLM) -> None:
    adapter = made(tiny_folder, tiny.plan)
    adapter.write(tmp_path / "a.safetensors")
    read = Adapter.read(tmp_path / "a.safetensors")
    assert (read.model_fingerprint, read.plans, read.rank, read.alpha) == (
        adapter.model_fingerprint,
        adapter.plans,
        RANK,
        ALPHA,
    )
    assert read.about == adapter.about
    for name, tensor in adapter.tensors.items():
        step = tensor.abs().amax() / 127
        assert (read.tensors[name] - tensor).abs().max() <= step / 2 + 1e-7
    assert Adapter.read(tmp_path / "a.safetensors").fingerprint == read.fingerprint
    raw = sum(tensor.numel() for tensor in adapter.tensors.values())
    assert (tmp_path / "a.safetensors").stat().st_size < 3 * raw


def test_merging_adds_the_product_and_leaves_the_rest(tiny_folder: Path, tiny: GatedLLM) -> None:
    weights, adapter = read_tensors(tiny_folder), made(tiny_folder, tiny.plan)
    merged = merge(weights, adapter, model_fingerprint=adapter.model_fingerprint)
    name = "model.layers.2.mlp.down_proj"
    a, b = (adapter.tensors[f"{name}.lora_{side}.weight"] for side in "AB")
    assert torch.allclose(merged[f"{name}.weight"], weights[f"{name}.weight"] + b @ a * (ALPHA / RANK), atol=1e-5)
    assert torch.equal(merged["model.norm.weight"], weights["model.norm.weight"])
    assert set(merged) == set(weights)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
def test_merged_weights_equal_peft(tiny_folder: Path, tiny: GatedLLM) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    adapter = made(tiny_folder, tiny.plan)
    merged = merge(read_tensors(tiny_folder), adapter, model_fingerprint=adapter.model_fingerprint)
    base = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    config = LoraConfig(r=RANK, lora_alpha=int(ALPHA), target_modules=[t.split(".")[1] for t in TARGETS])
    theirs = get_peft_model(base, config)
    state = theirs.state_dict()
    for name, tensor in adapter.tensors.items():
        state[f"base_model.model.{name.replace('.weight', '.default.weight')}"].copy_(tensor)
    whole = theirs.merge_and_unload().state_dict()
    for name in (f"model.layers.{layer}.{target}.weight" for layer in (0, 5) for target in TARGETS):
        assert torch.allclose(whole[name], merged[name], atol=1e-5)


def test_another_model_is_refused_naming_both(tiny_folder: Path, tiny: GatedLLM) -> None:
    adapter = made(tiny_folder, tiny.plan)
    with pytest.raises(WeightsError, match=f"{adapter.model_fingerprint}.*feedfeedfeed"):
        merge(read_tensors(tiny_folder), adapter, model_fingerprint="feedfeedfeed")


def test_another_plan_is_refused_naming_both(tiny_folder: Path, tiny: GatedLLM) -> None:
    adapter = made(tiny_folder, tiny.plan)
    model = adapter.model_fingerprint
    merge(read_tensors(tiny_folder), adapter, model_fingerprint=model, plan_fingerprint=tiny.plan.fingerprint)
    with pytest.raises(WeightsError, match=f"{tiny.plan.fingerprint}.*deadbeef.*left out"):
        merge(read_tensors(tiny_folder), adapter, model_fingerprint=model, plan_fingerprint="deadbeef")


def test_an_adapter_of_another_shape_is_refused(tiny_folder: Path, tiny: GatedLLM) -> None:
    adapter = made(tiny_folder, tiny.plan)
    weights = dict(read_tensors(tiny_folder))
    weights["model.layers.0.mlp.up_proj.weight"] = torch.zeros(8, 64)
    with pytest.raises(WeightsError, match="up_proj does not fit"):
        adapter.merged(weights)


@pytest.mark.parametrize("content", [b"", b"no safetensors at all", None])
def test_a_file_that_is_no_adapter_says_so(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match="not an adapter"):
        Adapter.read(path)


def test_adapters_are_found_by_name_beside_the_model(make_model, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = make_model()
    weights = read_tensors(folder)
    plan = Plan.read(folder / "plan.json", model_fingerprint=fingerprint(weights))
    assert find_adapter(folder, "mine") is None
    with pytest.raises(WeightsError, match="has no adapter 'mine'"):
        adapted(folder, "mine", weights, plan, model_fingerprint=fingerprint(weights))
    adapter = made(folder, plan)
    adapter.write(folder / "mine.adapter.safetensors")
    merged, served, mark = adapted(folder, "mine", weights, plan, model_fingerprint=fingerprint(weights))
    assert served == plan
    assert mark.startswith(fingerprint(weights))
    assert not torch.equal(merged["model.layers.0.mlp.up_proj.weight"], weights["model.layers.0.mlp.up_proj.weight"])
    own = Plan(total=plan.total, attention_share=plan.attention_share, model_fingerprint=mark, about={})
    own.write(folder / "mine.plan.json")
    assert adapted(folder, "mine", weights, plan, model_fingerprint=fingerprint(weights))[1] == own
