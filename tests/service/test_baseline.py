"""Baselines: what is stored, what counts as moved, and rules that Prometheus reads (JSON is YAML)."""

import json
import shutil
import subprocess
from functools import partial

import pytest

from shoal.router.baseline import BadBaseline, Baseline, compare, record, rules, sample_queries
from shoal.router.conversation import skip_rate
from shoal.router.decision import Answer, Decision, Route
from shoal.router.journal import Journal, no_depth


def ask(request, shift=0.0):
    index = int(request.text)
    route = Route.FAQ if index % 4 == 0 else Route.DEEP
    depth = 0.0 if route is Route.FAQ else 20.0 + index % 5 + shift
    decision = Decision(route=route, budget=30, total=30, bucket="27+", confidence=1, cacheable=True)
    trace = Journal().trace(route, decision, {**no_depth(30, 30), "max": depth}, layer_tokens=depth * 10)
    return Answer(text="secret", trace=trace)


def made(shift=0.0, n=200):
    rate = partial(skip_rate, total=30, min_depth=15)
    return record(partial(ask, shift=shift), map(str, range(1000)), n=n, model="m", skip_rate=rate)


def test_it_is_kept_and_read_back(tmp_path):
    baseline = made()
    assert baseline.n == 200
    assert baseline.routes == {"deep": 0.75, "faq": 0.25}
    depth = baseline.spreads["depth"]
    assert depth.mean == pytest.approx(16.5, abs=0.01)
    assert (depth.quantiles[0], depth.quantiles[10], depth.quantiles[20]) == (0, 21, 24)
    baseline.save(tmp_path / "b.json")
    assert Baseline.load(tmp_path / "b.json") == baseline
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(BadBaseline, match="record one"):
        Baseline.load(tmp_path / "b.json")
    with pytest.raises(BadBaseline, match="no queries"):
        record(ask, [], model="m", skip_rate=lambda depth: 0.0)


def test_the_sample_is_a_thousand_different_queries():
    queries = sample_queries()
    assert len(queries) == len(set(queries)) == 1000
    assert queries == sample_queries()
    assert 400 < sum(any(char >= "\u4e00" for char in query) for query in queries) < 600


def test_compare_says_what_moved():
    assert {m.what for m in compare(made(), made())} <= {"latency_ms"}
    moved = {m.what: m for m in compare(made(), made(shift=4.0))}
    assert moved["depth"].by == pytest.approx(3.0)
    assert moved["depth"].sigmas > 2
    assert not any(name.startswith("routes") for name in moved)


def test_rules_are_at_two_sigma(tmp_path):
    baseline = made()
    text = rules(baseline)
    found = {r["alert"]: r["expr"] for r in json.loads(text)["groups"][0]["rules"]}
    depth = baseline.spreads["depth"]
    assert float(found["ShoalDepthHigh"].split()[-1]) == pytest.approx(depth.mean + 2 * depth.sigma, rel=1e-5)
    if promtool := shutil.which("promtool"):
        (tmp_path / "rules.yml").write_text(text)
        subprocess.run([promtool, "check", "rules", str(tmp_path / "rules.yml")], check=True)


def test_rules_name_metrics_that_the_service_has(live):
    with live.http() as http:
        page = http.get("/metrics").text
    for rule in json.loads(rules(made()))["groups"][0]["rules"]:
        for word in rule["expr"].replace("(", " ").replace("[", " ").split():
            if word.startswith("shoal_"):
                assert word in page
