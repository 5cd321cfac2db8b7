"""Which branches each token of one request runs (G2, G3, G5): a chooser with a small state, pure otherwise.

A budget's plan is the floor of what is left out: no token runs a branch that the plan leaves out, so none is deeper
than the budget. A rule may leave out more, per token, by signals: in levels, of which the last whose bounds all hold is
taken. The first tokens run as whole as the budget allows, and the last layers always run. The same signals, plan,
budget and seed give the same masks. Knows no model and no text.
"""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import GatedError
from .gates import Thrift
from .policy import SAFE_LAYERS, Branch, Budget, Plan
from .signals import NAMES, Reading, Signals, Window, read
from .trace import BEFORE, Probes, Reason, letters, uniform

Mask = NDArray[np.uint8]  # [layers, 2], attention and MLP; 0 skips, 1 runs
Policy = Literal["full", "plan", "signals", "gates", "hybrid", "random"]
POLICIES: tuple[Policy, ...] = ("full", "plan", "signals", "gates", "hybrid", "random")
WHOLE = 2  # first generated tokens that no rule shortens
PREDICTED = "predicted"  # a bound on what a predictor makes of all signals


def _numbers(values: Iterable[object]) -> bool:
    return all(type(value) in (int, float) and math.isfinite(value) for value in values)  # type: ignore[arg-type]


class Gating(Protocol):
    """One request's chooser, asked once per generated token: `begin`, `decide` where there is a `probe`, `finish`.

    `probe`: how many blocks run before the mask is decided; None where it is known before the pass. `thrift`: what
    learned gates, which decide inside the pass, are to save; it ends with `gated`. `branch_runs`
    [layers, 2]: tokens for which each branch ran; `depths`: one per token. `thresholds`: what a trace shows.
    """

    probe: int | None
    thrift: Thrift | None
    depths: list[float]
    branch_runs: NDArray[np.int64]
    thresholds: Probes

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """`branch_runs` as plain numbers."""
        ...

    def begin(self) -> Mask:
        """The next token's mask; where there is a probe it holds only for the blocks before it."""
        ...

    def decide(self, reading: Reading) -> Mask:
        """The whole mask, from what block `probe - 1` has left; blocks before the probe stay as begun."""
        ...

    def gated(self, run: Mask, alpha: NDArray[np.float32]) -> None:
        """What gates have run of the token, and what they scaled it by, [layers, 2]."""
        ...

    def finish(self, confidence: float) -> float:
        """Ends the token, given the probability of the likeliest token after it; returns its depth in layers."""
        ...

    @property
    def alphas(self) -> Sequence[float]:
        """One alpha per branch of the last token where gates decided, else empty."""
        ...

    def explain(self) -> tuple[str, Probes]:
        """Branches and reasons of the last token, as `trace.letters` makes them, and the signals that were read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """A linear forecast of what skipping costs: bias + weights · signals + readout · state / |state|.

    A signal that is not known counts as its usual value, `usual`.
    """

    bias: float
    weights: Mapping[str, float]
    usual: Mapping[str, float]
    readout: tuple[float, ...] = ()  # [hidden] or empty
    _direction: NDArray[np.float32] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        unknown = set(self.weights) - set(NAMES)
        if unknown or not set(self.weights) <= set(self.usual):
            raise GatedError(f"A forecast weighs {', '.join(self.weights)}: give known signals, each its usual value.")
        if not _numbers((self.bias, *self.weights.values(), *self.usual.values(), *self.readout)):
            raise GatedError("A forecast's weights must be numbers.")
        object.__setattr__(self, "_direction", np.asarray(self.readout, np.float32))

    def __call__(self, signals: Signals, state: NDArray[np.float32] | None) -> float:
        total = self.bias
        for name, weight in self.weights.items():
            value = getattr(signals, name)
            total += weight * (self.usual[name] if math.isnan(value) else value)
        if self.readout and state is not None:
            total += float(self._direction @ state) / (math.sqrt(float(state @ state)) or 1.0)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """On which side of `value` a signal lets branches leave; calibration finds the side as well as the value."""

    side: Literal["<=", ">="]
    value: float

    def __post_init__(self) -> None:
        if self.side not in ("<=", ">="):
            raise GatedError(f"A bound's side is <= or >=, not {self.side!r:.20}.")
        if not _numbers((self.value,)):
            raise GatedError(f"A bound's value is a number, not {self.value!r:.20}.")

    def holds(self, value: float) -> bool:
        """A value that is not known holds none."""
        return value <= self.value if self.side == "<=" else value >= self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Branches that leave together, and the bounds under which they may."""

    drops: tuple[Branch, ...]
    bounds: Mapping[str, Bound]

    def allows(self, values: Mapping[str, float]) -> bool:
        """Whether every bound holds."""
        return all(bound.holds(values[name]) for name, bound in self.bounds.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Levels from the least that leaves to the most, each containing the one before; `probe` as in `Gating`."""

    levels: tuple[Level, ...]
    probe: int | None = None
    predictor: Predictor | None = None
    rates: tuple[float, ...] = ()  # share of tokens at each level where it was calibrated

    def __post_init__(self) -> None:
        known = {*NAMES, PREDICTED} if self.predictor else set(NAMES)
        early = {"confidence", PREDICTED}
        if self.probe is not None and not (type(self.probe) is int and self.probe >= 1):
            raise GatedError(f"A rule's probe is how many blocks run before it, 1 or more, not {self.probe!r:.20}.")
        shares = len(self.rates) in (0, len(self.levels)) and _numbers(self.rates)
        if not shares or min(self.rates, default=0) < 0 or sum(self.rates) > 1 + 1e-6:
            raise GatedError("A rule's rates are the shares of tokens at each of its levels, at most 1 together.")
        gone: set[Branch] = set()
        for level in self.levels:
            for kind, layer in level.drops:
                if kind not in ("attention", "mlp") or type(layer) is not int or layer < 0:
                    raise GatedError(f"A rule leaves out the {kind} branch of layer {layer!r:.20}: there is none.")
            if not gone <= set(level.drops):
                raise GatedError("A rule's level must leave out all that the level before it does.")
            if unknown := set(level.bounds) - known:
                raise GatedError(f"A rule bounds {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}.")
            if self.probe is None and set(level.bounds) - early:
                raise GatedError("A rule without a probe can only bound what is known before the pass: confidence.")
            if self.probe is not None and any(layer < self.probe for _, layer in level.drops):
                raise GatedError(f"A rule that decides after block {self.probe} cannot leave out earlier ones.")
            gone = set(level.drops)

    def choose(self, signals: Signals, state: NDArray[np.float32] | None = None) -> int:
        """How many levels' branches leave: 0, or the last level that allows it."""
        values = {name: getattr(signals, name) for name in NAMES}
        if self.predictor is not None:
            values[PREDICTED] = self.predictor(signals, state)
        return max((i for i, level in enumerate(self.levels, 1) if level.allows(values)), default=0)

    def blind(self) -> "Rule":
        """The same levels at the same rates without bounds, for `random`."""
        return Rule(levels=tuple(Level(drops=level.drops, bounds={}) for level in self.levels), rates=self.rates)


def run_mask(plan: Plan, drops: Sequence[Branch], *, store: bool = False) -> Mask:
    """A mask without `drops`; the last layers always run. `store`: skipped attention still stores keys and values."""
    mask = np.ones((plan.total, 2), np.uint8)
    for kind, layer in drops:
        mask[layer, int(kind == "mlp")] = 2 if store and kind == "attention" else 0
    mask[plan.total - SAFE_LAYERS :] = 1
    return mask


def _both(first: Mask, second: Mask) -> Mask:
    """What runs under both masks; where either skips, the stricter."""
    return np.where(first == 1, second, np.where(second == 1, first, np.minimum(first, second)))


@dataclass(slots=True)
class Choice:
    """How the masks of one request are chosen; see `new_gating`."""

    policy: Policy
    plan: Plan
    base: Mask  # the budget's
    rule: Rule | None = None
    whole: int = WHOLE
    seed: int = 0
    store: bool = False
    thrift: Thrift | None = None

    probe: int | None = field(init=False)
    depths: list[float] = field(init=False, default_factory=list)
    branch_runs: NDArray[np.int64] = field(init=False)
    thresholds: Probes = field(init=False)
    _levels: list[Mask] = field(init=False)
    _window: Window = field(init=False, default_factory=Window)
    _draw: random.Random = field(init=False)
    _mask: Mask = field(init=False)
    _level: int = field(init=False, default=0)
    _confidence: float = field(init=False, default=math.nan)
    _signals: Signals = field(init=False, default_factory=Signals)
    _alpha: NDArray[np.float32] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        levels = self.rule.levels if self.rule else ()
        self.probe = self.rule.probe if self.rule and self.policy in ("signals", "hybrid") else None
        self.branch_runs = np.zeros((self.plan.total, 2), np.int64)
        self._levels = [
            _both(self.base, run_mask(self.plan, drops, store=self.store))
            for drops in ((), *(level.drops for level in levels))
        ]
        self._draw = random.Random(self.seed)
        self._mask = self.base
        self.thresholds = self._thresholds() if self.policy == "signals" else {}

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        return tuple((attention, mlp) for attention, mlp in self.branch_runs.tolist())

    def begin(self) -> Mask:
        self._signals = Signals(confidence=self._confidence)
        self._level = 0
        if self.rule is not None and self.probe is None:
            if self.policy == "random":
                self._level = self._chance(self.rule.rates)  # drawn for whole tokens too: the seed alone fixes it
            else:
                self._level = self.rule.choose(self._signals)
            if self._is_whole:
                self._level = 0
        self._mask = self._levels[self._level]
        return self._mask

    def decide(self, reading: Reading) -> Mask:
        if self.rule is not None and self.probe is not None:
            self._signals = read(reading, self._window, self._confidence)
            self._level = 0 if self._is_whole else self.rule.choose(self._signals, reading.state)
            self._mask = self._levels[self._level]
        return self._mask

    def gated(self, run: Mask, alpha: NDArray[np.float32]) -> None:
        self._mask, self._alpha = run.copy(), alpha.copy()

    def finish(self, confidence: float) -> float:
        self._confidence = confidence
        ran = self._mask == 1
        self.branch_runs += ran
        share = self.plan.attention_share
        depth = round(float(ran[:, 0].sum() * share + ran[:, 1].sum() * (1 - share)), 6)
        self.depths.append(depth)
        return depth

    @property
    def alphas(self) -> Sequence[float]:
        return () if self._alpha is None else [round(float(alpha), 6) for alpha in self._alpha.flatten()]

    def explain(self) -> tuple[str, Probes]:
        shown = [(a == 1, m == 1) for a, m in self._mask.tolist()]
        if self._alpha is not None:
            why = [tuple(Reason.GATE if run == 1 else Reason.PLAN for run in pair) for pair in self.base.tolist()]
            return letters(shown, [(a, m) for a, m in why]), {}
        whole = len(self.depths) <= self.whole and self.rule is not None
        planned = Reason.FULL if self.base.all() and self.rule is None else Reason.PLAN
        if self.rule is None:
            return uniform(shown, planned), {}
        if whole:
            chosen = Reason.WHOLE
        elif self.policy == "random":
            chosen = Reason.RANDOM
        else:
            bounds = {name for level in self.rule.levels for name in level.bounds}
            chosen = (
                Reason(f"signal:{bounds.pop()}") if len(bounds) == 1 and not bounds & {PREDICTED} else Reason.SIGNALS
            )
        deepest = self._levels[-1]
        reasons = [
            tuple(chosen if self.base[i, j] == 1 and deepest[i, j] != 1 else planned for j in range(2))
            for i in range(self.plan.total)
        ]
        probes: dict[int, dict[str, float]] = {}
        for name in NAMES:
            if not math.isnan(value := getattr(self._signals, name)):
                probes.setdefault(self._place(name), {})[name] = value
        return letters(shown, [(a, m) for a, m in reasons]), probes

    @property
    def _is_whole(self) -> bool:
        return len(self.depths) < self.whole

    def _chance(self, rates: Sequence[float]) -> int:
        point = self._draw.random()
        for level in range(len(rates), 0, -1):
            point -= rates[level - 1]
            if point < 0:
                return level
        return 0

    def _place(self, name: str) -> int:
        return BEFORE if name == "confidence" or self.probe is None else self.probe - 1

    def _thresholds(self) -> Probes:
        shown: dict[int, dict[str, float]] = {}
        for level in self.rule.levels[:1] if self.rule else ():
            for name, bound in level.bounds.items():
                shown.setdefault(self._place(name), {})[name] = bound.value
        return shown


def new_gating(
    policy: Policy,
    plan: Plan,
    budget: Budget,
    *,
    rule: Rule | None = None,
    seed: int = 0,
    whole: int = WHOLE,
    store: bool = False,
    thrift: Thrift | None = None,
) -> Gating:
    """The chooser of one request. `full` and `plan` follow the budget alone; `gates` needs a `thrift`, others a rule.

    `full` is `plan` at a budget that leaves nothing out. `random` leaves out the rule's levels at the rule's rates.
    Raises GatedError for a policy that is not known or lacks its rule.
    """
    if policy not in POLICIES:
        raise GatedError(f"policy={policy!r:.40}: give one of {', '.join(POLICIES)}.")
    if (policy == "gates") != (thrift is not None):
        raise GatedError(
            "Policy 'gates' needs learned gates, and no other has any: train them with `shoal gates train`."
        )
    adaptive = policy not in ("full", "plan", "gates")
    if adaptive and (rule is None or (policy == "random" and not rule.rates)):
        raise GatedError(
            f"Policy {policy!r} needs calibrated thresholds: make them with `shoal gates calibrate --signals`."
        )
    drops = [point.drop for point in plan.points[: 0 if policy == "full" else budget.dropped]]
    return Choice(
        policy=policy, plan=plan, base=run_mask(plan, drops, store=store), rule=rule if adaptive else None,
        whole=whole, seed=seed, store=store, thrift=thrift,
    )  # fmt: skip
