"""Calibrated thresholds of a model (G3): operating points of the per-token policies, each with what it was measured at.

A file beside the plan, for the same model fingerprint. Knows no model and no text.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .errors import GatedError, PlanError
from .gates import Gates
from .gating import POLICIES, Bound, Level, Policy, Predictor, Rule
from .policy import SAFE_LAYERS, Budget, Plan, calibrated, resolve_budget

WORKS = ("chat", "grounded", "scoring")
_FORM = 1
_AGAIN = "`shoal gates calibrate --signals`"
_ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A rule with its mean depth in layers and its loss in nats per token against full depth, by kind of work.

    Measured on held-out samples, on top of full depth: a smaller budget leaves out more.
    """

    policy: Policy
    rule: Rule
    depth: Mapping[str, float]
    loss: Mapping[str, float]

    def __post_init__(self) -> None:
        if self.policy not in ("signals", "hybrid"):
            raise PlanError(f"A point of the thresholds is of policy {self.policy!r:.20}, not signals or hybrid.")
        if (
            not self.depth
            or set(self.depth) != set(self.loss)
            or not all(map(math.isfinite, (*self.depth.values(), *self.loss.values())))
            or min(self.depth.values()) < 0
        ):
            raise PlanError("A point of the thresholds lacks a depth or a loss for some kind of work.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Every operating point of one model."""

    model_fingerprint: str
    points: tuple[Point, ...]
    about: Mapping[str, Any]

    def within(self, loss: float, work: str | None = None, *, policy: Policy | None = None) -> Point | None:
        """The shallowest point that loses at most `loss` nats per token at `work`, None where full depth is left.

        Without `work` it must hold for every kind that was measured. Raises PlanError for a kind that was not.
        """
        best, least = None, math.inf
        for point in self.points:
            kinds = list(point.loss) if work is None else [work]
            if not set(kinds) <= set(point.loss):
                raise PlanError(f"work={work!r:.40}: the thresholds know {', '.join(point.loss)}.")
            depth = sum(point.depth[kind] for kind in kinds) / len(kinds)
            fits = max(point.loss[kind] for kind in kinds) <= loss and policy in (None, point.policy)
            if fits and depth < least:
                best, least = point, depth
        return best

    def check(self, layers: int, hidden: int) -> None:
        """Raises PlanError where a rule does not fit a model of so many layers and such states."""
        for rule in (point.rule for point in self.points):
            last = max((layer for level in rule.levels for _, layer in level.drops), default=0)
            wide = len(rule.predictor.readout) if rule.predictor is not None else 0
            if last >= layers - SAFE_LAYERS or (rule.probe or 0) >= layers or wide not in (0, hidden):
                raise PlanError(
                    f"The thresholds leave out layer {last}, decide after block {rule.probe}, read states of {wide}: "
                    f"that does not fit {layers} layers, of which the last {SAFE_LAYERS} always run, with states of "
                    f"{hidden}. Calibrate again with {_AGAIN}."
                )

    @classmethod
    def read(cls, path: Path, *, model_fingerprint: str) -> "Rules":
        """Raises PlanError when the file is damaged or made for a model with another fingerprint."""

        def made(raw: Mapping[str, Any]) -> Rules:
            predictors = [Predictor(**{**p, "readout": tuple(p["readout"])}) for p in raw["predictors"]]
            return cls(
                model_fingerprint=raw["model_fingerprint"],
                points=tuple(_point(point, raw["levels"], predictors) for point in raw["points"]),
                about=raw["about"],
            )

        return calibrated(path, "holds no thresholds", _FORM, made, model_fingerprint=model_fingerprint, again=_AGAIN)

    @classmethod
    def shipped(cls, name: str) -> "Rules | None":
        """The thresholds that ship for the model of that name, None where none do; needs neither model nor torch."""
        path = _ASSETS / f"{name}.signals.json"
        if not path.exists():
            return None
        return cls.read(path, model_fingerprint=json.loads(path.read_text("utf-8"))["model_fingerprint"])

    def write(self, path: Path) -> None:
        """Writes the rules as JSON; sets of branches and predictors once each."""
        levels: list[list[list[object]]] = []
        predictors: list[Predictor] = []
        points = []
        for point in self.points:
            rule = point.rule
            chosen = []
            for level in rule.levels:
                drops: list[list[object]] = [list(branch) for branch in level.drops]
                if drops not in levels:
                    levels.append(drops)
                bounds = {name: [bound.side, _short(bound.value)] for name, bound in level.bounds.items()}
                chosen.append({"drops": levels.index(drops), "bounds": bounds})
            if rule.predictor is not None and rule.predictor not in predictors:
                predictors.append(rule.predictor)
            points.append(
                {
                    "policy": point.policy,
                    "probe": rule.probe,
                    "predictor": None if rule.predictor is None else predictors.index(rule.predictor),
                    "levels": chosen,
                    "rates": list(map(_short, rule.rates)),
                    "depth": {kind: _short(value) for kind, value in point.depth.items()},
                    "loss": {kind: _short(value) for kind, value in point.loss.items()},
                }
            )
        head = {
            "form": _FORM,
            "model_fingerprint": self.model_fingerprint,
            "about": dict(self.about),
            "levels": levels,
            "predictors": [_plain(predictor) for predictor in predictors],
        }
        rows = ",\n  ".join(json.dumps(point) for point in points)
        path.write_text(f'{json.dumps(head)[:-1]},\n "points": [\n  {rows}\n ]}}\n', "utf-8")


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _plain(predictor: Predictor) -> dict[str, Any]:
    return {
        "bias": _short(predictor.bias),
        "weights": {name: _short(value) for name, value in predictor.weights.items()},
        "usual": {name: _short(value) for name, value in predictor.usual.items()},
        "readout": [float(f"{value:.4g}") for value in predictor.readout],
    }


def _point(raw: Mapping[str, Any], levels: list[Any], predictors: list[Predictor]) -> Point:
    rule = Rule(
        levels=tuple(
            Level(
                drops=tuple((kind, layer) for kind, layer in levels[level["drops"]]),
                bounds={name: Bound(side=side, value=value) for name, (side, value) in level["bounds"].items()},
            )
            for level in raw["levels"]
        ),
        probe=raw["probe"],
        predictor=None if raw["predictor"] is None else predictors[raw["predictor"]],
        rates=tuple(raw["rates"]),
    )
    return Point(policy=raw["policy"], rule=rule, depth=raw["depth"], loss=raw["loss"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a request's chooser is made from, for `new_gating`; `thrift` for learned gates."""

    policy: Policy
    budget: Budget
    rule: Rule | None = None
    thrift: float | None = None


def choose_policy(
    requested: object,
    plan: Plan,
    rules: Rules | None,
    *,
    gates: Gates | None = None,
    quality: float,
    policy: Policy | Literal["auto"] = "auto",
    work: str | None = None,
) -> Chosen:
    """Budget, policy and rule of a request, none of which loses more than the share `quality` of likelihood by itself.

    `auto` with the budget "auto" is the shallowest of plan and per-token points, full depth where none is within; with
    a budget of its own it is the plan. A policy named in a request adds its rule to the budget's plan where a point is
    within, else the plan is left; none ever goes over a budget that was asked for. Raises BudgetError, PlanError for a
    `work` that was not measured, GatedError for a policy that is not known.
    """
    budget = resolve_budget(requested, plan, quality=quality)
    if not (work is None or isinstance(work, str)):
        raise PlanError(f"work={work!r:.40}: give the name of a kind of work, such as {', '.join(WORKS)}.")
    if policy not in ("auto", *POLICIES):
        raise GatedError(f"policy={policy!r:.40}: give auto or one of {', '.join(POLICIES)}.")
    if policy == "full" and requested == "auto":
        return Chosen(policy=policy, budget=resolve_budget(plan.total, plan, quality=quality))
    planned = Chosen(policy="plan" if budget.dropped else "full", budget=budget)
    if policy in ("full", "plan") or (policy == "auto" and requested != "auto"):
        return planned
    base = resolve_budget(plan.total, plan, quality=quality) if requested == "auto" else budget
    found = _per_token(base, rules, gates, -math.log1p(-quality), policy, work)
    if not found:
        return planned
    depth, chosen = min(found, key=lambda pair: pair[0])
    return planned if policy == "auto" and depth >= budget.depth else chosen


def _per_token(
    base: Budget, rules: Rules | None, gates: Gates | None, loss: float, policy: str, work: str | None
) -> list[tuple[float, Chosen]]:
    """What decides token by token within `loss` nats, each with its mean depth."""
    found: list[tuple[float, Chosen]] = []
    if rules is not None and policy != "gates":
        wanted = {"auto": None, "random": "hybrid"}.get(policy, policy)
        point = rules.within(loss, work, policy=wanted)  # type: ignore[arg-type]
        if point is not None:
            depths = list(point.depth.values()) if work is None else [point.depth[work]]
            # random is hybrid's control: its rates, from the same depth
            if policy == "random":
                chosen = Chosen(policy="random", budget=base, rule=point.rule.blind())
            else:
                chosen = Chosen(policy=point.policy, budget=base, rule=point.rule)
            found.append((sum(depths) / len(depths), chosen))
    if gates is not None and policy in ("auto", "gates") and (best := gates.within(loss, work)) is not None:
        found.append((best[1], Chosen(policy="gates", budget=base, thrift=best[0].thrift)))
    return found
