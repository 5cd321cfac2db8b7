"""What an answer cost in depth (G6): plain data, JSON-ready. Knows no model."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .trace import DepthTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthReport:
    """Depths in layers, cost-weighted. `per_token` has one entry per generated token, the end token included.

    `runs` counts, per layer, the generated tokens for which it ran at all; `branch_runs` the same for attention and MLP
    apart.
    """

    total: int
    budget: float
    prefill: float
    per_token: tuple[float, ...]
    branch_runs: tuple[tuple[int, int], ...]
    policy: str
    gate_fingerprint: str

    @property
    def max(self) -> float:
        """Deepest generated token so far; 0 before the first."""
        return max(self.per_token, default=0.0)

    @property
    def mean(self) -> float:
        """Mean depth of the generated tokens; 0 before the first."""
        return sum(self.per_token) / len(self.per_token) if self.per_token else 0.0

    @property
    def runs(self) -> tuple[int, ...]:
        return tuple(max(pair) for pair in self.branch_runs)

    @property
    def layers(self) -> dict[str, str]:
        """`{"layer_12": "pruned", ...}`: pruned when neither branch ran for any generated token."""
        return {f"layer_{i}": "active" if run else "pruned" for i, run in enumerate(self.runs)}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "total": self.total,
            "budget": self.budget,
            "prefill": self.prefill,
            "per_token": list(self.per_token),
            "max": self.max,
            "mean": self.mean,
            "layers": self.layers,
            "runs": list(self.runs),
            "branch_runs": [list(pair) for pair in self.branch_runs],
            "policy": self.policy,
            "gate_fingerprint": self.gate_fingerprint,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens read and made, and the sum of their depths: what is billed.

    `drafted` and `accepted`: tokens that a draft proposed, and those of them that the model itself chose.
    """

    prompt_tokens: int
    completion_tokens: int
    layer_tokens: float
    drafted: int = field(default=0, compare=False)  # how it was made, not what it cost
    accepted: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of streamed text and the depth so far; the last one says why it ended and what it used.

    `trace`, on the last one, holds every token's decisions where the request asked for it (G7).
    """

    text: str
    depth: DepthReport
    finish_reason: str | None = None
    usage: Usage | None = None
    confidence: float | None = None
    trace: "DepthTrace | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A whole answer. `finish_reason`: "stop", "length" or "cancelled"; `confidence`: mean probability, 0 to 1, of each
    token's most likely choice."""

    text: str
    finish_reason: str
    usage: Usage
    depth: DepthReport
    confidence: float
    trace: "DepthTrace | None" = None
