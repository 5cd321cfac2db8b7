"""Layer health: rates over a window, weighted by tokens, with gates and signals where there were any."""

import pytest

from shoal.gated_llm.health import LayerHealth
from shoal.gated_llm.trace import DepthTrace, TokenTrace


def test_before_the_first_token_nothing_is_claimed() -> None:
    report = LayerHealth(2).report()
    assert report == {
        "requests": 0,
        "tokens": 0,
        "layers": {
            f"layer_{i}": {"run_rate": None, "attention": None, "mlp": None, "gate": None, "signals": {}}
            for i in range(2)
        },
    }


def test_rates_gates_and_signals_are_weighted_by_tokens() -> None:
    health = LayerHealth(2)
    health.add(1, ((1, 0), (1, 1)), gates=((1.0, 0.0), (1.0, 1.0)), signals={0: {"entropy": 2.0}})
    health.add(3, ((0, 0), (3, 3)), gates=((0.1, 0.1), (1.0, 1.0)), signals={0: {"entropy": 1.0, "residual": 0.5}})
    health.add(4, ((4, 4), (4, 4)))
    report = health.report()
    first, second = report["layers"]["layer_0"], report["layers"]["layer_1"]
    assert (report["requests"], report["tokens"]) == (3, 8)
    assert first["attention"] == 5 / 8
    assert first["mlp"] == 4 / 8
    assert first["run_rate"] == 5 / 8
    assert first["gate"] == pytest.approx((0.5 + 3 * 0.1) / 4)
    assert first["signals"] == {"entropy": pytest.approx((2 + 3 * 1) / 4), "residual": 0.5}
    assert second["gate"] == 1.0
    assert second["signals"] == {}


def test_a_full_trace_can_be_counted() -> None:
    tokens = tuple(
        TokenTrace(
            index=i,
            token="",
            depth=4.0,
            branches="Gg" + "S" * 6,
            gates=(0.9, 0.2 * i, *[1.0] * 6),
            signals={0: {"entropy": float(i)}} if i else {},
        )
        for i in range(2)
    )
    health = LayerHealth(4)
    health.add_trace(DepthTrace(total=4, policy="gates", budget=4.0, prefill=4.0, gate_fingerprint="", tokens=tokens))
    layer = health.report()["layers"]["layer_0"]
    assert (layer["attention"], layer["mlp"]) == (1.0, 0.0)
    assert layer["gate"] == pytest.approx((0.9 + 0.1) / 2)
    assert layer["signals"] == {"entropy": 1.0}


def test_the_window_forgets() -> None:
    health = LayerHealth(1)
    for ran in [0] * 200 + [1] * 200:
        health.add(1, ((ran, ran),))
    assert health.report()["layers"]["layer_0"]["run_rate"] == 1.0
