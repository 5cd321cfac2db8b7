"""`gates calibrate` on tiny random checkpoints of every shape: the plan, going on after a break, and bad input."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from shoal.gated_llm import GatedError, GatedLLM, Plan, PlanError
from shoal.gated_llm.checkpoint import fingerprint, read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.model import Decoder
from shoal.gated_llm.policy import SAFE_LAYERS
from shoal.gated_llm.train import calibrate as calibrate_module
from shoal.gated_llm.train.bench import Bench, mask_without
from shoal.gated_llm.train.calibrate import calibrate, losses_of
from shoal.gated_llm.train.samples import Sample
from shoal.gated_llm.train.search import Search

from .conftest import MakeModel

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 40},
    "qwen2": {},
    "qwen3": {},
    "gemma3_text": {"sliding_window": 40, "query_pre_attn_scalar": 16},
}
TEXT = " ".join(f"Line {i} says that {i * i} ducks swim and {i % 7} do not." for i in range(80))
PROMPTS = [f"How many ducks swim in pond {i}?" for i in range(8)]
IDLE = [("attention", 1), ("mlp", 2)]


def run(folder: Path, **changes: Any) -> Plan:
    said: list[str] = []
    settings: dict[str, Any] = {"text": TEXT, "search": 4, "held_out": 4, "say": said.append, **changes}
    return calibrate(folder, **settings)


@pytest.fixture(scope="module")
def idle_folder(make_model: MakeModel) -> Path:
    """A model that two of its branches add next to nothing to."""
    from safetensors.torch import save_file

    folder = make_model(plan=False)
    tensors = {name: tensor.clone() for name, tensor in read_tensors(folder).items()}
    for name in ("model.layers.1.self_attn.o_proj.weight", "model.layers.2.mlp.down_proj.weight"):
        tensors[name] *= 1e-4
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", SHAPES)
def test_every_shape_gets_a_plan_that_its_budgets_follow(kind: str, make_model: MakeModel) -> None:
    folder = make_model(kind, plan=False, **SHAPES[kind])
    plan = run(folder, prompts=PROMPTS)
    assert plan.model_fingerprint == fingerprint(read_tensors(folder))
    assert plan.min_depth <= plan.total * 0.5 or len(plan.points) == 2 * (plan.total - SAFE_LAYERS)
    plan.write(folder / "plan.json")
    with GatedLLM.load(folder, dtype="fp32") as llm:
        assert llm.plan.points == plan.points
        for budget in (6, 5, 4, "auto"):
            answer = llm.generate("How deep is the pond?", max_depth=budget, max_tokens=6)
            assert answer.depth.max <= llm.resolve_budget(budget).depth
            chunks = list(llm.stream("How deep is the pond?", max_depth=budget, max_tokens=6))
            assert "".join(chunk.text for chunk in chunks) == answer.text


def test_branches_that_do_little_leave_first_and_auto_takes_those_alone(idle_folder: Path) -> None:
    said: list[str] = []
    plan = run(idle_folder, say=said.append, quality=0.003)
    assert {point.drop for point in plan.points[:2]} == set(IDLE)
    allowed = 0.003
    assert plan.points[1].loss <= allowed < plan.points[2].loss
    assert f"within 0.3% of likelihood: depth {plan.points[1].depth:g} of 6" in said
    plan.write(idle_folder / "plan.json")
    with GatedLLM.load(idle_folder, dtype="fp32", quality=0.003) as llm:
        assert llm.resolve_budget("auto").dropped == 2
    (idle_folder / "plan.json").unlink()


def test_the_command_keeps_the_plan_beside_the_model(idle_folder: Path, tmp_path: Path) -> None:
    from shoal.router.cli import app

    data, prompts = tmp_path / "text.txt", tmp_path / "prompts.txt"
    data.write_text(TEXT * 3, "utf-8")
    prompts.write_text("\n".join(PROMPTS), "utf-8")
    (idle_folder / "plan.json").write_text(
        (tmp_path / "text.txt").read_text()[:9], "utf-8"
    )  # a damaged one is replaced
    asked = ["gates", "calibrate", "--model", str(idle_folder), "--data", str(data), "--json"]
    done = CliRunner().invoke(app, [*asked, "--prompts", str(prompts), "--budget-quality", "0.3%"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["plan"] == str(idle_folder / "plan.json")
    assert (report["budget_quality"], report["total"], report["depth"] < 6) == (0.003, 6, True)
    assert not (idle_folder / "calibration.json").exists()
    Plan.read(idle_folder / "plan.json", model_fingerprint=fingerprint(read_tensors(idle_folder)))
    (idle_folder / "plan.json").unlink()
    for share in ("0.003", "100%", "-1%", "much%"):
        refused = CliRunner().invoke(app, [*asked, "--budget-quality", share])
        assert refused.exit_code == 2, refused.output


class Killed(Exception):
    """Stands for whatever ends a run."""


@pytest.mark.parametrize("writes", [0, 4, 9])  # while it answers, while branches leave, while they swap
def test_a_run_that_was_broken_off_ends_as_an_unbroken_one(
    writes: int, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, left = tmp_path / "calibration.json", calibrate_module._Saved.write, writes

    def stop(saved: Any) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        write(saved)

    with monkeypatch.context() as patch:
        patch.setattr(calibrate_module._Saved, "write", stop)
        with pytest.raises(Killed):
            run(tiny_folder, prompts=PROMPTS, progress_file=path)
    lines: list[str] = []
    again = run(tiny_folder, prompts=PROMPTS, progress_file=path, say=lines.append)
    assert again == run(tiny_folder, prompts=PROMPTS)
    assert any("answering" in line for line in lines) == (writes == 0)
    assert sum("without" in line for line in lines) == max(0, len(again.points) - max(0, writes - 1))


def test_what_another_text_or_setting_left_is_not_taken(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    first = run(tiny_folder, progress_file=path)
    lines: list[str] = []
    assert run(tiny_folder, progress_file=path, say=lines.append).points == first.points
    assert not any("without" in line for line in lines)
    for change in ({"text": TEXT[60:]}, {"min_share": 0.8}):
        lines.clear()
        assert run(tiny_folder, progress_file=path, say=lines.append, **change) == run(tiny_folder, **change)
        assert any("without" in line for line in lines)
    path.write_text("{", "utf-8")
    with pytest.raises(GatedError, match=r"damaged.*remove it"):
        run(tiny_folder, progress_file=path)


def test_a_folder_that_cannot_be_written_is_said_at_once(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(GatedError, match=r"calibration.json cannot be written.*Copy the model"):
        run(tiny_folder, prompts=PROMPTS, progress_file=tmp_path / "missing" / "calibration.json")


def test_too_little_text_is_said(tiny_folder: Path) -> None:
    with pytest.raises(GatedError, match=r"has 300 tokens; 640 are the least.*1280 are wanted"):
        run(tiny_folder, text=TEXT[:300])
    plan = run(tiny_folder, text=TEXT[: 5 * 160 + 9], prompts=PROMPTS[:3])
    assert plan.about is not None
    assert [line for line in plan.about["warnings"] if "wanted" in line] == [
        "5 text samples where 8 are wanted: losses are less certain.",
        "3 chat samples where 8 are wanted: losses are less certain.",
    ]


def test_a_language_that_the_model_does_not_know_is_said(tiny_folder: Path) -> None:
    plan = run(tiny_folder, text="水池里有很多鸭子在游泳。" * 60)
    assert plan.about is not None
    doubts = " ".join(plan.about["warnings"])
    assert "1.00 bytes into a token where 3 to 5 are usual" in doubts
    assert f"{plan.about['text']['bits_per_byte']:.2f} bits a byte" in doubts


def test_losses_never_fall_and_are_no_less_than_kl() -> None:
    rows = [{"kl": 0.2, "text": -0.1}, {"kl": 0.3, "text": 0.5, "chat": 0.1}, {"kl": 0.4, "text": 0.4}]
    assert losses_of(rows) == [0.2, 0.5, 0.5]


@pytest.fixture(scope="module")
def decoder(tiny_folder: Path) -> Decoder:
    return Decoder(DecoderConfig.from_folder(tiny_folder), read_tensors(tiny_folder), dtype="fp32")


def samples(count: int) -> list[Sample]:
    draw = torch.Generator().manual_seed(3)
    rows = torch.randint(3, 259, (count, 60), generator=draw).tolist()
    return [Sample(kind="text", prefix=row[: 10 + i], rest=row[30 : 55 - i]) for i, row in enumerate(rows)]


@torch.inference_mode()
def test_the_bench_measures_what_plain_passes_give(decoder: Decoder) -> None:
    pieces, mask = samples(3), mask_without([("attention", 1), ("mlp", 2)], 6)
    bench = Bench(decoder, pieces)
    want = []
    for piece in pieces:
        read, rest = piece.prefix[:-1], [piece.prefix[-1], *piece.rest[:-1]]
        cache = decoder.cache(80)
        decoder.forward(torch.tensor([read]), torch.arange(len(read))[None], cache)
        mark, at = cache.mark(), torch.arange(len(read), len(read) + len(rest))[None]
        full = decoder.logits(decoder.forward(torch.tensor([rest]), at, cache)[0]).log_softmax(1)
        cache.rewind(mark)
        less = decoder.logits(decoder.forward(torch.tensor([rest]), at, cache, mask)[0]).log_softmax(1)
        want.append(((full.exp() * (full - less)).sum(1), -less.gather(1, torch.tensor(piece.rest)[:, None])[:, 0]))
    for adopted in (bench.full, mask_without([("mlp", 2)], 6), mask):
        bench.adopt(adopted)
        judged = bench.judge(mask)
        torch.testing.assert_close(judged.kl, torch.cat([kl for kl, _ in want]), atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(judged.nll, torch.cat([nll for _, nll in want]), atol=1e-4, rtol=1e-4)
    assert bench.kl(bench.full) == pytest.approx(0, abs=1e-5)


@torch.inference_mode()
def test_swaps_lower_the_area_under_the_curve(decoder: Decoder) -> None:
    bench = Bench(decoder, samples(4))
    search = Search(bench, bench, decoder.config, min_depth=3)
    while search.grow():
        pass

    def area() -> float:
        order, share = search.found.order, decoder.config.attention_share
        return sum(
            bench.kl(mask_without(order[: i + 1], 6)) * (share if kind == "attention" else 1 - share)
            for i, (kind, _) in enumerate(order)
        )

    search.found.order.reverse()  # as bad as can be
    before, branches = area(), set(search.found.order)
    while search.settle():
        pass
    assert area() < 0.95 * before
    assert set(search.found.order) == branches


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_plan_without_points_is_not_made(share: float, tiny_folder: Path) -> None:
    with pytest.raises(GatedError, match="min_share"):
        run(tiny_folder, min_share=share)


def test_a_plan_for_other_layers_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    known = fingerprint(read_tensors(folder))
    Plan(total=40, attention_share=0.25, model_fingerprint=known).write(folder / "plan.json")
    with pytest.raises(PlanError, match=r"plan\.json.*40 layers.*has 6"):
        GatedLLM.load(folder)
