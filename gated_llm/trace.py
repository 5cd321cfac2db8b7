"""What every branch did for every generated token, and why (G7): plain frozen data, compact as JSON.

One letter per branch: capital where it ran, small where it was skipped; the letter is the reason. A token is a string
of such letters, so that tokens under one mask share it. Knows no model, no torch and no files. The words for people
and the store are the router's.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

from .errors import TraceError
from .policy import SAFE_LAYERS, Plan

FORM = 1
SIGNALS = ("entropy", "attention_kl", "residual", "confidence")
BEFORE = -1  # the "layer" of a signal that was known before layer 0 ran, such as the confidence of the token before
Kind = Literal["attention", "mlp"]
KINDS: tuple[Kind, Kind] = ("attention", "mlp")
Points = tuple[tuple[Kind, int, float, float], ...]  # branch, and the plan's depth and loss once it has left
Probes = Mapping[int, Mapping[str, float]]  # layer (or BEFORE) -> signal name -> value


class Reason(StrEnum):
    """Why a branch ran or was skipped."""

    FULL = "full"  # nothing is left out at this budget
    SAFETY = "safety"  # one of the last layers, which always run (G5)
    WHOLE = "whole"  # one of the first tokens, which run whole
    PLAN = "plan"
    BUDGET = "budget"  # what the policy wanted would have gone over the budget, or needed no less
    GATE = "gate"
    RANDOM = "random"
    SIGNALS = "signals"  # all that have a threshold at the probed layer
    ENTROPY = "signal:entropy"
    ATTENTION = "signal:attention_kl"
    RESIDUAL = "signal:residual"
    CONFIDENCE = "signal:confidence"

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that decided; none for other reasons."""
        return SIGNALS if self is Reason.SIGNALS else tuple(n for n in SIGNALS if self.value == f"signal:{n}")


_LETTERS = dict(zip(Reason, "fswpbgrneadc", strict=True))
_REASONS = {letter: reason for reason, letter in _LETTERS.items()}
_KNOWN = frozenset("".join(_REASONS) + "".join(_REASONS).upper())


def letter(ran: bool, reason: Reason) -> str:
    """The letter of one branch."""
    return _LETTERS[reason].upper() if ran else _LETTERS[reason]


def letters(mask: Sequence[tuple[bool, bool]], reasons: Iterable[tuple[Reason, Reason]]) -> str:
    """The letters of one token: attention and MLP of layer 0, then of layer 1, and so on.

    The last layers get the reason `safety`, whatever `mask` and `reasons` say of them.
    """
    text = "".join(
        letter(ran, why) for pair, whys in zip(mask, reasons, strict=True) for ran, why in zip(pair, whys, strict=True)
    )
    return text[: -2 * SAFE_LAYERS] + letter(True, Reason.SAFETY) * 2 * SAFE_LAYERS


def uniform(mask: Sequence[tuple[bool, bool]], reason: Reason) -> str:
    """The letters of a token for which every branch has the same reason, as under a static plan."""
    return letters(mask, [(reason, reason)] * len(mask))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One branch of one token. `gate`: alpha, 0 to 1; None where no gate decided."""

    ran: bool
    reason: Reason
    gate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTrace:
    """One generated token: its text (empty while a character is unfinished), depth in layers, and branches.

    `branches` as `letters` makes it; `gates` one alpha per branch in the same order, or empty; `signals` by layer where
    they were probed.
    """

    index: int
    token: str
    depth: float
    branches: str
    gates: Sequence[float] = ()
    signals: Probes = field(default_factory=dict)

    def decision(self, layer: int, kind: Kind) -> Decision:
        """What became of one branch."""
        at = 2 * layer + KINDS.index(kind)
        code = self.branches[at]
        return Decision(ran=code.isupper(), reason=_REASONS[code.lower()], gate=self.gates[at] if self.gates else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthTrace:
    """Every token of one generation. `thresholds`: on which side of what a signal lets a layer be skipped.

    `points`: the branches the plan leaves out at this budget in their order, each with the depth and the measured loss
    (nats per token) of the plan once it has left. Raises TraceError when the parts do not fit together.
    """

    total: int
    policy: str
    budget: float
    prefill: float
    gate_fingerprint: str
    tokens: tuple[TokenTrace, ...]
    thresholds: Probes = field(default_factory=dict)
    points: Points = ()

    def __post_init__(self) -> None:
        for token in self.tokens:
            if len(token.branches) != 2 * self.total or not _KNOWN.issuperset(token.branches):
                raise TraceError(
                    f"Token {token.index} of the trace has no decision for each of {2 * self.total} branches."
                )
            if not token.branches[-2 * SAFE_LAYERS :].isupper():
                raise TraceError(f"Token {token.index} of the trace skips one of the last {SAFE_LAYERS} layers.")
            if token.gates and len(token.gates) != 2 * self.total:
                raise TraceError(
                    f"Token {token.index} of the trace has {len(token.gates)} gates, not {2 * self.total}."
                )
            if not 0 <= token.depth <= self.total + 1e-6:
                raise TraceError(f"Token {token.index} of the trace has depth {token.depth}, of {self.total} layers.")

    @property
    def branch_runs(self) -> tuple[tuple[int, int], ...]:
        """Per layer, for how many tokens attention and MLP ran; the depth report's figure."""
        ran = [
            [branches.isupper() for branches in column]
            for column in zip(*(t.branches for t in self.tokens), strict=True)
        ]
        counts = [sum(column) for column in ran] or [0] * 2 * self.total
        return tuple(zip(counts[::2], counts[1::2], strict=True))

    def means(self) -> tuple[tuple[tuple[float, float], ...], Probes]:
        """Mean gate of attention and MLP per layer (empty without gates), and mean of each signal per probed layer."""
        rows = [token.gates for token in self.tokens if token.gates]
        gates = [sum(column) / len(column) for column in zip(*rows, strict=True)]
        seen: dict[int, dict[str, list[float]]] = {}
        for token in self.tokens:
            for layer, values in token.signals.items():
                for name, value in _finite(values).items():
                    seen.setdefault(layer, {}).setdefault(name, []).append(value)
        signals = {layer: {n: sum(v) / len(v) for n, v in names.items()} for layer, names in seen.items()}
        return tuple(zip(gates[::2], gates[1::2], strict=True)), signals

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, a column per quantity; values to 4 digits, those that are no numbers left out."""
        patterns = list(dict.fromkeys(token.branches for token in self.tokens))
        number = {branches: i for i, branches in enumerate(patterns)}
        probed = sorted({layer for token in self.tokens for layer in token.signals})
        return {
            "form": FORM,
            "total": self.total,
            "policy": self.policy,
            "budget": self.budget,
            "prefill": self.prefill,
            "gate_fingerprint": self.gate_fingerprint,
            "tokens": [token.token for token in self.tokens],
            "depths": [token.depth for token in self.tokens],
            "patterns": patterns,
            "pattern": [number[token.branches] for token in self.tokens],
            "gates": [[round(gate, 4) for gate in token.gates] for token in self.tokens]
            if any(token.gates for token in self.tokens)
            else [],
            "signals": {str(layer): _columns([t.signals.get(layer, {}) for t in self.tokens]) for layer in probed},
            "thresholds": {str(layer): _finite(limits) for layer, limits in self.thresholds.items()},
            "points": [list(point) for point in self.points],
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """What `to_dict` made. Raises TraceError for another form or damaged data."""
        form = raw.get("form") if isinstance(raw, Mapping) else None
        if form != FORM:
            raise TraceError(
                f"This trace has form {form!r}; this version of Shoal reads form {FORM}. "
                "Show it with the version that made it, or ask again."
            )
        try:
            columns = {int(layer): columns for layer, columns in raw["signals"].items()}
            tokens = tuple(
                TokenTrace(
                    index=i,
                    token=str(piece),
                    depth=float(depth),
                    branches=dict(enumerate(raw["patterns"]))[which],
                    gates=tuple(map(float, raw["gates"][i])) if raw["gates"] else (),
                    signals={layer: row for layer in columns if (row := _row(columns[layer], i))},
                )
                for i, (piece, depth, which) in enumerate(
                    zip(raw["tokens"], raw["depths"], raw["pattern"], strict=True)
                )
            )
            return cls(
                total=int(raw["total"]),
                policy=str(raw["policy"]),
                budget=float(raw["budget"]),
                prefill=float(raw["prefill"]),
                gate_fingerprint=str(raw["gate_fingerprint"]),
                tokens=tokens,
                thresholds={int(layer): dict(limits) for layer, limits in raw["thresholds"].items()},
                points=tuple((_kind(p[0]), int(p[1]), float(p[2]), float(p[3])) for p in raw["points"]),
            )
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise TraceError(f"The trace is damaged ({type(error).__name__}): ask again to make another.") from error


def points_of(plan: Plan, dropped: int) -> Points:
    """The first `dropped` points of a plan as a trace keeps them."""
    return tuple((p.drop[0], p.drop[1], p.depth, p.loss) for p in plan.points[:dropped])


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: short for name, value in values.items() if math.isfinite(short := _digits(value))}


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    names = [name for name in SIGNALS if any(name in row for row in rows)]
    kept = [_finite(row) for row in rows]
    return {name: [row.get(name) for row in kept] for name in names}


def _row(columns: Mapping[str, Sequence[float | None]], index: int) -> dict[str, float]:
    return {name: float(value) for name, column in columns.items() if (value := column[index]) is not None}


def _kind(value: object) -> Kind:
    if value not in KINDS:
        raise ValueError("neither attention nor mlp")
    return value
