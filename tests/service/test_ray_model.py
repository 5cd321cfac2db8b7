"""What an API replica makes of what model replicas tell, and what is said where there is no Ray; without Ray."""

import sys

import pytest

from shoal.router.service.ray_model import summed


def report(requests, tokens, run, signals):
    layers = {"layer_0": {"run_rate": run, "attention": run, "mlp": 0.5 if run else None, "gate": None,
                          "signals": signals}}  # fmt: skip
    return {"requests": requests, "tokens": tokens, "layers": layers}


def test_the_health_of_all_replicas_is_weighed_by_their_tokens():
    found = summed([report(1, 10, 1.0, {"a": 2.0}), report(3, 30, 0.5, {}), report(0, 0, None, {})])
    layer = found["layers"]["layer_0"]
    assert (found["requests"], found["tokens"]) == (4, 40)
    assert layer == {"run_rate": 0.625, "attention": 0.625, "mlp": 0.5, "gate": None, "signals": {"a": 2.0}}
    idle = summed([report(0, 0, None, {})])
    assert idle["layers"]["layer_0"]["run_rate"] is None
    assert summed([]) == {"requests": 0, "tokens": 0, "layers": {}}
    assert summed([report(1, 3, 0.2, {})])["layers"]["layer_0"]["run_rate"] == pytest.approx(0.2)


@pytest.mark.parametrize("words", [("kb", "add", "--ray", "."), ("kb", "audit", "--ray"), ("serve", "--ray")])
def test_without_ray_the_extra_is_named(shoal, monkeypatch, words):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("shoal.router.ray_data", "shoal.router.service.ray_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    code, _, said = shoal(*words)
    assert code != 0
    assert "shoal[ray]" in said
    assert "Traceback" not in said
