"""Budgets and plans: no valid budget is exceeded, every other one is refused by name of what is valid."""

import json
import math
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gated_llm import BudgetError, GatedLLM, Plan, PlanError
from shoal.gated_llm.policy import SAFE_LAYERS, Branch, resolve_budget

from .conftest import ORDER

TOTAL = 30


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any order of any of the branches that may leave, with losses that grow."""
    branches: list[Branch] = [(kind, i) for i in range(TOTAL - SAFE_LAYERS) for kind in ("attention", "mlp")]  # type: ignore[misc]
    order = draw(st.permutations(branches))[: draw(st.integers(1, len(branches)))]
    steps = draw(st.lists(st.floats(0, 0.01), min_size=len(order), max_size=len(order)))
    return Plan.from_order(
        order,
        [sum(steps[: i + 1]) for i in range(len(order))],
        total=TOTAL,
        attention_share=draw(st.sampled_from([0.25, 0.3, 0.5])),
        model_fingerprint="abc",
    )


def ran(plan: Plan, mask: tuple[tuple[bool, bool], ...]) -> float:
    share = plan.attention_share
    return sum(share * attention + (1 - share) * mlp for attention, mlp in mask)


@given(plan=plans(), data=st.data())
def test_any_valid_budget_is_kept_and_the_last_layers_run(plan: Plan, data: st.DataObject) -> None:
    low = math.ceil(plan.min_depth - 1e-9)
    asked = data.draw(st.integers(low, TOTAL) | st.integers(math.ceil(low * 100 / TOTAL), 100).map(lambda n: f"{n}%"))
    budget = resolve_budget(asked, plan, quality=0.003)
    mask = plan.mask(budget.dropped)
    meant = float(Fraction(asked[:-1]) * TOTAL / 100) if isinstance(asked, str) else asked
    assert budget.depth == pytest.approx(meant)
    assert ran(plan, mask) <= budget.depth + 1e-4
    assert ran(plan, mask) == pytest.approx(plan.depth_at(budget.dropped), abs=1e-4)
    assert mask[-SAFE_LAYERS:] == ((True, True),) * SAFE_LAYERS
    assert budget.dropped == 0 or ran(plan, plan.mask(budget.dropped - 1)) > budget.depth - 1e-4  # no more than needed


@given(plan=plans(), quality=st.floats(0, 0.2))
def test_auto_loses_no_more_than_its_setting(plan: Plan, quality: float) -> None:
    budget = resolve_budget("auto", plan, quality=quality)
    loss = plan.points[budget.dropped - 1].loss if budget.dropped else 0.0
    assert 1 - math.exp(-loss) <= quality + 1e-12
    assert all(1 - math.exp(-point.loss) > quality - 1e-12 for point in plan.points[budget.dropped :])


INVALID = (
    st.integers(max_value=14)
    | st.integers(min_value=31)
    | st.booleans()
    | st.floats()
    | st.none()
    | st.binary()
    | st.lists(st.integers(15, 30))
    | st.text().filter(lambda text: text != "auto" and not any(letter.isdigit() for letter in text))
    | st.sampled_from(
        ["0%", "0", "101%", "100.5%", "-20%", "14", "31", "48%", "nan%", "1e1", "20.5", "60 %", "20%%", "%"]
    )
)


@given(asked=INVALID)
def test_other_budgets_are_refused_with_the_valid_range(asked: Any) -> None:
    order: list[Branch] = [("mlp", i) for i in range(20)]
    plan = Plan.from_order(
        order, [0.1 * i for i in range(1, 21)], total=TOTAL, attention_share=0.25, model_fingerprint="abc"
    )
    with pytest.raises(BudgetError, match=r'max_depth=.*15 to 30 layers, "50%" to "100%", or "auto"') as caught:
        resolve_budget(asked, plan, quality=0.003)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("asked", [29, "99%", 1])
def test_without_a_plan_only_full_depth_is_valid(asked: Any) -> None:
    plan = Plan(total=TOTAL, attention_share=0.25, model_fingerprint="abc")
    for full in (TOTAL, "30", "100%", "auto"):
        assert (resolve_budget(full, plan, quality=0.5).depth, resolve_budget(full, plan, quality=0.5).policy) == (
            30,
            "full",
        )
    with pytest.raises(BudgetError, match="no depth plan yet"):
        resolve_budget(asked, plan, quality=0.5)


@given(plan=plans())
def test_a_written_plan_reads_back(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "plan.json"
    plan.write(path)
    back = Plan.read(path, model_fingerprint="abc")
    assert back.fingerprint == plan.fingerprint
    assert [point.depth for point in back.points] == [point.depth for point in plan.points]


def test_fingerprints_follow_order_and_model() -> None:
    def made(order: list[Branch], model: str) -> str:
        return Plan.from_order(order, [0.1, 0.2], total=6, attention_share=0.5, model_fingerprint=model).fingerprint

    assert made(ORDER[:2], "a") == made(ORDER[:2], "a")
    assert len({made(ORDER[:2], "a"), made(ORDER[1::-1], "a"), made(ORDER[:2], "b")}) == 3


def test_a_plan_for_another_model_names_both(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(tiny_folder, folder)
    raw = json.loads((folder / "plan.json").read_text("utf-8"))
    (folder / "plan.json").write_text(json.dumps({**raw, "model_fingerprint": "feedfeedfeed"}), "utf-8")
    with pytest.raises(PlanError, match=f"feedfeedfeed.*{raw['model_fingerprint']}.*calibrate"):
        GatedLLM.load(folder, dtype="fp32")


def drop(layer: Any, kind: Any = "mlp", depth: Any = 5.5, loss: Any = 0.1) -> dict[str, Any]:
    return {"drop": [kind, layer], "depth": depth, "loss": loss}


@pytest.mark.parametrize(
    "change",
    [
        {"form": 2},
        {"total": "six"},
        {"total": 7},
        {"attention_share": None},
        {"attention_share": 1.5},
        {"points": None},
        {"points": [{"drop": ["mlp", 0]}]},
        {"points": [drop(3)]},
        {"points": [drop(-1)]},
        {"points": [drop(True)]},
        {"points": [drop("0")]},
        {"points": [drop(0, kind="norm")]},
        {"points": [drop(0), drop(0, depth=5.0)]},
        {"points": [drop(0, depth=1.0)]},
        {"points": [drop(0, depth="5.5")]},
        {"points": [drop(0, depth=math.nan)]},
        {"points": [drop(0, loss=math.nan)]},
        {"points": [drop(0, loss=0.2), drop(1, depth=5.0, loss=0.1)]},
    ],
    ids=str,
)
def test_a_damaged_plan_is_refused_when_read(change: dict[str, Any], tmp_path: Path) -> None:
    whole = {
        "form": 1,
        "total": 6,
        "attention_share": 0.5,
        "model_fingerprint": "abc",
        "about": {},
        "points": [drop(0)],
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(whole), "utf-8")
    assert Plan.read(path, model_fingerprint="abc").min_depth == 5.5
    path.write_text(json.dumps({**whole, **change}), "utf-8")
    with pytest.raises(PlanError, match="plan"):
        Plan.read(path, model_fingerprint="abc")


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "\x00\xff"])
def test_a_file_that_is_no_plan(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PlanError, match=r"plan\.json is not a depth plan"):
        Plan.read(path, model_fingerprint="abc")


@pytest.mark.model
def test_the_plan_that_ships(llm: GatedLLM) -> None:
    assert (llm.total, len(llm.plan.points), llm.min_depth) == (30, 29, 14.75)
    assert llm.resolve_budget("auto").depth == 30
    assert llm.resolve_budget("60%").depth == 18
    assert llm.resolve_budget(15).dropped == 29
    with pytest.raises(BudgetError, match="15 to 30 layers"):
        llm.resolve_budget(14)
