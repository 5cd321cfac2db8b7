"""Thumbs-down that change gates, and those that must not (G15), on a random model by the native kernel."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.gated_llm import GatedError
from shoal.gated_llm.checkpoint import fingerprint, read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.gates import GatePoint, Gates
from shoal.gated_llm.native import available
from shoal.gated_llm.policy import Plan
from shoal.gated_llm.train import recalibrate as module
from shoal.gated_llm.train.recalibrate import MARGIN, Trial, balanced, beyond, lifts, objection, recalibrate
from shoal.gated_llm.versions import Versions
from shoal.router import Request
from shoal.router.cli import main
from shoal.router.traces import Record, TraceStore
from tests.router.records import answer_of

pytestmark = pytest.mark.skipif(not available(), reason="no C++ compiler here: gates are measured by the kernel")
LAYERS = 8
SHAPE = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "num_hidden_layers": LAYERS}
PROMPTS = [f"Say something about {word} number {i}." for i in range(12) for word in ("boats", "rain")]
BAD = ("mlp", 2)


def some_gates(hidden: int, model: str, points: tuple[GatePoint, ...] = ()) -> Gates:
    draw = np.random.default_rng(0)
    return Gates(
        model_fingerprint=model,
        floor=LAYERS / 2,
        weight=draw.normal(0, 2 * hidden**-0.5, (LAYERS, 2, hidden)).astype(np.float32),
        bias=np.full((LAYERS, 2), 2.0, np.float32),
        slope=np.full((LAYERS, 2), 4.0, np.float32),
        about={},
        points=points,
    )


def gates_of(folder: Path) -> Gates:
    """Gates that skip about a third at thrift 1, differently for every token, with points at two thrifts."""
    config = DecoderConfig.from_folder(folder)
    points = tuple(
        GatePoint(thrift=thrift, depth={"chat": depth, "grounded": depth}, loss={"chat": 0.01, "grounded": 0.02})
        for thrift, depth in ((0.3, 7.5), (0.6, 6.0))
    )
    known = fingerprint(read_tensors(folder))
    return some_gates(config.hidden, known, points)


@pytest.fixture(scope="module")
def model(make_model: Callable[..., Path]) -> Path:
    # branches of little weight: what is skipped instead costs about the same
    return make_model("llama", plan=False, **SHAPE, initializer_range=0.02)


@pytest.fixture
def folder(model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "_REST", 8)
    for path in (*model.glob("gates.versions/*"), *model.glob("gates.*")):
        if path.is_file():
            path.unlink()
    gates_of(model).write(model / "gates.safetensors")
    return model


def run(folder: Path, marks: dict[tuple[str, int], float], **settings: object) -> module.Outcome:
    return recalibrate(folder, marks, PROMPTS, say=print, **settings)  # type: ignore[arg-type]


def test_marked_branches_leave_later_at_the_same_depth_and_the_old_set_can_come_back(folder: Path) -> None:
    path = folder / "gates.safetensors"
    before, old = path.read_bytes(), Gates.read(path)
    done = run(folder, {BAD: 0.2})
    assert (done.outcome, done.version, done.marks) == ("adopted", 2, {"mlp 2": 0.2}), done
    new = Gates.read(path)
    assert np.array_equal(new.bias, old.bias)
    assert new.slope[2, 1] < 0.99 * old.slope[2, 1]
    assert (new.slope < old.slope).sum() == 1
    assert np.array_equal(new.slope[-3:], old.slope[-3:])
    assert np.array_equal(new.weight, old.weight)
    assert new.about["recalibrated"]["marks"] == done.marks
    assert done.figures["at_most"] <= MARGIN
    assert done.figures["sequences"] >= 10
    assert abs(done.figures["deeper"]) < 0.3
    assert [point.thrift for point in new.points] == [0.3, 0.6]
    assert all(
        n.loss[w] >= o.loss[w] for n, o in zip(new.points, old.points, strict=True) for w in ("chat", "grounded")
    )
    assert Versions(path).known()[1].figures["marks"] == done.marks
    Versions(path).rollback()
    assert path.read_bytes() == before


def test_a_change_that_loses_is_refused_with_its_figures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a branch that matters is traded for one that does not."""
    path = folder / "gates.safetensors"
    before = path.read_bytes()

    def harmful(gates: Gates, *_: object) -> tuple[tuple[Gates, float], list[str]]:
        return (replace(gates, bias=gates.bias - 3), 1.0), []

    monkeypatch.setattr(module, "changed", harmful)
    done = run(folder, {BAD: 0.2})
    assert done.outcome == "refused"
    assert "held-out answers may lose" in done.why
    assert done.figures["thrifts"][0]["loss"][1] > done.figures["thrifts"][0]["loss"][0]
    assert path.read_bytes() == before
    assert Versions(path).known() == ()


def test_marks_on_branches_that_are_never_skipped_change_nothing(folder: Path) -> None:
    path = folder / "gates.safetensors"
    before = path.read_bytes()
    done = run(folder, {("mlp", LAYERS - 1): 0.5})  # one of the last, which always run
    assert (done.outcome, done.figures) == ("refused", {})
    assert "none of them is skipped" in done.why
    assert path.read_bytes() == before


def test_too_few_prompts_no_gates_or_another_run_are_told(folder: Path) -> None:
    with pytest.raises(GatedError, match="give more prompts"):
        recalibrate(folder, {BAD: 0.2}, PROMPTS[:5] * 9, say=lambda _: None)
    with module.FileLock(folder / "recalibrating.lock"), pytest.raises(GatedError, match="another process"):
        run(folder, {BAD: 0.2})
    replace(gates_of(folder), points=()).write(folder / "gates.safetensors")
    with pytest.raises(GatedError, match="never measured"):
        run(folder, {BAD: 0.2})
    (folder / "gates.safetensors").unlink()
    with pytest.raises(GatedError, match=r"is not there.*shoal gates train"):
        run(folder, {BAD: 0.2})


def test_killed_in_the_middle_the_old_set_stays_and_the_next_run_works(folder: Path) -> None:
    path = folder / "gates.safetensors"
    before = path.read_bytes()
    script = (
        "import sys\nfrom pathlib import Path\nfrom shoal.gated_llm.train.recalibrate import recalibrate\n"
        f"prompts = {PROMPTS!r}\n"
        "recalibrate(Path(sys.argv[1]), {('mlp', 2): 0.2}, prompts, say=lambda told: print(told, flush=True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert "at full depth" in child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
    assert path.read_bytes() == before
    with module.FileLock(folder / "recalibrating.lock", timeout=5):
        pass  # the lock died with its owner


def test_losses_of_many_recalibrations_count_together() -> None:
    figures = {"at_most": 0.03, "more": 0.01, "deeper": 0.0}
    assert objection(figures, 30, {"more": 0.0, "deeper": 0.0}) == ""
    assert "since the last training" in objection(figures, 30, {"more": 0.03, "deeper": 0.0})
    assert "deeper" in objection(figures | {"deeper": 0.2}, 30, {"more": 0.0, "deeper": 0.2})
    assert objection(figures | {"at_most": float("nan")}, 30, {"more": 0.0, "deeper": 0.0})


def test_a_loss_is_judged_at_its_depth() -> None:
    depth = np.array([[7.0, 7.0], [6.0, 6.0]])
    old = Trial(kl=np.array([[0.1, 0.1], [0.2, 0.2]]), depth=depth)
    assert beyond(old, old, LAYERS) == pytest.approx([0, 0])
    along = Trial(kl=np.array([[0.15, 0.15], [0.2, 0.2]]), depth=np.array([[6.5, 6.5], [6.0, 6.0]]))
    assert beyond(old, along, LAYERS) == pytest.approx([0, 0])  # as deep, as good
    worse = Trial(kl=old.kl + np.array([0.0, 0.1]), depth=depth)
    first, second = beyond(old, worse, LAYERS)
    assert first == pytest.approx(0)
    assert second > 0.5
    free = Trial(kl=old.kl, depth=depth + 0.5)  # deeper for nothing
    assert (beyond(old, free, LAYERS) > 0.2).all()
    below = Trial(kl=old.kl + 0.05, depth=depth - [[0.0], [1.0]])  # shallower than the old gates ever were
    assert (beyond(old, below, LAYERS) > 0.2).all()


def test_the_lift_is_what_the_mark_asks_for_and_others_pay_for_it() -> None:
    plan = Plan(total=LAYERS, attention_share=0.25, model_fingerprint="abc")
    draw = np.random.default_rng(0)
    gates = some_gates(8, "abc")
    logits = [draw.normal(2 - 4 * thrift, 1, (4000, LAYERS, 2)).astype(np.float32) for thrift in (0.3, 0.6)]
    lift = lifts(gates, logits, (0.3, 0.6), {BAD: 0.1, ("mlp", LAYERS - 2): 0.3})
    assert np.count_nonzero(lift) == 1  # the last layers never leave
    for at, thrift in zip(logits, (0.3, 0.6), strict=True):
        fell = float((at[:, 2, 1] < 0).mean() - (at[:, 2, 1] + thrift * 4 * lift[2, 1] < 0).mean())
        assert 0.02 < fell < 0.25
    new = balanced(gates, plan, lift, logits, (0.3, 0.6))
    share = np.array([0.25, 0.75])

    def depth(moved: Gates) -> float:
        kept = [
            ((at - thrift * (moved.slope - gates.slope) >= 0) * share)[:, : LAYERS - 3].sum((1, 2)).mean()
            for at, thrift in zip(logits, (0.3, 0.6), strict=True)
        ]
        return float(np.mean(kept))

    assert depth(new) == pytest.approx(depth(gates), abs=0.01)
    assert depth(balanced(gates, plan, lift, logits, (0.3, 0.6), 0.2)) == pytest.approx(depth(gates) - 0.2, abs=0.01)


# the command line, over a trace store


@dataclass
class Told:
    """What a command printed and how it ended."""

    code: int
    out: Any
    err: str


Call = Callable[..., Told]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["shoal", "gates", *words, "--json"])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return Told(code, json.loads(said.out) if said.out else None, said.err)

    return run


def kept(path: Path, gates: Gates, *, harm: float, disliked: int = 40, others: int = 80, text: bool = False) -> None:
    """A store of answers that these gates decided; the disliked ones skipped one branch more by `harm`."""
    store, draw = TraceStore(path), np.random.default_rng(1)
    for at in range(disliked + others):
        rates = np.full((LAYERS, 2), 0.3)
        rates[2, 1] += harm * (at < disliked)
        made = answer_of("said", trace_id=f"r{at}")
        made.trace.depth.update(
            branch_runs=(20 - draw.binomial(20, rates)).tolist(), per_token=[6.0] * 20, policy="gates",
            gate_fingerprint=f"plan{gates.fingerprint}",
        )  # fmt: skip
        store.put(Record.of(Request.of(f"{PROMPTS[at % len(PROMPTS)]} {at}"), made, at=store.clock(), keep_text=text))
        if at < disliked:
            store.judge(f"r{at}", tenant="default", up=False)
    store.close()


def test_a_log_of_thumbs_moves_the_gates_by_command_and_they_roll_back(
    folder: Path, tmp_path: Path, call: Call
) -> None:
    path, words = folder / "gates.safetensors", ("--model", str(folder))
    (folder / "prompts.jsonl").unlink(missing_ok=True)
    before = path.read_bytes()
    kept(tmp_path / "traces.sqlite", Gates.read(path), harm=0.3)
    missing = call("recalibrate", *words)
    assert missing.code == 1
    assert "--prompts FILE" in missing.err
    (tmp_path / "asked.txt").write_text("\n".join(PROMPTS), "utf-8")
    done = call("recalibrate", *words, "--prompts", "asked.txt")
    assert (done.code, done.out[0]["outcome"], done.out[0]["version"]) == (0, "adopted", 2), done
    assert list(done.out[0]["marks"]) == ["mlp 2"]
    assert Gates.read(path).slope[2, 1] < gates_of(folder).slope[2, 1]
    again = call("recalibrate", *words)  # those thumbs were on the old gates
    assert again.out[0]["outcome"] == "nothing"
    assert [row["current"] for row in call("versions", *words).out] == [False, True]
    assert call("rollback", *words).out["version"] == 1
    assert path.read_bytes() == before
    wrong = call("rollback", *words, "--to", "7")
    assert wrong.code == 1
    assert "no version 7" in wrong.err


@pytest.mark.parametrize(("disliked", "others"), [(60, 60), (120, 0)])
def test_random_or_only_thumbs_down_change_nothing(
    folder: Path, tmp_path: Path, call: Call, disliked: int, others: int
) -> None:
    path = folder / "gates.safetensors"
    before = path.read_bytes()
    kept(tmp_path / "traces.sqlite", Gates.read(path), harm=0.0, disliked=disliked, others=others)
    done = call("recalibrate", "--model", str(folder))
    assert done.out[0]["outcome"] == "nothing", done
    assert path.read_bytes() == before


def test_prompts_come_from_traces_where_text_is_kept(folder: Path, tmp_path: Path, call: Call) -> None:
    (folder / "prompts.jsonl").unlink(missing_ok=True)
    kept(tmp_path / "traces.sqlite", gates_of(folder), harm=0.3, text=True)
    store = TraceStore(tmp_path / "traces.sqlite")
    asked = store.prompts(30)
    store.close()
    assert len(asked) == 30
    assert asked[0][0]["role"] == "user"


def test_a_model_without_gates_says_so(folder: Path, call: Call) -> None:
    (folder / "gates.safetensors").unlink()
    done = call("recalibrate", "--model", str(folder))
    assert done.code == 1
    assert "shoal gates train" in done.err
    assert call("versions", "--model", str(folder)).out == []
