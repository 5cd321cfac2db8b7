"""Thresholds for the per-token policies by measurement (G3): which branches, which signal, which bound.

Of a full pass every token's signals are kept, and what leaving branches out of that token alone would cost. Branches
behind the probed block are ranked by cost per layer saved and stacked into levels. For a price in nats per layer each
signal is cut into quantiles, each of which takes the level that costs least at that price. What a rule then loses is
measured anew on samples that it has not seen, token by token, where one token's holes reach the next.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import fingerprint, read_tensors
from ..config import DecoderConfig
from ..errors import GatedError
from ..gating import PREDICTED, Bound, Level, Policy, Predictor, Rule, new_gating, run_mask
from ..native import NativeDecoder, available, supports
from ..policy import SAFE_LAYERS, Branch, Plan, resolve_budget
from ..rules import Point, Rules
from ..served import find_plan
from ..signals import NAMES, Reading, Signals, Window, read
from ..tokenizer import ChatTokenizer
from ..weights import DEFAULT_MODEL, locate
from .cohort import Cohort, Seen, answers
from .samples import Sample, read_prompts, text_samples

PRICES = (0.01, 0.02, 0.03, 0.05)  # nats that a layer saved may cost
SAVED = (0.75, 1.5, 3.0, 5.0)  # layers that the levels leave out, about
PROBE = 0.13  # of the layers run before the choice
_BINS, _TINY, _RIDGE, _RANKED = 20, 0.01, 0.3, 384
_REST = 64  # judged tokens of a sample
Side = Literal["<=", ">="]
Columns = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Per token: signals by name, states of length one, and what each level would cost; `saved`: layers per level."""

    signals: Columns
    states: NDArray[np.float32]
    kl: NDArray[np.float32]
    levels: tuple[tuple[Branch, ...], ...]
    saved: NDArray[np.float64]
    probe: int


def signal_columns(cohort: Cohort, seen: Seen) -> dict[str, NDArray[np.float64]]:
    """The four signals of every token, as a chooser at full depth reads them."""
    windows = [Window() for _ in cohort.samples]
    rows: list[Signals] = []
    for at, (_, i) in enumerate(cohort.places):
        reading = Reading(state=seen.states[at], middle=seen.middles[at], gaps=seen.gaps[at])
        rows.append(read(reading, windows[i], float(seen.confidence[at])))
    return {name: np.array([getattr(row, name) for row in rows]) for name in NAMES}


def rank(cohort: Cohort, plan: Plan, probe: int) -> list[tuple[Branch, float]]:
    """Branches behind the probe with the mean cost of leaving each out of single tokens, cheapest per layer first."""
    branches: list[Branch] = [
        (kind, layer) for layer in range(probe, plan.total - SAFE_LAYERS) for kind in ("attention", "mlp")
    ]
    cost = cohort.see(probe, [run_mask(plan, [branch]) for branch in branches]).kl.mean(0)
    priced = list(zip(branches, cost.tolist(), strict=True))
    return sorted(priced, key=lambda pair: pair[1] / _layers(plan, [pair[0]]))


def levels_of(plan: Plan, order: Sequence[Branch]) -> tuple[tuple[Branch, ...], ...]:
    """Nested beginnings of `order` that leave out about `SAVED` layers each."""
    levels: list[tuple[Branch, ...]] = []
    for target in SAVED:
        size = next((n for n in range(1, len(order) + 1) if _layers(plan, order[:n]) >= target - 1e-9), len(order))
        if not levels or size > len(levels[-1]):
            levels.append(tuple(order[:size]))
    return tuple(levels)


def gather(cohort: Cohort, plan: Plan, probe: int, levels: Sequence[tuple[Branch, ...]]) -> Evidence:
    """Signals and costs of every token of the cohort."""
    seen = cohort.see(probe, [run_mask(plan, drops) for drops in levels])
    return Evidence(
        signals=signal_columns(cohort, seen),
        states=seen.states / np.linalg.norm(seen.states, axis=1, keepdims=True),
        kl=seen.kl,
        levels=tuple(levels),
        saved=np.array([_layers(plan, drops) for drops in levels]),
        probe=probe,
    )


def fit_predictor(evidence: Evidence) -> Predictor:
    """A ridge regression of the logarithm of the middle level's cost, on signals and state together."""
    usual = {name: float(np.nanmedian(column)) for name, column in evidence.signals.items()}
    columns = [np.where(np.isnan(c), usual[n], c) for n, c in evidence.signals.items()]
    x = np.concatenate([np.stack(columns, 1), evidence.states], 1)
    y = np.log(evidence.kl[:, len(evidence.levels) // 2] + _TINY)
    mean, spread = x.mean(0), x.std(0) + 1e-9
    z = (x - mean) / spread
    weight = np.linalg.solve(z.T @ z / len(z) + _RIDGE * np.eye(z.shape[1]), z.T @ (y - y.mean()) / len(z)) / spread
    n = len(NAMES)
    return Predictor(
        bias=float(y.mean() - mean @ weight),
        weights=dict(zip(NAMES, weight[:n].tolist(), strict=True)),
        usual=usual,
        readout=tuple(weight[n:].tolist()),
    )


def predictions(evidence: Evidence, predictor: Predictor) -> NDArray[np.float64]:
    """What the predictor makes of every token."""
    columns = evidence.signals
    rows = zip(*columns.values(), strict=True)
    return np.array(
        [
            predictor(Signals(**dict(zip(columns, map(float, row), strict=True))), state)
            for row, state in zip(rows, evidence.states, strict=True)
        ]
    )


def fit_rule(evidence: Evidence, columns: Columns, price: float, *, predictor: Predictor | None = None) -> Rule | None:
    """The rule that bounds every one of `columns` at the same share of tokens, None where nothing may leave."""
    sides = {name: _side(column, evidence.kl) for name, column in columns.items()}
    score = np.max([_rank(column, sides[name]) for name, column in columns.items()], axis=0)
    cuts = _cuts(score, evidence, price)
    levels, shares = list[Level](), list[float]()
    for drops, cut, deeper in zip(evidence.levels, cuts, [*cuts[1:], 0.0], strict=True):
        if cut > deeper:  # else no token would stop at this level
            bounds = {n: Bound(side=sides[n], value=_value(c, sides[n], cut)) for n, c in columns.items()}
            levels.append(Level(drops=drops, bounds=bounds))
            shares.append(float((score <= cut).mean()))
    if not levels:
        return None
    rates = tuple(share - deeper for share, deeper in zip(shares, [*shares[1:], 0.0], strict=True))
    return Rule(levels=tuple(levels), probe=evidence.probe, predictor=predictor, rates=rates)


def _side(column: NDArray[np.float64], kl: NDArray[np.float32]) -> Side:
    """On which side of its median a signal's tokens cost less."""
    low = column <= np.nanmedian(column)
    cost = kl.sum(1)
    return "<=" if cost[low].mean() <= cost[~low & ~np.isnan(column)].mean() else ">="


def _rank(column: NDArray[np.float64], side: Side) -> NDArray[np.float64]:
    """Every value's place among all, 0 to 1, the best first; what is not known comes last."""
    signed = np.where(np.isnan(column), np.inf, column if side == "<=" else -column)
    return (np.argsort(np.argsort(signed, kind="stable")) + 1) / len(signed)


def _value(column: NDArray[np.float64], side: Side, share: float) -> float:
    return float(np.nanquantile(column, share if side == "<=" else 1 - share))


def _cuts(score: NDArray[np.float64], evidence: Evidence, price: float) -> list[float]:
    """For each level the score up to which it is worth it: falling, 0 where it never is."""
    edges = np.quantile(score, np.linspace(0, 1, _BINS + 1))
    best = []
    for low, high in pairwise(edges):
        chosen = (score > low) & (score <= high) if low > edges[0] else score <= high
        gain = price * evidence.saved - evidence.kl[chosen].mean(0)
        best.append(int(gain.argmax()) + 1 if len(gain) and gain.max() > 0 else 0)
    cuts, deepest = [], list(np.minimum.accumulate(best))
    for level in range(1, len(evidence.levels) + 1):
        reached = [high for high, chosen in zip(edges[1:], deepest, strict=True) if chosen >= level]
        cuts.append(float(reached[-1]) if reached else 0.0)
    return cuts


def _layers(plan: Plan, drops: Sequence[Branch]) -> float:
    return sum(plan.attention_share if kind == "attention" else 1 - plan.attention_share for kind, _ in drops)


def candidates(evidence: Evidence, price: float) -> dict[str, tuple[Policy, Rule]]:
    """Rules at one price: each signal alone, all together, and the predictor; none where nothing may leave."""
    predictor = fit_predictor(evidence)
    found: dict[str, tuple[Policy, Rule | None]] = {
        name: ("signals", fit_rule(evidence, {name: column}, price)) for name, column in evidence.signals.items()
    }
    found["signals"] = ("signals", fit_rule(evidence, evidence.signals, price))
    forecast = {PREDICTED: predictions(evidence, predictor)}
    found["hybrid"] = ("hybrid", fit_rule(evidence, forecast, price, predictor=predictor))
    return {name: (policy, rule) for name, (policy, rule) in found.items() if rule is not None}


def measure(cohort: Cohort, plan: Plan, policy: Policy, rule: Rule) -> Point:
    """The rule with mean depth and loss by kind, on a cohort that it was not fitted on.

    A loss is never given as less than the KL, which samples of this size can miss.
    """
    full = resolve_budget(plan.total, plan, quality=0.0)
    run = cohort.replay(lambda i: new_gating(policy, plan, full, rule=rule, seed=i))
    lost = run.nll - cohort.nll
    kinds = sorted(set(cohort.kinds.tolist()))
    return Point(
        policy=policy,
        rule=rule,
        depth={kind: float(run.depth[cohort.kinds == kind].mean()) for kind in kinds},
        loss={k: float(max(lost[cohort.kinds == k].mean(), run.kl[cohort.kinds == k].mean())) for k in kinds},
    )


def check_kernel(config: DecoderConfig) -> None:
    """Raises GatedError where there is no kernel to read signals with."""
    if not (supports(config) and available()):
        raise GatedError("Thresholds are read by the native kernel: this model or this machine has none.")


def calibrate_signals(
    source: str | Path = DEFAULT_MODEL,
    *,
    text: str,
    prompts: Sequence[str],
    grounded: Sequence[str] = (),
    home: str | Path | None = None,
    samples: int = 24,
    probe: int | None = None,
    say: Callable[[str], None] = print,
) -> Rules:
    """Thresholds for `source`, at several prices. `text`: running text; `prompts` what its users ask; `grounded`
    prompts that hold a passage. `samples`: of each kind to fit on, and as many again to measure on.

    Raises GatedError where there is no native kernel for the model or too little to calibrate on.
    """
    folder = locate(source, home=home)
    config, weights = DecoderConfig.from_folder(folder), read_tensors(folder)
    check_kernel(config)
    model = fingerprint(weights)
    plan, tokenizer = find_plan(folder, config, model), ChatTokenizer(folder)
    kernel = NativeDecoder(config, weights, bits=4, kv="bf16")
    try:
        kinds = {"scoring": text_samples(tokenizer.encode_text(text[: 2 * samples * 800]), 2 * samples, rest=_REST)}
        for kind, asked in (("chat", prompts), ("grounded", grounded)):
            ids = [ids for ids in map(tokenizer.encode_prompt, asked) if len(ids) <= config.context // 2][: 2 * samples]
            kinds[kind] = answers(kernel, ids, kind=kind, ends=config.eos, rest=_REST)
        kept = {kind: [Sample(kind=kind, prefix=s.prefix, rest=s.rest) for s in found] for kind, found in kinds.items()}
        if min(len(kept["scoring"]), len(kept["chat"])) < 2:
            raise GatedError("Too little text or too few prompts to calibrate on: give more of both.")
        fitted = Cohort(kernel, [s for found in kept.values() for s in found[: (len(found) + 1) // 2]])
        unseen = Cohort(kernel, [s for found in kept.values() for s in found[(len(found) + 1) // 2 :]])
        say(f"fitting on {len(fitted.places)} tokens, measuring on {len(unseen.places)}")
        at = probe or max(1, round(PROBE * plan.total))
        small = Cohort(kernel, [Sample(kind=s.kind, prefix=s.prefix, rest=s.rest[: _RANKED // 12])
                                for s in fitted.samples[:: max(1, len(fitted.samples) // 12)]])  # fmt: skip
        order = [branch for branch, _ in rank(small, plan, at)]
        evidence = gather(fitted, plan, at, levels_of(plan, order))
        points = []
        for price in PRICES:
            for name, (policy, rule) in candidates(evidence, price).items():
                if name in ("signals", "hybrid") or price == PRICES[1]:
                    points.append(measure(unseen, plan, policy, rule))
                    shown = ", ".join(
                        f"{kind} depth {points[-1].depth[kind]:.2f} loss {loss:.4f}"
                        for kind, loss in points[-1].loss.items()
                    )
                    say(f"price {price:g} nats a layer, {name}: {shown}")
    finally:
        kernel.close()
    about = {
        "made": date.today().isoformat(),
        "model": folder.name,
        "tokens": {"fitted": len(fitted.places), "measured": len(unseen.places)},
        "units": "depth in layers, loss in nats per token against full depth",
    }
    return Rules(model_fingerprint=model, points=tuple(points), about=about)


def grounded_prompts(path: Path, limit: int) -> list[str]:
    """Question and passage as one prompt, one question per article's passage, from a SQuAD file."""
    import json

    found = []
    for article in json.loads(path.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"][:5]:
            question = paragraph["qas"][0]["question"]
            found.append(f"Answer from the passage.\n\n{paragraph['context'][:1200]}\n\n{question}")
    return found[:: max(1, len(found) // limit)][:limit]


def main() -> None:
    data = Path(os.environ.get("SHOAL_DATA", "../shared/data"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--text", type=Path, default=data / "wikitext2" / "valid.txt")
    parser.add_argument("--skip", type=int, default=400_000, help="characters at the start of the text to leave out")
    parser.add_argument("--prompts", type=Path, default=data / "self_instruct" / "user_oriented_instructions.jsonl")
    parser.add_argument("--grounded", type=Path, default=data / "squad1_du_test" / "test-v1.1.json")
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--probe", type=int, default=None)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    rules = calibrate_signals(
        chosen.model,
        text=chosen.text.read_text("utf-8")[chosen.skip :],
        prompts=read_prompts(chosen.prompts, 200)[60:],
        grounded=grounded_prompts(chosen.grounded, 100),
        samples=chosen.samples,
        probe=chosen.probe,
        say=lambda line: print(line, flush=True),
    )
    rules.write(chosen.out)
    print(f"{chosen.out}: {len(rules.points)} operating points")


if __name__ == "__main__":
    main()
