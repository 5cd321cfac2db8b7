"""Depth traces: compact, exact on the way out and back, and never at odds with the report or the safety layers."""

import json
import math
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gated_llm import GatedLLM, Plan
from shoal.gated_llm.errors import TraceError
from shoal.gated_llm.policy import Branch
from shoal.gated_llm.trace import (
    BEFORE,
    KINDS,
    SIGNALS,
    DepthTrace,
    Reason,
    TokenTrace,
    letter,
    letters,
    uniform,
)

TOTAL = 6
ORDER: list[Branch] = [("attention", 1), ("mlp", 0), ("mlp", 2), ("attention", 2)]
PLAN = Plan.from_order(ORDER, [0.001, 0.002, 0.02, 0.3], total=TOTAL, attention_share=0.25, model_fingerprint="m")
FREE = 2 * (TOTAL - 3)
VALUES = st.integers(-9999, 9999).map(lambda n: n / 1000)
PROBES = st.dictionaries(st.integers(BEFORE, TOTAL - 1), st.dictionaries(st.sampled_from(SIGNALS), VALUES, min_size=1))


@st.composite
def tokens(draw: st.DrawFn, index: int) -> TokenTrace:
    free = draw(st.lists(st.tuples(st.booleans(), st.sampled_from(Reason)), min_size=FREE, max_size=FREE))
    return TokenTrace(
        index=index,
        token=draw(st.text(max_size=5)),
        depth=draw(st.floats(3, TOTAL)),
        branches="".join(letter(*branch) for branch in free) + letter(True, Reason.SAFETY) * 6,
        gates=draw(st.lists(st.integers(0, 1000).map(lambda n: n / 1000), min_size=12, max_size=12).map(tuple)),
        signals=draw(PROBES),
    )


@st.composite
def traces(draw: st.DrawFn) -> DepthTrace:
    return DepthTrace(
        total=TOTAL,
        policy=draw(st.sampled_from(["signals", "gates", "hybrid"])),
        budget=draw(st.floats(3, TOTAL)),
        prefill=6.0,
        gate_fingerprint=draw(st.text(max_size=12)),
        tokens=tuple(draw(tokens(i)) for i in range(draw(st.integers(0, 5)))),
        thresholds=draw(PROBES),
        points=tuple(("mlp", layer, 5.25, 0.1) for layer in range(draw(st.integers(0, 3)))),
    )


@given(traces())
def test_a_trace_survives_json(trace: DepthTrace) -> None:
    raw = trace.to_dict()
    assert raw["form"] == 1
    again = DepthTrace.from_dict(json.loads(json.dumps(raw, allow_nan=False)))
    assert again == trace
    assert again.to_dict() == raw


@given(traces())
def test_branch_runs_are_the_decisions_counted(trace: DepthTrace) -> None:
    counted = tuple(
        tuple(sum(t.decision(layer, kind).ran for t in trace.tokens) for kind in KINDS) for layer in range(TOTAL)
    )
    assert trace.branch_runs == counted
    assert all(runs == (len(trace.tokens),) * 2 for runs in trace.branch_runs[-3:])


@given(st.lists(st.floats(), max_size=4))
def test_values_that_are_no_numbers_are_left_out(values: list[float]) -> None:
    probes = {0: dict(zip(SIGNALS, values, strict=False))}
    token = TokenTrace(index=0, token="a", depth=6.0, branches=uniform(PLAN.mask(0), Reason.FULL), signals=probes)
    trace = DepthTrace(
        total=TOTAL, policy="signals", budget=6.0, prefill=6.0, gate_fingerprint="", tokens=(token,), thresholds=probes
    )
    written = json.loads(json.dumps(trace.to_dict(), allow_nan=False))
    kept = {name for name, value in probes[0].items() if math.isfinite(float(f"{value:.4g}"))}
    assert DepthTrace.from_dict(written).tokens[0].signals.get(0, {}).keys() == kept


@pytest.mark.parametrize("depth", [6, 5, 4])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "seed": 3}, {"drafts": False}])
def test_the_engine_s_trace_is_its_report_branch_by_branch(
    tiny: GatedLLM, depth: int, settings: dict[str, Any]
) -> None:
    made = tiny.generate("Name three uses.", max_depth=depth, max_tokens=12, trace=True, **settings)
    trace = made.trace
    assert trace is not None
    assert trace == DepthTrace.from_dict(json.loads(json.dumps(trace.to_dict())))
    assert trace.branch_runs == made.depth.branch_runs
    assert tuple(token.depth for token in trace.tokens) == made.depth.per_token
    assert "".join(token.token for token in trace.tokens) == made.text.rstrip("\ufffd")
    dropped = tiny.resolve_budget(depth).dropped
    assert [point[:2] for point in trace.points] == ORDER[:dropped]
    for token in trace.tokens:
        decisions = {(k, i): token.decision(i, k) for i in range(TOTAL) for k in KINDS}
        assert {branch for branch, decision in decisions.items() if not decision.ran} == set(ORDER[:dropped])
        assert all(decisions[k, i].reason is Reason.SAFETY for i in (3, 4, 5) for k in KINDS)


def test_without_being_asked_no_trace_is_made(tiny: GatedLLM) -> None:
    assert {chunk.trace for chunk in tiny.stream("Hi", max_tokens=4)} == {None}


def test_two_hundred_tokens_of_thirty_layers_stay_small() -> None:
    branches = "Pp" * 27 + "S" * 6
    probes = {layer: dict.fromkeys(SIGNALS, 0.123456789 * layer) for layer in (4, 12, 20, 26)}
    made = [TokenTrace(index=i, token="word", depth=20.0, branches=branches, signals=probes) for i in range(200)]
    trace = DepthTrace(total=30, policy="signals", budget=20.0, prefill=30.0, gate_fingerprint="x", tokens=tuple(made))
    assert len(zlib.compress(json.dumps(trace.to_dict()).encode())) < 5_000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"form": 2}, "form 2"),
        ({"form": None}, "form None"),
        ({"pattern": [7]}, "damaged"),
        ({"pattern": None}, "damaged"),
        ({"patterns": ["Pp"]}, "12 branches"),
        ({"patterns": ["?" * 12]}, "12 branches"),
        ({"patterns": ["p" * 12]}, "last 3 layers"),
        ({"gates": [[1.0]]}, "gates"),
        ({"points": [["head", 0, 1, 1]]}, "damaged"),
    ],
)
def test_another_form_or_a_damaged_trace_is_a_clear_error(change: dict[str, Any], said: str) -> None:
    token = TokenTrace(index=0, token="a", depth=6.0, branches=uniform(PLAN.mask(0), Reason.FULL))
    raw = DepthTrace(
        total=TOTAL, policy="full", budget=6.0, prefill=6.0, gate_fingerprint="", tokens=(token,)
    ).to_dict()
    with pytest.raises(TraceError, match=said):
        DepthTrace.from_dict({**raw, **change})
    with pytest.raises(TraceError, match="form"):
        DepthTrace.from_dict([])  # type: ignore[arg-type]


def test_safety_layers_mark_themselves() -> None:
    text = letters(PLAN.mask(2), [(Reason.SIGNALS, Reason.CONFIDENCE)] * TOTAL)
    assert text == "NcnCNCSSSSSS"
    assert Reason.SIGNALS.signals == SIGNALS
    assert Reason.CONFIDENCE.signals == ("confidence",)
    assert Reason.PLAN.signals == ()


@pytest.mark.parametrize(
    "change", [{"depths": [math.nan]}, {"depths": [9999.0]}, {"depths": [-1.0]}, {"pattern": [-1]}]
)
def test_impossible_numbers_are_a_damaged_trace(change: dict[str, Any]) -> None:
    token = TokenTrace(index=0, token="a", depth=6.0, branches=uniform(PLAN.mask(0), Reason.FULL))
    trace = DepthTrace(total=TOTAL, policy="plan", budget=6.0, prefill=6.0, gate_fingerprint="", tokens=(token,))
    with pytest.raises(TraceError):
        DepthTrace.from_dict({**trace.to_dict(), **change})
