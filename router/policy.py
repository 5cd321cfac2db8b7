"""From a decision to a budget in layers (R2): hints, guiding words, anchors, profile, caller's limit, guard.

A pure function of plain data: no model, no text, no clock. Reference layer numbers are of 40 and scale to the model's
own (35 of 40 is 26 of 30). Rules, in order, each leaving its reason:

1. Wish: the depth the likely bucket needs (20, 35 or 40 of 40), raised by guiding words (15 of 40), one bucket
   shallower for a fixed answer form, the shallow bucket for words that ask for least thinking.
2. Profile: caps or lifts the wish. `<depth_hint:N>` replaces it.
3. Quality: unless the request or the profile asks for less, never below what `auto` allows on this model.
4. The caller's `max_depth` caps it.
5. Guard: on a guarded topic the floor (15 of 40) holds, whoever asked for less.
6. The model's own range, `min_depth` to `total`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked

from ..cache.bucket import bucket_of
from .decision import Route
from .errors import InvalidRequest, RouterError
from .features import Hints

REFERENCE = 40  # the model size that reference layer numbers are of
SHALLOW, MIDDLE, DEEPEST = 20, 35, 40  # upper edges of the buckets, of 40
GUIDED = 15  # layers of 40 that guiding words add
FLOOR = 15  # least layers of 40 on a guarded topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The depths a model offers, in layers. `auto` is the shallowest plan within its stated loss, else `total`."""

    total: int
    min_depth: float
    auto: float

    def __post_init__(self) -> None:
        if not 0 < self.min_depth <= self.auto <= self.total:
            raise RouterError(
                f"a model's depths must rise: 0 < min_depth {self.min_depth} <= auto {self.auto} <= total {self.total}"
            )


_Layers = Annotated[float, Field(ge=0, le=REFERENCE)]


@checked(frozen=True, slots=True, kw_only=True, config=ConfigDict(strict=True))
class Profile:
    """A way of answering, chosen per request (G10).

    `deepest` and `shallowest` are layers of 40; `trade` lets budgets go
    below what `auto` allows; the rest are sampling defaults and a line added to the prompt. Values of the wrong kind or
    out of range raise pydantic's `ValidationError`, which names the field.
    """

    name: str
    shallowest: _Layers = 0
    deepest: _Layers = DEEPEST
    trade: bool = False
    max_tokens: Annotated[int, Field(ge=1)] = 256
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    anchor: Mapping[Annotated[str, Field(pattern="^(?:en|zh)$")], str] = field(default_factory=dict)  # by language

    def __post_init__(self) -> None:
        if not 0 <= self.shallowest <= self.deepest <= REFERENCE or self.deepest < 1:
            raise RouterError(
                f"profile {self.name}: shallowest and deepest must rise from 0 to {REFERENCE}, layers of {REFERENCE}"
            )


_SHORT = {"en": "Answer exactly in the form asked for, no explanation.", "zh": "只按要求的形式回答，不要解释。"}
PROFILES: Mapping[str, Profile] = {
    "balanced": Profile(name="balanced"),
    "command": Profile(name="command", deepest=MIDDLE, trade=True, max_tokens=64, stop=("\n\n",), anchor=_SHORT),
    "chat": Profile(name="chat", shallowest=MIDDLE, max_tokens=512, temperature=0.7, top_p=0.95),
}


def profiles_of(custom: Mapping[str, Mapping[str, Any]]) -> dict[str, Profile]:
    """The built-in profiles with those of a configuration file added or changed; `base` names one to start from.

    Raises RouterError naming the profile and the field that is wrong.
    """
    known = {f.name for f in fields(Profile)} - {"name"}
    result = dict(PROFILES)
    for name, own in custom.items():
        own = dict(own)
        base = own.pop("base", name if name in PROFILES else "balanced")
        if not isinstance(base, str) or base not in PROFILES:
            raise RouterError(f"profile {name}: no base {str(base)[:40]!r}; it is one of {', '.join(sorted(PROFILES))}")
        if wrong := ", ".join(sorted(set(own) - known)):
            raise RouterError(f"profile {name}: unknown {wrong}; fields are base, {', '.join(sorted(known))}")
        if isinstance(own.get("stop"), str | list):
            own["stop"] = (own["stop"],) if isinstance(own["stop"], str) else tuple(own["stop"])
        if isinstance(own.get("anchor"), str):
            own["anchor"] = {"en": own["anchor"], "zh": own["anchor"]}
        try:
            result[name] = replace(PROFILES[base], name=name, **own)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise RouterError(f"profile {name}: {faults}") from None
    return result


def profile_named(name: str, profiles: Mapping[str, Profile] = PROFILES) -> Profile:
    """The profile of that name; raises InvalidRequest listing the names there are."""
    if name not in profiles:
        raise InvalidRequest(f"no profile {name[:40]!r}: use one of {', '.join(sorted(profiles))}", "profile")
    return profiles[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most layers any generated token may run. `auto`: nothing but the model's own `auto` decided it.

    `deepest`: what a second try may use, None for all of them: the caller's limit, a hint or the profile's cap.
    """

    layers: float
    bucket: str
    auto: bool
    reasons: tuple[str, ...]
    deepest: float | None = None


def may_undercut(*, hints: Hints, profile: Profile, limited: bool) -> bool:
    """Whether a budget may come out below the guard's floor, so that it is worth reading for a guarded topic with
    care; `limited`: the caller set a `max_depth`."""
    return limited or hints.depth is not None or profile.deepest < FLOOR


def decide_budget(
    *,
    route: Route,
    depth: Sequence[float],
    hints: Hints,
    profile: Profile,
    model: Model,
    max_depth: float | None = None,
    guarded: bool = False,
) -> Budget:
    """The budget of one request.

    `depth` are the probabilities of the shallow, middle and deep bucket; `max_depth` is the caller's limit in layers,
    already checked against the model.
    """
    reasons: list[str] = []

    def scaled(layers: float) -> float:
        return float(math.floor(layers / REFERENCE * model.total + 0.5))

    wish = scaled(_wish(route, depth, hints, reasons))
    if not scaled(profile.shallowest) <= wish <= scaled(profile.deepest):
        wish = min(max(wish, scaled(profile.shallowest)), scaled(profile.deepest))
        reasons.append(f"profile {profile.name}: {_say(wish)} layers")
    asked_less, deepest = profile.trade, scaled(profile.deepest) if profile.deepest < DEEPEST else None
    if hints.depth is not None:
        wish, asked_less, deepest = float(hints.depth), True, float(hints.depth)
        reasons.append(f"depth hint: {hints.depth} layers")
    auto = not asked_less and wish <= model.auto
    if auto:
        wish = model.auto
        reasons.append(f"auto: {_say(model.auto)} of {model.total} layers keep this model's quality")
    if max_depth is not None:
        deepest = float(max_depth) if deepest is None else min(deepest, float(max_depth))
        if max_depth < wish:
            wish, auto = float(max_depth), False
            reasons.append(f"max_depth: at most {_say(max_depth)} layers")
    if guarded and wish < scaled(FLOOR):
        wish, auto = scaled(FLOOR), False
        reasons.append(f"guarded topic: raised to {_say(wish)} layers")
    if not model.min_depth <= wish <= model.total:
        wish, auto = min(max(wish, model.min_depth), float(model.total)), False
        reasons.append(f"model's range: {_say(wish)} layers")
    bucket = bucket_of(wish, model.total)
    return Budget(layers=wish, bucket=bucket, auto=auto, reasons=tuple(reasons), deepest=deepest)


def _wish(route: Route, depth: Sequence[float], hints: Hints, reasons: list[str]) -> float:
    """Layers of 40 that the request itself calls for."""
    edges = (SHALLOW, MIDDLE, DEEPEST)
    # the shallowest bucket that is deep enough with at least 80% probability
    bucket = next(i for i in range(3) if sum(depth[: i + 1]) >= 0.8 or i == 2)
    if route is Route.DEEP and bucket == 0:
        bucket = 1
    reasons.append(f"needs the {('shallow', 'middle', 'deep')[bucket]} bucket")
    if hints.hurry:
        reasons.append("asks for little thinking")
        return SHALLOW
    if hints.anchors and not hints.guiding and bucket > 0:
        bucket -= 1
        reasons.append("fixed answer form: one bucket shallower")
    wish = edges[bucket]
    if hints.guiding:
        wish = min(DEEPEST, wish + GUIDED)
        reasons.append("guiding words: deeper")
    return wish


def _say(layers: float) -> str:
    return f"{layers:g}"
