"""Metrics (S3) and how often spans are made: the only importer of prometheus-client; without it, nothing happens.

Every label has a closed set of values, so no caller can grow the number of series: paths are route templates, codes and
routes are known words or "other". No text of a request or an answer is ever a metric.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from . import spans
from .conversation import skip_rate
from .decision import Answer, Request, Route

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.999)
TIERS = ("l1", "l2", "semantic", "flight")
STATUSES = frozenset({200, 400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 500, 501, 502, 503, 504})
BREAKER = {"closed": 0, "half-open": 1, "half_open": 1, "open": 2}
RECALIBRATED = ("adopted", "refused", "nothing", "failed")
WINDOW = 10_000  # answers
KEEP_ONE_IN = 10  # of non-essential samples in low power mode


class LowPower:
    """On when the skip rate has been above `on` for `hold_s`, off again when it falls below `off` (hysteresis).

    The rate is the mean over the last minute that saw answers.
    """

    def __init__(
        self,
        *,
        on: float = 0.80,
        off: float = 0.75,
        hold_s: float = 600.0,
        window_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on, self._off, self._hold_s, self._window_s, self._clock = on, off, hold_s, window_s, clock
        self._seen: deque[tuple[float, float]] = deque()
        self._sum = 0.0
        self._above_since: float | None = None
        self.active = False

    def observe(self, skip_rate: float) -> bool:
        """Takes one answer's skip rate (0 to 1) and tells whether the mode is on."""
        now = self._clock()
        self._seen.append((now, skip_rate))
        self._sum += skip_rate
        while now - self._seen[0][0] > self._window_s or len(self._seen) > WINDOW:
            self._sum -= self._seen.popleft()[1]
        mean = self._sum / len(self._seen)
        if mean <= (self._off if self.active else self._on):
            self._above_since, self.active = None, False
        elif self._above_since is None:
            self._above_since = now
        elif now - self._above_since >= self._hold_s:
            self.active = True
        return self.active


class Telemetry:
    """The service's numbers. One per application, with its own registry."""

    def __init__(
        self, *, total: int = 0, min_depth: float = 0.0, low_power: LowPower | None = None, span_text: bool = False
    ) -> None:
        self._total, self._min_depth, self._span_text = total, min_depth, span_text
        self.endpoints: frozenset[str] = frozenset()  # the routes there are; any other path counts as "other"
        self.low_power = low_power or LowPower()
        self._answers_seen = 0
        self._metrics = _metrics(total)
        self._registry = self._metrics.pop("registry", None)

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """One request done; status 0 is a caller who left."""
        endpoint = endpoint if endpoint in self.endpoints else "other"
        label = str(status) if status in STATUSES else ("gone" if not status else "other")
        if m := self._metrics:
            m["requests"].labels(endpoint, label).inc()
            m["request_seconds"].labels(endpoint).observe(seconds)

    def load(self, in_flight: int, queued: int) -> None:
        if m := self._metrics:
            m["in_flight"].set(in_flight)
            m["queued"].set(queued)

    def engine(self, kv_bytes: int, prefix_bytes: int, requests: int) -> None:
        """What the local model holds right now: for its requests, and of prompts for those that begin alike."""
        if m := self._metrics:
            m["kv_bytes"].set(kv_bytes)
            m["prefix_bytes"].set(prefix_bytes)
            m["engine_requests"].set(requests)

    def waited(self, seconds: float) -> None:
        if m := self._metrics:
            m["queue_seconds"].observe(seconds)

    def refused(self, code: str) -> None:
        """The guard refused a request (R4)."""
        if m := self._metrics:
            m["guard_refusals"].labels(code if code in ("depth_attack", "guarded_topic") else "other").inc()

    def recalibrated(self, outcome: str) -> None:
        """Feedback has recalibrated gates, or tried to (G15)."""
        if m := self._metrics:
            m["gate_recalibrations"].labels(outcome if outcome in RECALIBRATED else "failed").inc()

    def gates_swapped(self) -> None:
        """Other gates are in use from now on."""
        if m := self._metrics:
            m["gate_swaps"].inc()

    def answer(self, answer: Answer, *, first_s: float, total_s: float) -> None:
        """One answer made: `first_s` to its first piece, `total_s` to its last."""
        trace, depth = answer.trace, answer.trace.depth
        rate = skip_rate(depth["max"], total=self._total, min_depth=self._min_depth)
        quiet = self.low_power.observe(rate)
        self._answers_seen += 1
        if not (m := self._metrics):
            return
        m["answers"].labels(trace.route.value, trace.tier if trace.tier in TIERS else "miss").inc()
        m["layer_tokens"].labels(trace.route.value).inc(trace.layer_tokens)
        m["tokens"].labels("prompt").inc(answer.prompt_tokens)
        m["tokens"].labels("completion").inc(answer.completion_tokens)
        m["low_power"].set(quiet)
        m["depth_mode"].state("low_power" if quiet else "normal")
        runs, made = depth.get("branch_runs", ()), len(depth.get("per_token", ()))
        m["skipped_branches"].inc(sum(made - run for pair in runs for run in pair))
        if quiet and self._answers_seen % KEEP_ONE_IN:
            return
        m["first_token_seconds"].observe(first_s)
        m["answer_seconds"].observe(total_s)
        m["depth"].observe(depth["max"])
        m["skip_rate"].observe(rate)
        if answer.completion_tokens > 1:
            m["token_seconds"].observe((total_s - first_s) / (answer.completion_tokens - 1))

    def health(self, layers: Mapping[str, Mapping[str, Any]], breaker: str | None = None) -> None:
        """Per-layer run rates of the model's window and the Redis breaker's state, when the metrics are read."""
        if m := self._metrics:
            if breaker is not None:
                m["breaker"].set(BREAKER.get(breaker, 2))
            for name, layer in layers.items():
                if layer["run_rate"] is not None:
                    m["layer_skip_rate"].labels(name.removeprefix("layer_")).set(1.0 - layer["run_rate"])

    def page(self) -> tuple[bytes, str]:
        """The metrics as Prometheus text, and its content type; empty without prometheus-client."""
        if self._registry is None:
            return b"", "text/plain; version=0.0.4; charset=utf-8"
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    @contextmanager
    def span(self, model: str, request: Request) -> Iterator[Callable[[Answer], None]]:
        """A trace span around one answer (`spans`), in low power mode around one in ten."""
        if self.low_power.active and self._answers_seen % KEEP_ONE_IN:
            yield lambda answer: None
            return
        with spans.span(model, request, text=self._span_text) as answered:
            yield answered


def _metrics(total: int) -> dict[str, Any]:
    """Every metric there is, by short name; empty without prometheus-client."""
    try:
        from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram
    except ImportError:
        return {}
    r = CollectorRegistry()
    depths = tuple(float(d) for d in range(0, max(total, 1) + 1))

    def histogram(name: str, text: str, buckets: tuple[float, ...] = SECONDS, labels: tuple[str, ...] = ()) -> Any:
        return Histogram(f"shoal_{name}", text, labels, buckets=buckets, registry=r)

    def counter(name: str, text: str, *labels: str) -> Any:
        return Counter(f"shoal_{name}", text, labels, registry=r)

    def gauge(name: str, text: str, *labels: str) -> Any:
        return Gauge(f"shoal_{name}", text, labels, registry=r)

    answers = counter("answers", "Answers by route and cache tier", "route", "tier")
    for route in Route:
        answers.labels(route.value, "miss")
    return {
        "registry": r,
        "requests": counter("requests", "HTTP requests", "endpoint", "status"),
        "request_seconds": histogram("request_seconds", "End-to-end time of a request", labels=("endpoint",)),
        "in_flight": gauge("in_flight", "Requests being worked on"),
        "queued": gauge("queued", "Requests waiting for a slot"),
        "kv_bytes": gauge("kv_bytes", "Bytes of keys and values that running requests hold"),
        "prefix_bytes": gauge("prefix_bytes", "Bytes of keys and values kept of earlier prompts, bounded"),
        "engine_requests": gauge("engine_requests", "Requests that the local model is answering or has waiting"),
        "queue_seconds": histogram("queue_seconds", "Time a request waited for a slot"),
        "first_token_seconds": histogram("first_token_seconds", "Time to the first piece of an answer"),
        "answer_seconds": histogram("answer_seconds", "Time to a whole answer, once admitted"),
        "token_seconds": histogram("token_seconds", "Mean time per generated token of an answer"),
        "answers": answers,
        "layer_tokens": counter("layer_tokens", "Layer-tokens spent (depth summed over tokens)", "route"),
        "tokens": counter("tokens", "Tokens read and written", "kind"),
        "depth": histogram("depth_layers", "Deepest generated token of an answer", depths),
        "skip_rate": histogram("skip_rate", "Skip rate of an answer", RATES),
        "layer_skip_rate": gauge("layer_skip_rate", "Share of recent tokens that skipped the layer", "layer"),
        "skipped_branches": counter("skipped_branches", "Residual branches not run for generated tokens"),
        "guard_refusals": counter("guard_refusals", "Requests a guard refused", "code"),
        "gate_recalibrations": counter("gate_recalibrations", "Recalibrations that feedback started", "outcome"),
        "gate_swaps": counter("gate_swaps", "Sets of gates taken over without a restart"),
        "breaker": gauge("redis_breaker", "Redis circuit breaker: 0 closed, 1 half open, 2 open"),
        "low_power": gauge("low_power_mode", "1 while telemetry is sampled because nearly everything is skipped"),
        "depth_mode": Enum("shoal_depth_mode", "Mode of the service", states=["normal", "low_power"], registry=r),
    }
