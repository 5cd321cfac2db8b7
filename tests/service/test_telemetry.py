"""Metrics have closed label sets; low power mode comes and goes with the clock."""

import builtins
import json
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shoal.router.conversation import skip_rate
from shoal.router.decision import Answer, Decision, Request, Route
from shoal.router.journal import Journal, no_depth
from shoal.router.telemetry import LowPower, Telemetry


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def series(page):
    return {line.rsplit(" ", 1)[0] for line in page.splitlines() if line and not line.startswith("#")}


def answer(depth=0.0):
    decision = Decision(route=Route.FAQ, budget=24, total=30, bucket="16-26", confidence=1, cacheable=True)
    report = {**no_depth(30, 24), "max": depth}
    return Answer(text="", trace=Journal().trace(Route.FAQ, decision, report, tier="l1"))


def test_skip_rate():
    assert skip_rate(0, total=30, min_depth=15) == 1
    assert skip_rate(30, total=30, min_depth=15) == 0
    assert skip_rate(15, total=30, min_depth=15) == 1
    assert skip_rate(22.5, total=30, min_depth=15) == 0.5
    assert skip_rate(30, total=30, min_depth=30) == 0


def test_low_power_needs_ten_minutes_above_and_leaves_below():
    clock = Clock()
    mode = LowPower(clock=clock)
    for _ in range(600):
        assert not mode.observe(0.9)
        clock.now += 1
    assert mode.observe(0.9)
    clock.now += 61
    assert mode.observe(0.78)  # between off and on: stays
    clock.now += 61
    assert not mode.observe(0.70)
    clock.now += 61
    assert not mode.observe(0.95)  # and needs the ten minutes again


def test_a_dip_starts_the_ten_minutes_anew():
    clock = Clock()
    mode = LowPower(clock=clock)
    for minute in range(15):
        assert not mode.observe(0.5 if minute == 8 else 0.9)
        clock.now += 61


def test_low_power_samples_what_is_not_essential():
    clock = Clock()
    telemetry = Telemetry(total=30, min_depth=15, low_power=LowPower(clock=clock, hold_s=10))
    for _ in range(100):
        telemetry.answer(answer(), first_s=0.1, total_s=0.1)
        clock.now += 1
    page = telemetry.page()[0].decode()
    assert 'shoal_answers_total{route="faq",tier="l1"} 100.0' in page
    assert "shoal_low_power_mode 1.0" in page
    assert 'shoal_depth_mode{shoal_depth_mode="low_power"} 1.0' in page
    assert "shoal_skip_rate_count 19.0" in page


def test_junk_makes_no_series(live):
    with live.http() as http:

        def ask(model, path="/v1/chat/completions"):
            http.post(path, json={"model": model, "messages": [{"role": "user", "content": "a"}]})

        for path in ("/v1/models/junk", "/v1/junk"):
            http.get(path)
        ask("shoal"), ask("junk"), ask("junk", "/v1/junk")
        before = series(http.get("/metrics").text)
        for index in range(300):
            ask(f"junk-{index}")
            ask("shoal", f"/v1/junk-{index}")
            http.get(f"/v1/models/junk-{index}")
        after = series(http.get("/metrics").text)
    assert len(after - before) <= len([s for s in after if "/v1/models/{" in s])


def test_metrics_tell_what_happened(serving):
    with serving() as live, live.http() as http:
        for question in ("one two three", "faq x", "cached x", "refuse x"):
            http.post("/v1/chat/completions", json={"model": "shoal", "messages": [
                {"role": "user", "content": question}]})  # fmt: skip
        page = http.get("/metrics").text
    assert 'shoal_answers_total{route="deep",tier="miss"} 1.0' in page
    assert 'shoal_answers_total{route="cache",tier="l1"} 1.0' in page
    assert 'shoal_requests_total{endpoint="/v1/chat/completions",status="422"} 1.0' in page
    assert 'shoal_guard_refusals_total{code="depth_attack"} 1.0' in page
    assert "shoal_skipped_branches_total 24.0" in page
    assert 'shoal_layer_tokens_total{route="deep"} 64.5' in page
    assert 'shoal_layer_skip_rate{layer="3"} 0.0' in page
    assert "shoal_in_flight 0.0" in page


def test_without_the_library_nothing_happens(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith(("prometheus_client", "opentelemetry")):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    telemetry = Telemetry(total=30)
    telemetry.request("/x", 200, 0.1)
    telemetry.answer(answer(), first_s=0.1, total_s=0.2)
    telemetry.health({"layer_0": {"run_rate": 1.0}})
    with telemetry.span("m", Request.of("hello")) as answered:
        answered(answer())
    assert telemetry.page()[0] == b""


@pytest.fixture
def spans(monkeypatch):
    """What OpenTelemetry's own SDK is given."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("shoal.router.spans._tracer", lambda: provider.get_tracer("shoal"))
    yield exporter.get_finished_spans
    provider.shutdown()


def ask_live(live, *questions, **more):
    with live.http() as http:
        for question in questions:
            http.post("/v1/chat/completions", json={"model": "shoal", "messages": [
                {"role": "user", "content": question}], **more})  # fmt: skip


def test_spans_follow_the_genai_conventions_and_hold_no_content(live, spans):
    ask_live(live, "canary one two", "crash canary", temperature=0.5, max_tokens=9)
    done, failed = spans()
    assert [done.name, failed.name] == ["chat scripted"] * 2
    assert {"gen_ai.operation.name": "chat", "gen_ai.request.model": "scripted", "gen_ai.request.max_tokens": 9,
            "gen_ai.request.temperature": 0.5, "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 3,
            "gen_ai.response.finish_reasons": ("stop",), "shoal.depth.max": 21.5,
            "shoal.route": "deep"}.items() <= dict(done.attributes).items()  # fmt: skip
    assert failed.attributes["error.type"] == "KeyError"
    assert "canary" not in done.to_json() + failed.to_json()


def test_spans_hold_content_when_asked(serving, spans):
    with serving(span_text=True) as live:
        ask_live(live, "canary one two")
    (kept,) = spans()
    said = [{"role": "user", "parts": [{"type": "text", "content": "canary one two"}]}]
    assert json.loads(kept.attributes["gen_ai.input.messages"]) == said
    assert json.loads(kept.attributes["gen_ai.output.messages"])[0]["parts"][0]["content"] == "canary one two "


def test_the_service_does_not_import_torch():
    code = "import sys, shoal.router.service.app, shoal.router.service.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
