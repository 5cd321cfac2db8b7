"""Writes down what happens to one request, in order, and turns it into the one `Trace` (R8)."""

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .decision import Decision, Route, Step, Trace


def no_depth(total: int, budget: float) -> dict[str, Any]:
    """The depth report of an answer that no model was run for: FAQ, cache or extraction."""
    return {
        "total": total,
        "budget": budget,
        "prefill": 0.0,
        "max": 0.0,
        "mean": 0.0,
        "per_token": [],
        "layers": {},
        "runs": [],
        "policy": "none",
        "gate_fingerprint": "",
    }


class Journal:
    """Steps of one request. Not shared between threads."""

    def __init__(self, request_id: str | None = None) -> None:
        self.id = request_id or f"req-{uuid.uuid4().hex}"
        self._began = time.perf_counter()
        self._steps: list[Step] = []

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Times the body as one step; the body fills in the detail."""
        began, detail = time.perf_counter(), dict[str, Any]()
        try:
            yield detail
        finally:
            self._steps.append(Step(name=name, ms=(time.perf_counter() - began) * 1000, detail=detail))

    def elapsed_ms(self) -> float:
        return (time.perf_counter() - self._began) * 1000

    def trace(
        self,
        route: Route,
        decision: Decision,
        depth: Mapping[str, Any] | None = None,
        *,
        tier: str | None = None,
        layer_tokens: float = 0.0,
        kept: tuple[Mapping[str, Any], ...] = (),
        dropped: tuple[Mapping[str, Any], ...] = (),
        fused: str = "",
        experience: str = "steady",
    ) -> Trace:
        return Trace(
            id=self.id,
            route=route,
            decision=decision,
            steps=tuple(self._steps),
            depth=depth if depth is not None else no_depth(decision.total, decision.budget),
            tier=tier,
            latency_ms=self.elapsed_ms(),
            layer_tokens=layer_tokens,
            kept=kept,
            dropped=dropped,
            fused=fused,
            experience=experience,
        )
