"""How often each layer runs, its mean gate and what its signals say, over the last requests (G9). Knows no model."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .trace import DepthTrace, Probes

_WINDOW = 200  # requests
Gates = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    tokens: int
    branch_runs: tuple[tuple[int, int], ...]
    gates: Gates
    signals: Probes


class LayerHealth:
    """Thread-safe window over finished requests."""

    def __init__(self, layers: int) -> None:
        self._lock = threading.Lock()
        self._layers = layers
        self._window: deque[_Seen] = deque(maxlen=_WINDOW)

    def add(
        self,
        tokens: int,
        branch_runs: tuple[tuple[int, int], ...],
        *,
        gates: Gates = (),
        signals: Probes | None = None,
    ) -> None:
        """Counts one request: generated tokens and, per layer, for how many of them attention and MLP ran.

        `gates`: the request's mean alpha of attention and MLP per layer, where gates decided; `signals`: its mean value
        per probed layer and signal.
        """
        with self._lock:
            self._window.append(_Seen(tokens=tokens, branch_runs=branch_runs, gates=gates, signals=signals or {}))

    def add_trace(self, trace: DepthTrace) -> None:
        """Counts one request by its full trace."""
        gates, signals = trace.means()
        self.add(len(trace.tokens), trace.branch_runs, gates=gates, signals=signals)

    def report(self) -> dict[str, Any]:
        """Per layer over the window: run rates and mean gate, 0 to 1, and signal means; each weighted by tokens.

        None where nothing was seen; `signals` has only what was probed.
        """
        with self._lock:
            window = list(self._window)
        tokens = sum(seen.tokens for seen in window)
        layers = {}
        for index in range(self._layers):
            attention, mlp = (sum(seen.branch_runs[index][branch] for seen in window) for branch in (0, 1))
            names = dict.fromkeys(name for seen in window for name in seen.signals.get(index, ()))
            layers[f"layer_{index}"] = {
                "run_rate": max(attention, mlp) / tokens if tokens else None,
                "attention": attention / tokens if tokens else None,
                "mlp": mlp / tokens if tokens else None,
                "gate": _mean([(seen.tokens, sum(seen.gates[index]) / 2) for seen in window if seen.gates]),
                "signals": {
                    name: _mean(
                        [(s.tokens, s.signals[index][name]) for s in window if name in s.signals.get(index, ())]
                    )
                    for name in names
                },
            }
        return {"requests": len(window), "tokens": tokens, "layers": layers}


def _mean(weighted: list[tuple[int, float]]) -> float | None:
    weight = sum(count for count, _ in weighted)
    return sum(count * value for count, value in weighted) / weight if weight else None
