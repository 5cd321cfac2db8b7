"""Which branches run under a budget (G2, G5): pure functions of a calibrated plan.

A plan is a nested order: branches in the order in which they leave, with the depth and the measured loss after each.
Knows no model, no torch and no files beyond the plan's own.
"""

import hashlib
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

from .errors import BudgetError, GatedError, PlanError

SAFE_LAYERS = 3
Branch = tuple[Literal["attention", "mlp"], int]
_FORM = 1
_ASSETS = Path(__file__).parent / "assets"
_TEXT = re.compile(r"(\d+(?:\.\d+)?)%|(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The plan after one more branch has left: depth in layers, loss in nats per token against full depth."""

    drop: Branch
    depth: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`total` layers, the attention branch's share of a layer's cost, and points in the order of leaving."""

    total: int
    attention_share: float
    model_fingerprint: str
    points: tuple[Point, ...] = ()
    about: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.attention_share < 1:
            raise PlanError(f"The plan gives attention {self.attention_share!r} of a layer's cost, which is no share.")
        drops = [point.drop for point in self.points]
        if len(set(drops)) != len(drops):
            raise PlanError("The plan drops a branch twice: calibrate again with `shoal gates calibrate`.")
        depth, loss = float(self.total), 0.0
        for point in self.points:
            kind, layer = point.drop
            if kind not in ("attention", "mlp") or type(layer) is not int or not 0 <= layer < self.total - SAFE_LAYERS:
                raise PlanError(
                    f"The plan drops the {kind} branch of layer {layer}, which must always run or is not there: "
                    "calibrate again with `shoal gates calibrate`."
                )
            depth -= self.attention_share if kind == "attention" else 1 - self.attention_share
            if not abs(point.depth - depth) < 1e-3 or not loss <= point.loss < math.inf:
                raise PlanError(
                    f"The plan's depth or loss without the {kind} branch of layer {layer} does not follow from the "
                    "point before it: calibrate again with `shoal gates calibrate`."
                )
            loss = point.loss

    @property
    def min_depth(self) -> float:
        """The shallowest calibrated depth; `total` where nothing is calibrated."""
        return self.points[-1].depth if self.points else float(self.total)

    @property
    def fingerprint(self) -> str:
        """Changes when the order of branches changes or the plan is for another model."""
        order = ",".join(f"{kind}{layer}" for kind, layer in (point.drop for point in self.points))
        return hashlib.sha256(f"{self.model_fingerprint}:{order}".encode()).hexdigest()[:12]

    def point_for(self, depth: float) -> int:
        """How many branches must leave so that no token is deeper than `depth`."""
        if depth >= self.total:
            return 0
        return next(i for i, point in enumerate(self.points, 1) if point.depth <= depth + 1e-9)

    def point_within(self, loss: float) -> int:
        """How many branches may leave at most `loss` nats per token, taking the shallowest such point."""
        return max((i for i, point in enumerate(self.points, 1) if point.loss <= loss), default=0)

    def depth_at(self, count: int) -> float:
        """Depth once `count` branches have left."""
        return self.points[count - 1].depth if count else float(self.total)

    def mask(self, count: int) -> tuple[tuple[bool, bool], ...]:
        """One (attention, MLP) pair per layer, with the first `count` branches of the order left out."""
        gone = {point.drop for point in self.points[:count]}
        return tuple((("attention", i) not in gone, ("mlp", i) not in gone) for i in range(self.total))

    @classmethod
    def from_order(
        cls,
        order: list[Branch],
        losses: list[float],
        *,
        total: int,
        attention_share: float,
        model_fingerprint: str,
        about: Mapping[str, Any] | None = None,
    ) -> Self:
        """A plan from the order in which branches leave and the loss after each; depths follow from the share."""
        points, depth = [], float(total)
        for drop, loss in zip(order, losses, strict=True):
            depth -= attention_share if drop[0] == "attention" else 1.0 - attention_share
            points.append(Point(drop=drop, depth=round(depth, 6), loss=loss))
        return cls(
            total=total,
            attention_share=attention_share,
            model_fingerprint=model_fingerprint,
            points=tuple(points),
            about=about,
        )

    @classmethod
    def read(cls, path: Path, *, model_fingerprint: str) -> "Plan":
        """Reads a plan file. Raises PlanError when it is damaged or made for a model with another fingerprint."""

        def made(raw: Mapping[str, Any]) -> Plan:
            return cls(
                total=raw["total"],
                attention_share=raw["attention_share"],
                model_fingerprint=raw["model_fingerprint"],
                points=tuple(
                    Point(drop=(p["drop"][0], p["drop"][1]), depth=p["depth"], loss=p["loss"]) for p in raw["points"]
                ),
                about=raw["about"],
            )

        again = "`shoal gates calibrate`"
        return calibrated(path, "is not a depth plan", _FORM, made, model_fingerprint=model_fingerprint, again=again)

    @classmethod
    def shipped(cls, name: str) -> "Plan | None":
        """The plan that ships for the model of that name, None where none does; needs neither model nor torch."""
        path = _ASSETS / f"{name}.plan.json"
        if not path.exists():
            return None
        return cls.read(path, model_fingerprint=json.loads(path.read_text("utf-8"))["model_fingerprint"])

    def write(self, path: Path) -> None:
        """Writes the plan as JSON."""
        points = [{"drop": list(p.drop), "depth": p.depth, "loss": round(p.loss, 6)} for p in self.points]
        head = {
            "form": _FORM,
            "total": self.total,
            "attention_share": self.attention_share,
            "model_fingerprint": self.model_fingerprint,
            "about": dict(self.about or {}),
        }
        rows = ",\n  ".join(json.dumps(point) for point in points)
        path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "points": [\n  {rows}\n ]\n}}\n', "utf-8")


class Calibrated(Protocol):
    """What was measured on one model."""

    @property
    def model_fingerprint(self) -> str: ...


C = TypeVar("C", bound=Calibrated)


def calibrated(
    path: Path, wrong: str, form: int, made: Callable[[Mapping[str, Any]], C], *, model_fingerprint: str, again: str
) -> C:
    """What `made` reads from a JSON file of that `form`.

    Raises PlanError: that the file is `wrong`, or made for another model, and the command that makes it `again`.
    """
    try:
        raw = json.loads(path.read_text("utf-8"))
        if raw["form"] != form:
            raise ValueError(f"form {raw['form']} instead of {form}")
        found = made(raw)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, GatedError) as error:
        raise PlanError(f"{path} {wrong} ({error!r}): calibrate again with {again}.") from error
    if found.model_fingerprint != model_fingerprint:
        raise PlanError(
            f"{path} was made for model {found.model_fingerprint}, this model is {model_fingerprint}: "
            f"calibrate again with {again}."
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A budget in force. `depth`: most layers of a new token; `dropped`: how many of the plan's branches leave."""

    requested: int | str
    depth: float
    total: int
    dropped: int

    @property
    def policy(self) -> str:
        return "plan" if self.dropped else "full"


def resolve_budget(requested: object, plan: Plan, *, quality: float) -> Budget:
    """Layers as int, a share as text ("60%"), or "auto": the shallowest point that loses at most the share `quality`.

    Raises BudgetError naming the valid range.
    """
    if requested == "auto":
        dropped = plan.point_within(-math.log1p(-quality))
        return Budget(requested="auto", depth=plan.depth_at(dropped), total=plan.total, dropped=dropped)
    layers = _layers(requested, plan)
    if not 0 < layers <= plan.total:
        raise _refusal(requested, plan)
    if layers < plan.min_depth - 1e-9:
        raise _refusal(requested, plan)
    kept = requested if isinstance(requested, str) else int(layers)
    return Budget(requested=kept, depth=layers, total=plan.total, dropped=plan.point_for(layers))


def _layers(requested: object, plan: Plan) -> float:
    if isinstance(requested, str):
        match = _TEXT.fullmatch(requested.strip())
        if not match:
            raise _refusal(requested, plan)
        return plan.total * float(match[1]) / 100 if match[1] else float(match[2])
    if isinstance(requested, bool):
        raise _refusal(requested, plan)
    try:
        return float(operator.index(requested))  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        raise _refusal(requested, plan) from None


def _refusal(requested: object, plan: Plan) -> BudgetError:
    try:
        shown = repr(requested)[:24]
    except ValueError:  # an int of thousands of digits
        shown = "an endless number"
    if not plan.points:
        valid = (
            f'{plan.total}, "100%" or "auto"; this model has no depth plan yet: make one with `shoal gates calibrate`'
        )
    else:
        low = math.ceil(plan.min_depth - 1e-9)
        share = math.ceil(1000 * plan.min_depth / plan.total) / 10
        valid = f'an int from {low} to {plan.total} layers, "{share:g}%" to "100%", or "auto"'
    return BudgetError(f"max_depth={shown} is not possible on this model. Valid: {valid}.")
