"""How the service normally behaves (S4): distributions over recorded queries, alert rules at mean ± 2 sigma, drift.

Pure but for `record`, which asks the router. Stores numbers only, never a prompt or an answer.
"""

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

from .decision import Answer, Prompt, Request
from .errors import NoModel, Refused, RouterError

VERSION = 2
SAMPLES = Path(__file__).parent / "assets" / "sample_queries.json"
SIGMAS = 2.0
MEASURES = ("depth", "skip_rate", "latency_ms", "layer_tokens")
# what Prometheus has of a measure, as a mean over ten minutes
QUERIES = {
    "depth": "rate(shoal_depth_layers_sum[10m]) / rate(shoal_depth_layers_count[10m])",
    "skip_rate": "rate(shoal_skip_rate_sum[10m]) / rate(shoal_skip_rate_count[10m])",
    "latency_ms": "1000 * rate(shoal_answer_seconds_sum[10m]) / rate(shoal_answer_seconds_count[10m])",
}


class BadBaseline(RouterError, ValueError):
    """A baseline cannot be made or read; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution: mean, standard deviation, and 21 quantiles from the least value to the largest in steps of 5%."""

    mean: float
    sigma: float
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        ordered, n = sorted(values), len(values)
        mean = math.fsum(values) / n
        sigma = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / n)
        return cls(mean=mean, sigma=sigma, quantiles=tuple(ordered[round(i * (n - 1) / 20)] for i in range(21)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """`spreads` by measure (depth in layers, skip rate 0 to 1, ms to the answer, layer-tokens), `routes` as shares."""

    n: int
    model: str
    spreads: dict[str, Spread]
    routes: dict[str, float]
    tiers: dict[str, float]
    version: int = field(default=VERSION)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises `BadBaseline` for a file that is not one of these."""
        try:
            raw = json.loads(path.read_text("utf-8"))
            if raw["version"] != VERSION:
                raise BadBaseline(f"{path} has another version than {VERSION}: record it again")
            spreads = {
                name: Spread(**{**spread, "quantiles": tuple(spread["quantiles"])})
                for name, spread in raw.pop("spreads").items()
            }
            return cls(**raw, spreads=spreads)
        except BadBaseline:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadBaseline(f"{path} is not a baseline: record one with `shoal baseline record`") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Something that is not where the baseline has it. `by` in its own unit; `sigmas` is None for shares."""

    what: str
    was: float
    now: float
    sigmas: float | None

    @property
    def by(self) -> float:
        return self.now - self.was


def sample_queries() -> list[str]:
    """A thousand made-up queries, half of them Chinese, of every kind that the router tells apart; always the same."""
    kinds = json.loads(SAMPLES.read_text("utf-8")).values()
    queries = [text.format(topic) for kind in kinds for text in kind["templates"] for topic in kind["topics"]]
    random.Random(0).shuffle(queries)
    return queries


def record(
    ask: Callable[[Request], Answer],
    prompts: Iterable[Prompt],
    *,
    n: int = 1000,
    model: str,
    skip_rate: Callable[[float], float],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Baseline:
    """Asks the first `n` prompts and keeps how the answers were made; one that gets none counts as route `none`.

    Raises `BadBaseline` when there are no answers.
    """
    values: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    routes, tiers = Counter[str](), Counter[str]()
    tenant = f"baseline-{token_hex(4)}"  # its repeats may hit the cache, but not what an earlier run left there
    for done, prompt in enumerate(prompts):
        if done == n:
            break
        progress(done + 1, n)
        try:
            trace = ask(Request.of(prompt, tenant=tenant)).trace
        except (Refused, NoModel):
            routes["none"] += 1
            continue
        depth = float(trace.depth["max"])
        for measure, value in zip(
            MEASURES, (depth, skip_rate(depth), trace.latency_ms, trace.layer_tokens), strict=True
        ):
            values[measure].append(value)
        routes[trace.route.value] += 1
        tiers[trace.tier or "miss"] += 1
    count = len(values["depth"])
    if not count:
        raise BadBaseline("there are no queries that were answered to record a baseline from")
    return Baseline(
        n=count,
        model=model,
        spreads={measure: Spread.of(each) for measure, each in values.items()},
        routes={route: routes[route] / routes.total() for route in sorted(routes)},
        tiers={tier: tiers[tier] / count for tier in sorted(tiers)},
    )


def compare(was: Baseline, now: Baseline, *, sigmas: float = SIGMAS, share: float = 0.10) -> list[Moved]:
    """What moved, largest first: means by over `sigmas` of the baseline's standard error, shares by over `share`."""
    moved = []
    for measure, spread in was.spreads.items():
        mean = now.spreads[measure].mean
        distance = (mean - spread.mean) / max(spread.sigma / math.sqrt(now.n), 1e-9)
        if abs(distance) > sigmas and abs(mean - spread.mean) > 1e-6:
            moved.append(Moved(what=measure, was=spread.mean, now=mean, sigmas=distance))
    for kind in ("routes", "tiers"):
        old, new = getattr(was, kind), getattr(now, kind)
        shares = [(name, old.get(name, 0.0), new.get(name, 0.0)) for name in sorted({*old, *new})]
        moved += [
            Moved(what=f"{kind}: {name}", was=before, now=after, sigmas=None)
            for name, before, after in shares
            if abs(after - before) > share
        ]
    return sorted(moved, key=lambda m: -abs(m.sigmas or math.inf))


def rules(baseline: Baseline, *, sigmas: float = SIGMAS) -> str:
    """Prometheus alert rules (YAML): each measured mean outside mean ± `sigmas` sigma for ten minutes."""
    groups = [_rule(measure, baseline.spreads[measure], sigmas) for measure in QUERIES]
    return (
        json.dumps({"groups": [{"name": "shoal-baseline", "rules": [r for g in groups for r in g]}]}, indent=2) + "\n"
    )


def _rule(measure: str, spread: Spread, sigmas: float) -> list[dict[str, Any]]:
    low, high = max(0.0, spread.mean - sigmas * spread.sigma), spread.mean + sigmas * spread.sigma
    name = "".join(part.capitalize() for part in measure.split("_"))
    rows = [("High", ">", high)] + ([("Low", "<", low)] if low > 0 else [])
    return [
        {
            "alert": f"Shoal{name}{side}",
            "expr": f"{QUERIES[measure]} {sign} {edge:.6g}",
            "for": "10m",
            "labels": {"severity": "warning"},
            "annotations": {"summary": f"{measure} is {side.lower()}: baseline {spread.mean:.4g}, edge {edge:.4g}"},
        }
        for side, sign, edge in rows
    ]
