"""From a request to a decision: features, classifier, guard and policy put together (R1, R2, R4). No model is run.

What a decision needs of a model is three numbers, its depths; without a model those of the default one are used.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..gated_llm.policy import Plan, resolve_budget
from .classifier import Classifier, Prediction
from .decision import Decision, MaxDepth, Request
from .deep import Deep
from .errors import InvalidRequest
from .features import Embed, Features, read
from .guard import Guard, Verdict
from .policy import PROFILES, Model, Profile, decide_budget, may_undercut, profile_named

DEFAULT_MODEL = "smollm2-135m"  # whose depths stand in where there is no model
TOTAL_WITHOUT_MODEL = 30  # its layers
QUALITY = 0.003  # the share of likelihood that `auto` may lose, as GatedLLM has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a request looks like, before policy."""

    features: Features
    prediction: Prediction
    verdict: Verdict
    profile: Profile


class Decider:
    """Reads and decides requests. Safe to use from many threads."""

    def __init__(
        self,
        embed: Embed,
        *,
        classifier: Classifier | None = None,
        guard: Guard | None = None,
        profiles: Mapping[str, Profile] = PROFILES,
    ) -> None:
        self._embed = embed
        self._classifier = classifier or Classifier.load(embed)
        self._guard = guard or Guard(embed)
        self.profiles = profiles

    def read(self, request: Request) -> Reading:
        """Features, route probabilities and the guard's verdict; raises `InvalidRequest` for an unknown profile
        or a request of nothing but a depth hint."""
        profile = profile_named(request.profile, self.profiles)
        known = self._classifier.recall(request.messages)
        features = read(request.messages) if known is None else known[0]
        if not features.text:
            raise InvalidRequest("the request is nothing but a depth hint: add what is asked", "messages")
        limited = request.max_depth not in (None, "auto")
        shallow = may_undercut(hints=features.hints, profile=profile, limited=limited)
        heard = self._guard.hear(request.messages, thorough=shallow)
        vectors = self._embed([features.focus, *heard.pieces])  # one call for both
        prediction = self._classifier.rate(request.messages, features, vectors[0]) if known is None else known[1]
        verdict = self._guard.judge(heard, vectors[1:])
        return Reading(features=features, prediction=prediction, verdict=verdict, profile=profile)

    def decide(self, request: Request, reading: Reading, llm: Deep | None) -> Decision:
        """Route and budget. Raises the model's BudgetError for a `max_depth` it does not have."""
        prediction = reading.prediction
        depths = _depths(llm)
        budget = decide_budget(
            route=prediction.route,
            depth=prediction.depth,
            hints=reading.features.hints,
            profile=reading.profile,
            model=depths,
            max_depth=_limit(request.max_depth, llm),
            guarded=reading.verdict.guarded,
        )
        look = f"looks like {prediction.likely.value} ({prediction.routes[prediction.likely]:.2f})"
        if prediction.abstained and prediction.route is not prediction.likely:
            look += f", not sure: taken as {prediction.route.value}"
        return Decision(
            route=prediction.route,
            budget=budget.layers,
            total=depths.total,
            bucket=budget.bucket,
            confidence=prediction.confidence,
            cacheable=prediction.cacheable >= 0.5,
            profile=reading.profile.name,
            reasons=(look, *budget.reasons),
            deepest=budget.deepest,
        )


def sampling(request: Request, profile: Profile) -> dict[str, Any]:
    """What the model is asked for: the request's own values, else the profile's; `seed` None where none is set."""
    held = {} if request.schema is None else {"schema": request.schema}
    return {
        **held,
        "max_tokens": request.max_tokens or profile.max_tokens,
        "temperature": profile.temperature if request.temperature is None else request.temperature,
        "top_p": profile.top_p if request.top_p is None else request.top_p,
        "stop": profile.stop if request.stop is None else request.stop,
        "seed": request.seed,
    }


def seeded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a seed: 0 where nothing is drawn, else a fresh one."""
    seed = settings["seed"]
    if seed is None:
        seed = secrets.randbits(31) if settings["temperature"] else 0
    return {**settings, "seed": seed}


def as_max_depth(budget: float, llm: Deep) -> int | str:
    """A budget in layers in the words a model takes: whole layers, "auto" or a share."""
    if budget == llm.resolve_budget("auto").depth:
        return "auto"
    return int(budget) if float(budget).is_integer() else f"{100 * budget / llm.total:.10g}%"


@cache
def _stand_in() -> Plan:
    plan = Plan.shipped(DEFAULT_MODEL)
    return plan or Plan(total=TOTAL_WITHOUT_MODEL, attention_share=0.25, model_fingerprint=DEFAULT_MODEL)


def _resolved(max_depth: int | str, llm: Deep | None) -> float:
    if llm is not None:
        return llm.resolve_budget(max_depth).depth
    return resolve_budget(max_depth, _stand_in(), quality=QUALITY).depth


def _depths(llm: Deep | None) -> Model:
    depths = llm or _stand_in()
    return Model(total=depths.total, min_depth=depths.min_depth, auto=_resolved("auto", llm))


def _limit(max_depth: MaxDepth, llm: Deep | None) -> float | None:
    """The caller's limit in layers; None where the router may choose."""
    return None if max_depth is None or max_depth == "auto" else _resolved(max_depth, llm)
