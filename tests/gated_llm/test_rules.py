"""Operating points: written, read back, and chosen within what may be lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.gated_llm import GatedError, PlanError
from shoal.gated_llm.gating import PREDICTED, Bound, Level, Predictor, Rule
from shoal.gated_llm.policy import Plan
from shoal.gated_llm.rules import WORKS, Point, Rules, choose_policy

PREDICTOR = Predictor(bias=0.5, weights={"confidence": -1.0}, usual={"confidence": 0.4}, readout=(0.25, -0.5))


def point(depth: float, loss: float, *, hybrid: bool = False) -> Point:
    name = PREDICTED if hybrid else "residual"
    first = Level(drops=(("mlp", 2),), bounds={name: Bound(side="<=", value=0.25)})
    second = Level(drops=(("mlp", 2), ("attention", 2)), bounds={name: Bound(side="<=", value=0.125)})
    rule = Rule(levels=(first, second), probe=2, predictor=PREDICTOR if hybrid else None, rates=(0.25, 0.5))
    return Point(
        policy="hybrid" if hybrid else "signals",
        rule=rule,
        depth={"chat": depth, "scoring": depth + 1},
        loss={"chat": loss, "scoring": 2 * loss},
    )


RULES = Rules(
    model_fingerprint="abc", points=(point(28, 0.01), point(26, 0.03), point(27, 0.01, hybrid=True)), about={}
)


def test_rules_read_back(tmp_path: Path) -> None:
    path = tmp_path / "signals.json"
    RULES.write(path)
    assert Rules.read(path, model_fingerprint="abc") == RULES
    with pytest.raises(PlanError, match=r"abc.*feed.*calibrate"):
        Rules.read(path, model_fingerprint="feed")


@pytest.mark.parametrize(
    ("loss", "work", "policy", "chosen"),
    [
        (0.005, None, None, None),
        (0.01, None, None, None),  # scoring loses 0.02
        (0.01, "chat", None, 2),
        (0.01, "chat", "signals", 0),
        (0.02, None, None, 2),
        (0.03, "chat", None, 1),
    ],
)
def test_the_shallowest_point_within_the_loss(loss: float, work: Any, policy: Any, chosen: int | None) -> None:
    expected = None if chosen is None else RULES.points[chosen]
    assert RULES.within(loss, work, policy=policy) is expected


def test_a_kind_of_work_that_was_not_measured() -> None:
    with pytest.raises(PlanError, match="chat, scoring"):
        RULES.within(0.1, "grounded")


@pytest.mark.parametrize("change", [{"form": 2}, {"points": [{}]}, {"levels": []}, {"predictors": [{}]}], ids=str)
def test_damaged_files(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "signals.json"
    RULES.write(path)
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(PlanError, match="holds no thresholds"):
        Rules.read(path, model_fingerprint="abc")


PLAN = Plan.from_order(
    [("mlp", 0), ("mlp", 1), ("mlp", 2)],
    [0.02, 0.2, 0.4],
    total=30,
    attention_share=0.25,
    model_fingerprint="abc",
)


@pytest.mark.parametrize(
    ("requested", "quality", "policy", "work", "expected"),
    [
        ("auto", 0.003, "auto", None, ("full", 30, None)),
        ("auto", 0.011, "auto", "chat", ("hybrid", 30, 2)),
        ("auto", 0.011, "auto", "scoring", ("full", 30, None)),
        ("auto", 0.3, "auto", None, ("signals", 30, 1)),
        ("auto", 0.011, "signals", "chat", ("signals", 30, 0)),
        ("auto", 0.003, "signals", "chat", ("full", 30, None)),
        (29, 0.011, "auto", "chat", ("plan", 29, None)),
        (29, 0.011, "hybrid", "chat", ("hybrid", 29, 2)),
        (29, 0.011, "full", "chat", ("plan", 29, None)),  # a budget is hard, whatever the policy (G2)
    ],
)
def test_what_a_request_gets(
    requested: Any, quality: float, policy: Any, work: Any, expected: tuple[str, float, int | None]
) -> None:
    chosen = choose_policy(requested, PLAN, RULES, quality=quality, policy=policy, work=work)
    rule = None if expected[2] is None else RULES.points[expected[2]].rule
    assert (chosen.policy, chosen.budget.depth, chosen.rule) == (expected[0], expected[1], rule)


def test_random_has_the_hybrid_s_rates_and_none_of_its_bounds() -> None:
    chosen = choose_policy("auto", PLAN, RULES, quality=0.011, policy="random", work="chat")
    assert chosen.policy == "random"
    assert chosen.rule is not None
    assert chosen.rule.rates == RULES.points[2].rule.rates
    assert all(not level.bounds for level in chosen.rule.levels)


def test_without_thresholds_there_is_the_plan() -> None:
    chosen = choose_policy("auto", PLAN, None, quality=0.03, policy="hybrid")
    assert (chosen.policy, chosen.budget.dropped) == ("plan", 1)


def test_the_thresholds_that_ship_leave_auto_at_full_depth() -> None:
    plan, rules = Plan.shipped("smollm2-135m"), Rules.shipped("smollm2-135m")
    assert plan is not None
    assert rules is not None
    assert rules.model_fingerprint == plan.model_fingerprint
    for work in WORKS:
        chosen = choose_policy("auto", plan, rules, quality=0.003, work=work)
        assert (chosen.policy, chosen.budget.depth) == ("full", 30)
    assert choose_policy("auto", plan, rules, quality=0.1, policy="hybrid", work="scoring").rule is not None


def test_no_policy_goes_over_the_budget_that_was_asked_for() -> None:
    plan = Plan.shipped("smollm2-135m")
    assert plan is not None
    for policy in ("auto", "full", "plan", "signals", "hybrid", "random"):
        chosen = choose_policy(24, plan, Rules.shipped("smollm2-135m"), quality=0.5, policy=policy)  # type: ignore[arg-type]
        assert chosen.budget.depth <= 24
    assert choose_policy("auto", plan, None, quality=0.5, policy="full").budget.depth == plan.total
    with pytest.raises(GatedError, match="policy='x'"):
        choose_policy("auto", plan, None, quality=0.003, policy="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "at", "value"),
    [
        ("levels", (0, 0), ["ffn", 2]),
        ("levels", (0, 0), ["mlp", "2"]),
        ("levels", (0, 0), ["mlp", -1]),
        ("points", (0, "probe"), 0),
        ("points", (0, "policy"), "xyz"),
        ("points", (0, "rates"), [-0.1, 0.2]),
        ("points", (0, "rates"), [0.9]),
        ("points", (0, "depth"), {}),
        ("points", (0, "depth"), {"chat": -1, "scoring": 2}),
        ("points", (0, "levels", 0, "bounds", "residual"), ["<=", "low"]),
        ("predictors", (0, "bias"), "high"),
        ("predictors", (0, "weights"), {"mood": 1.0}),
        ("predictors", (0, "usual"), {}),
    ],
)
def test_damaged_thresholds_name_their_file(change: str, at: tuple[Any, ...], value: object, tmp_path: Path) -> None:
    path = tmp_path / "signals.json"
    RULES.write(path)
    raw = json.loads(path.read_text())
    place = raw[change]
    for step in at[:-1]:
        place = place[step]
    place[at[-1]] = value
    path.write_text(json.dumps(raw))
    with pytest.raises(PlanError, match=r"signals\.json holds no thresholds.*gates calibrate --signals"):
        Rules.read(path, model_fingerprint="abc")


def test_endless_files_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "signals.json"
    path.write_text("[" * 100_000)
    with pytest.raises(PlanError, match="holds no thresholds"):
        Rules.read(path, model_fingerprint="abc")
    with pytest.raises(PlanError, match="calibrate"):
        Plan.read(path, model_fingerprint="abc")


def test_thresholds_of_another_shape_are_refused() -> None:
    RULES.check(30, 2)
    for layers, hidden in ((5, 2), (2, 2), (30, 3)):
        with pytest.raises(PlanError, match="gates calibrate --signals"):
            RULES.check(layers, hidden)


def test_random_starts_from_the_depth_that_hybrid_starts_from() -> None:
    plan = Plan.from_order(
        [("mlp", 9), ("attention", 9)], [0.001, 0.01], total=30, attention_share=0.25, model_fingerprint="abc"
    )
    made = [
        choose_policy("auto", plan, RULES, quality=0.05, policy=policy, work="chat") for policy in ("hybrid", "random")
    ]
    assert [chosen.policy for chosen in made] == ["hybrid", "random"]
    assert made[0].budget == made[1].budget
    assert made[0].budget.depth == 30


@pytest.mark.parametrize("work", [[], ["chat"], 3])
def test_a_kind_of_work_is_a_name(work: Any) -> None:
    plan = Plan(total=30, attention_share=0.25, model_fingerprint="abc")
    with pytest.raises(PlanError, match="work="):
        choose_policy("auto", plan, RULES, quality=0.05, policy="hybrid", work=work)
