"""Why a branch ran or was skipped, in words (G7). Pure functions of a trace.

A signal is read where it was probed: for a branch that is the nearest probed layer up to its own. On which side of its
bound a signal lets a branch be skipped is the calibration's; the words say on which side it was.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ...gated_llm.trace import BEFORE, KINDS, DepthTrace, Kind, Reason, TokenTrace

NAMES = {"attention": "attention", "mlp": "MLP"}
SIGNAL_NAMES = {
    "entropy": "entropy",
    "attention_kl": "attention KL",
    "residual": "residual change",
    "confidence": "confidence",
}
_RAN = {
    Reason.FULL: "every layer runs at this budget",
    Reason.SAFETY: "one of the last layers, which always run",
    Reason.WHOLE: "the first tokens run as whole as the budget allows",
    Reason.PLAN: "the plan keeps it at this budget",
    Reason.BUDGET: "the budget left room for it",
    Reason.RANDOM: "drawn at random to run",
    Reason.GATE: "its gate is open",
}
_SKIPPED = {
    Reason.BUDGET: "running it would have gone over the budget",
    Reason.RANDOM: "drawn at random to be skipped",
    Reason.GATE: "its gate is closed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One reason that decided a branch: for how many of the generated tokens, and for the last of those, in words.

    `kind` is None where it is the same for both branches of the layer.
    """

    layer: int
    kind: Kind | None
    ran: bool
    reason: Reason
    tokens: int
    of: int
    words: str

    def __str__(self) -> str:
        share = "" if self.tokens == self.of else f" for {self.tokens} of {self.of} tokens"
        branch = f" {NAMES[self.kind]}" if self.kind else ""
        return f"layer {self.layer}{branch} {'ran' if self.ran else 'skipped'}{share}: {self.words}"


def why(trace: DepthTrace, token: TokenTrace, layer: int, kind: Kind) -> str:
    """The reason for one branch of one token."""
    decision = token.decision(layer, kind)
    if decision.gate is not None and decision.reason is Reason.GATE:
        return f"{(_RAN if decision.ran else _SKIPPED)[Reason.GATE]} ({decision.gate:.2f})"
    if decision.reason.signals:
        return _signal_words(trace, token, layer, decision.reason.signals) or "the signals say so"
    if decision.ran:
        return _RAN[decision.reason]
    if decision.reason is Reason.PLAN:
        return _plan_words(trace, layer, kind)
    return _SKIPPED.get(decision.reason, decision.reason.value)


def lines(trace: DepthTrace, *, skipped_only: bool = True) -> list[Line]:
    """Every reason that decided each branch, layer by layer, the most frequent first."""
    found = []
    for layer in range(trace.total):
        attention, mlp = (
            [line for line in _lines(trace, layer, kind) if not (line.ran and skipped_only)] for kind in KINDS
        )
        both = [
            line
            for line in (replace(line, kind=None) for line in attention)
            if line in [replace(m, kind=None) for m in mlp]
        ]
        rest = [line for line in (*attention, *mlp) if replace(line, kind=None) not in both]
        found += sorted((*both, *rest), key=lambda line: -line.tokens)
    return found


def _lines(trace: DepthTrace, layer: int, kind: Kind) -> Iterator[Line]:
    decisions = [token.decision(layer, kind) for token in trace.tokens]
    last = {(d.ran, d.reason): token for d, token in zip(decisions, trace.tokens, strict=True)}
    for (ran, reason), count in Counter((d.ran, d.reason) for d in decisions).items():
        words = why(trace, last[ran, reason], layer, kind)
        yield Line(layer=layer, kind=kind, ran=ran, reason=reason, tokens=count, of=len(decisions), words=words)


def _plan_words(trace: DepthTrace, layer: int, kind: Kind) -> str:
    for dropped, at, depth, loss in trace.points:
        if (dropped, at) == (kind, layer):
            return f"the plan leaves it out from depth {depth:g} down (measured loss there {loss:.2f} nats per token)"
    return "the plan leaves it out at this budget"


def _signal_words(trace: DepthTrace, token: TokenTrace, layer: int, names: tuple[str, ...]) -> str:
    """Those with a bound; all that were read where none has one."""
    bare, bounded = [], []
    for name in names:
        place, value = _nearest(token.signals, layer, name)
        if value is None:
            continue
        _, bound = _nearest(trace.thresholds, layer, name)
        where = "" if place == layer else (" of the token before" if place == BEFORE else f" at layer {place}")
        said = f"{SIGNAL_NAMES.get(name, name)} {_short(value)}{where}"
        if bound is None:
            bare.append(said)
        else:
            bounded.append(f"{said} {_side(value, bound)} {_short(bound)}")
    return ", ".join(bounded or bare)


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def _side(value: float, bound: float) -> str:
    return "below" if value < bound else "above" if value > bound else "at"


def _nearest(probes: Mapping[int, Mapping[str, float]], layer: int, name: str) -> tuple[int, float | None]:
    places = [place for place, values in probes.items() if place <= layer and name in values]
    return (max(places), probes[max(places)][name]) if places else (layer, None)
