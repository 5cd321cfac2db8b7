"""How often each layer runs, over the last requests (G9). Knows no model."""

import threading
from collections import deque
from typing import Any

_WINDOW = 200  # requests


class LayerHealth:
    """Thread-safe window over finished requests."""

    def __init__(self, layers: int) -> None:
        self._lock = threading.Lock()
        self._layers = layers
        self._window: deque[tuple[int, tuple[tuple[int, int], ...]]] = deque(maxlen=_WINDOW)

    def add(self, tokens: int, branch_runs: tuple[tuple[int, int], ...]) -> None:
        """Counts one request: generated tokens and, per layer, for how many of them attention and MLP ran."""
        with self._lock:
            self._window.append((tokens, branch_runs))

    def report(self) -> dict[str, Any]:
        """Run rates, 0 to 1, per layer over the window; None before the first token."""
        with self._lock:
            window = list(self._window)
        tokens = sum(count for count, _ in window)
        layers = {}
        for index in range(self._layers):
            attention, mlp = (sum(runs[index][branch] for _, runs in window) for branch in (0, 1))
            layers[f"layer_{index}"] = {
                "run_rate": max(attention, mlp) / tokens if tokens else None,
                "attention": attention / tokens if tokens else None,
                "mlp": mlp / tokens if tokens else None,
            }
        return {"requests": len(window), "tokens": tokens, "layers": layers}
