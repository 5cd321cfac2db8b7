"""Choosers under any signals, plans and budgets: no token above the budget, the last layers run, seeds fix all."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.gated_llm import GatedError, Plan
from shoal.gated_llm.gates import Thrift
from shoal.gated_llm.gating import (
    POLICIES,
    PREDICTED,
    WHOLE,
    Bound,
    Gating,
    Level,
    Policy,
    Predictor,
    Rule,
    new_gating,
)
from shoal.gated_llm.policy import SAFE_LAYERS, Branch, Budget, resolve_budget
from shoal.gated_llm.signals import NAMES, Reading
from shoal.gated_llm.trace import BEFORE, Reason, TokenTrace

from .test_policy import TOTAL, plans, ran

HIDDEN, HEADS = 8, 3
UPPER = st.floats(-1, 5)
BOUNDS = st.builds(Bound, side=st.sampled_from(["<=", ">="]), value=UPPER)


@st.composite
def rules(draw: st.DrawFn, policy: Policy) -> Rule:
    probe = draw(st.integers(1, TOTAL - SAFE_LAYERS - 1) | st.none()) if policy != "random" else None
    branches: list[Branch] = [
        (kind, i)  # type: ignore[misc]
        for i in range(probe or 0, TOTAL - SAFE_LAYERS)
        for kind in ("attention", "mlp")
    ]
    order = draw(st.permutations(branches))
    sizes = sorted(draw(st.sets(st.integers(1, len(order)), min_size=1, max_size=3)))
    predictor = None
    names = ["confidence"] if probe is None else list(NAMES)
    if policy == "hybrid":
        weights = {name: draw(st.floats(-1, 1)) for name in NAMES}
        predictor = Predictor(
            bias=draw(UPPER), weights=weights, usual=dict.fromkeys(NAMES, 0.5), readout=(0.1,) * HIDDEN
        )
        names = [*names, PREDICTED]
    levels = tuple(
        Level(drops=tuple(order[:size]), bounds={name: draw(BOUNDS) for name in draw(st.sets(st.sampled_from(names)))})
        for size in sizes
    )
    rates = tuple(draw(st.floats(0, 1)) / len(levels) for _ in levels)
    return Rule(levels=levels, probe=probe, predictor=predictor, rates=rates)


def budget_of(plan: Plan, asked: int) -> Budget:
    return resolve_budget(max(asked, math.ceil(plan.min_depth - 1e-9)), plan, quality=0.003)


def by_gates(gating: Gating, begun: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """What gates may have run of a mask, told to the chooser: less, but for the last layers."""
    mask = begun.copy()
    mask[:-SAFE_LAYERS][random.random(mask[:-SAFE_LAYERS].shape) < 0.1] = 0
    gating.gated(mask, np.where(mask == 1, 0.9, 0.1).astype(np.float32))
    return mask


def thrift_of(policy: Policy) -> Thrift | None:
    return Thrift(value=0.5) if policy == "gates" else None


def drive(gating: Gating, seed: int, tokens: int) -> list[np.ndarray]:
    """The masks of some tokens under made-up signals, wild ones among them."""
    random, masks = np.random.default_rng(seed), []
    for _ in range(tokens):
        mask = begun = gating.begin().copy()
        if gating.probe is not None:
            state, middle = random.normal(size=(2, HIDDEN)).astype(np.float32)
            if random.random() < 0.1:
                middle[:] = np.nan
            reading = Reading(state=state, middle=middle, gaps=random.exponential(size=HEADS).astype(np.float32))
            mask = gating.decide(reading).copy()
            assert (mask[: gating.probe] == begun[: gating.probe]).all()
        if gating.thrift is not None:
            mask = by_gates(gating, begun, random)
        depth = gating.finish(random.random())
        branches, probes = gating.explain()
        token = TokenTrace(index=0, token="", depth=depth, branches=branches, signals=probes)
        for layer in range(TOTAL):
            assert token.decision(layer, "attention").ran == (mask[layer, 0] == 1)
            assert token.decision(layer, "mlp").ran == (mask[layer, 1] == 1)
        masks.append(mask)
    return masks


@settings(deadline=None, max_examples=60)
@given(
    plan=plans(),
    asked=st.integers(1, TOTAL),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 99),
    store=st.booleans(),
    data=st.data(),
)
def test_any_policy_keeps_the_budget(
    plan: Plan, asked: int, policy: Policy, seed: int, store: bool, data: st.DataObject
) -> None:
    rule, budget = data.draw(rules(policy)), budget_of(plan, asked)

    def made() -> Gating:
        return new_gating(policy, plan, budget, rule=rule, seed=seed, store=store, thrift=thrift_of(policy))

    gating = made()
    masks = drive(gating, seed, 12)
    for index, mask in enumerate(masks):
        depth = ran(plan, tuple((a == 1, m == 1) for a, m in mask.tolist()))
        assert depth == pytest.approx(gating.depths[index], abs=1e-4)
        assert depth <= (TOTAL if policy == "full" else budget.depth) + 1e-4
        assert (mask[-SAFE_LAYERS:] == 1).all()
        assert store or set(mask.ravel().tolist()) <= {0, 1}
        if policy != "gates" and (index < WHOLE or policy in ("full", "plan")):
            assert depth == pytest.approx(TOTAL if policy == "full" else plan.depth_at(budget.dropped), abs=1e-4)
    assert (sum((mask == 1).astype(int) for mask in masks) == gating.branch_runs).all()
    again = drive(made(), seed, 12)
    assert all((a == b).all() for a, b in zip(masks, again, strict=True))


def rule_of(**bounds: float) -> Rule:
    drops: tuple[Branch, ...] = (("attention", 20), ("mlp", 21))
    wide, tight = ({n: Bound(side="<=", value=b / k) for n, b in bounds.items()} for k in (1, 2))
    levels = (Level(drops=drops[:1], bounds=wide), Level(drops=drops, bounds=tight))
    return Rule(levels=levels, probe=10, rates=(0.3, 0.3))


PLAN = Plan.from_order([("mlp", 4)], [0.1], total=TOTAL, attention_share=0.25, model_fingerprint="abc")
FULL = resolve_budget(TOTAL, PLAN, quality=0.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_ten_thousand_tokens_within_the_budget(policy: Policy) -> None:
    order: list[Branch] = [("mlp", 4), ("attention", 5), ("mlp", 9), ("attention", 12)]
    plan = Plan.from_order(order, [0.1, 0.2, 0.3, 0.4], total=TOTAL, attention_share=0.25, model_fingerprint="abc")
    budget = resolve_budget(28, plan, quality=0.0)
    never, often = Bound(side=">=", value=9.0), Bound(side=">=", value=0.5)
    levels = (Level(drops=(("mlp", 13),), bounds={"confidence": often}),
              Level(drops=(("mlp", 13), ("mlp", 26)), bounds={"confidence": never}))  # fmt: skip
    rule = Rule(levels=levels, rates=(0.5, 0.1))
    gating = new_gating(policy, plan, budget, rule=rule, thrift=thrift_of(policy))
    random = np.random.default_rng(0)
    for _ in range(10_000):
        mask = gating.begin()
        assert mask[-SAFE_LAYERS:].all()
        if policy == "gates":
            by_gates(gating, mask, random)
        gating.finish(random.random())
    assert max(gating.depths) <= (TOTAL if policy == "full" else 28)
    assert (gating.branch_runs[-SAFE_LAYERS:] == 10_000).all()
    assert (policy in ("full", "plan")) == (len(set(gating.depths)) == 1)


def test_random_keeps_its_rates_and_its_seed() -> None:
    rule = Rule(levels=rule_of(confidence=1).levels, rates=(0.3, 0.2))
    one, same, other = (new_gating("random", PLAN, FULL, rule=rule, seed=seed) for seed in (1, 1, 2))
    for gating in (one, same, other):
        drive(gating, 0, 3000)
    assert one.depths == same.depths != other.depths
    counts = np.unique(one.depths, return_counts=True)
    assert dict(zip(*counts, strict=True)) == pytest.approx({29.0: 600, 29.75: 900, 30.0: 1500}, rel=0.15)


def test_a_reason_names_the_signal_that_decided() -> None:
    gating = new_gating("signals", PLAN, FULL, rule=rule_of(residual=9.0))
    drive(gating, 0, WHOLE)
    branches, _ = gating.explain()
    whole = TokenTrace(index=0, token="", depth=30, branches=branches).decision(20, "attention")
    assert (whole.ran, whole.reason) == (True, Reason.WHOLE)
    drive(gating, 2, 1)
    branches, probes = gating.explain()
    token = TokenTrace(index=0, token="", depth=29, branches=branches, signals=probes)
    skipped = token.decision(20, "attention")
    assert (skipped.ran, skipped.reason) == (False, Reason.RESIDUAL)
    assert token.decision(29, "mlp").reason is Reason.SAFETY
    assert set(probes) == {BEFORE, 9}
    assert gating.thresholds == {9: {"residual": 9.0}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"probe": 22}, "cannot leave out earlier"),
        ({"probe": None}, "known before the pass"),
        ({"levels": rule_of(residual=1).levels[::-1]}, "all that the level before"),
        ({"levels": (Level(drops=(), bounds={PREDICTED: Bound(side="<=", value=1.0)}),)}, "bounds predicted"),
        ({"rates": (0.5,)}, "rates"),
        ({"rates": (0.9, 0.9)}, "rates"),
    ],
)
def test_rules_that_make_no_sense(changes: dict[str, Any], said: str) -> None:
    good = rule_of(residual=1.0)
    with pytest.raises(GatedError, match=said):
        Rule(**{"levels": good.levels, "probe": good.probe, **changes})


@pytest.mark.parametrize("policy", ["signals", "hybrid", "random", "gates?"])
def test_policies_that_cannot_be(policy: Any) -> None:
    with pytest.raises(GatedError, match=r"calibrate|give one of"):
        new_gating(policy, PLAN, FULL)
