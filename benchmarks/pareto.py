"""Mean depth against quality under every policy, on text and chats that nothing was fitted on; what signals cost.

Sequences go in lock-step, token by token, each under a chooser of its own, so that a policy sees the signals and the
holes that its own choices lead to. `first-N` runs the first layers and the last three. `random` leaves out what hybrid
leaves out, at its rates. Intervals are of differences between sequences, by bootstrap. Multiple choice is by
log-likelihood of an option after a question that was read at full depth.

`python -m benchmarks.pareto [quality] [stored] [choice] [cost]` runs those parts, all unless given; parts that were not
run keep their figures in benchmarks/out/.
"""

import argparse
import json
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._router import DATA, OUT, SEED, table, write
from shoal.gated_llm.checkpoint import fingerprint, read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.gates import Gates, Thrift
from shoal.gated_llm.gating import Bound, Gating, Level, Policy, Rule, new_gating
from shoal.gated_llm.native import NativeDecoder, Watch
from shoal.gated_llm.policy import SAFE_LAYERS, Branch, Plan, resolve_budget
from shoal.gated_llm.rules import Rules
from shoal.gated_llm.served import find_gates, find_plan
from shoal.gated_llm.signals import NAMES, Reading
from shoal.gated_llm.tokenizer import ChatTokenizer
from shoal.gated_llm.train.cohort import Cohort, Replay, answers
from shoal.gated_llm.train.samples import Sample, read_prompts, text_samples
from shoal.gated_llm.weights import DEFAULT_MODEL, locate

PLAN_DEPTHS, FIRST = (29.25, 28.5, 27.75), (28,)
LOSSES = (0.01, 0.03, 0.1)
THRIFTS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6)  # of learned gates
REST, ROUNDS, STRAPS = 64, 150, 1000
SETS = {
    "ARC-Easy": ("ARC-Easy__test", 4),
    "OpenBookQA": ("openbookqa__test", 4),
    "PIQA": ("piqa__test", 2),
    "BoolQ": ("boolq__test", 2),
}
Make = Callable[[int], Gating]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The default model with what was calibrated for it."""

    config: DecoderConfig
    kernel: NativeDecoder
    tokenizer: ChatTokenizer
    plan: Plan
    rules: Rules
    gates: Gates | None

    @classmethod
    def load(cls, path: Path | None = None, gates_path: Path | None = None) -> "Bench":
        folder = locate(DEFAULT_MODEL)
        config, weights = DecoderConfig.from_folder(folder), read_tensors(folder)
        rules = Rules.read(path, model_fingerprint=fingerprint(weights)) if path else Rules.shipped(folder.name)
        assert rules is not None, "no thresholds: make them with python -m shoal.gated_llm.train.signals"
        plan = find_plan(folder, config, rules.model_fingerprint)
        kernel = NativeDecoder(config, weights, bits=4, kv="bf16")
        known = rules.model_fingerprint
        gates = Gates.read(gates_path) if gates_path else find_gates(folder, config, known)
        if gates is not None:
            kernel.set_gates(gates)
        return cls(config=config, kernel=kernel, tokenizer=ChatTokenizer(folder), plan=plan, rules=rules, gates=gates)

    def chooser(
        self, policy: Policy, *, rule: Rule | None = None, dropped: int = 0, store: bool = False, whole: int = 2
    ) -> Make:
        """What makes the chooser of sequence `i`."""
        depth = math.floor(self.plan.depth_at(dropped)) if dropped else self.plan.total
        budget = resolve_budget(depth, self.plan, quality=0.0)
        exact = type(budget)(requested=depth, depth=self.plan.depth_at(dropped), total=budget.total, dropped=dropped)
        return lambda i: new_gating(policy, self.plan, exact, rule=rule, seed=SEED + i, store=store, whole=whole)


def sequences(bench: Bench, count: int) -> list[Sample]:
    """WikiText-2's test text, and the model's own greedy answers to MT-bench and self-instruct."""
    ids = bench.tokenizer.encode_text((DATA / "wikitext2/test.txt").read_text("utf-8")[: 2_000 * count])
    turns = [
        json.loads(line)["turns"][0]
        for line in (DATA / "mt_bench/fastchat__llm_judge__data__mt_bench__question.jsonl").read_text().splitlines()
    ]
    asked = [*turns[:: max(1, 2 * len(turns) // count)], *read_prompts(DATA / "self_instruct/seed_tasks.jsonl", 60)]
    prompts = [ids for ids in map(bench.tokenizer.encode_prompt, asked) if len(ids) <= 160][:count]
    chats = answers(bench.kernel, prompts, kind="chat", ends=bench.config.eos, rest=REST)
    return [*text_samples(ids, count, rest=REST), *chats]


def policies(bench: Bench) -> Iterator[tuple[str, Make]]:
    """Names as they stand in the table, and choosers."""
    plan = bench.plan
    yield "full", bench.chooser("full")
    for n in FIRST:
        drops: list[Branch] = [(k, i) for i in range(n - SAFE_LAYERS, plan.total - SAFE_LAYERS) for k in KINDS]
        order = Plan.from_order(
            drops, [0.0] * len(drops), total=plan.total, attention_share=plan.attention_share, model_fingerprint=""
        )
        budget = resolve_budget(n, order, quality=0.0)
        yield f"first {n}", lambda _, order=order, budget=budget: new_gating("plan", order, budget)  # type: ignore[misc]
    for depth in PLAN_DEPTHS:
        yield "plan", bench.chooser("plan", dropped=plan.point_for(depth))
    for point in bench.rules.points:
        names = list(point.rule.levels[0].bounds)
        alone = point.policy == "signals" and len(names) == 1
        yield names[0] if alone else point.policy, bench.chooser(point.policy, rule=point.rule)
        if point.policy == "hybrid":
            yield "random", bench.chooser("random", rule=point.rule.blind())
    whole = resolve_budget(plan.total, plan, quality=0.0)
    for thrift in THRIFTS if bench.gates is not None else ():
        given = Thrift(value=thrift)
        yield "gates", lambda _, given=given: new_gating("gates", plan, whole, thrift=given)  # type: ignore[misc]


KINDS = ("attention", "mlp")


def interval(difference: NDArray[np.float32], owners: NDArray[np.int64]) -> str:
    """Mean and 95% interval of a difference per token, resampling sequences."""
    sums = np.bincount(owners, difference)
    sizes = np.bincount(owners)
    draw = np.random.default_rng(SEED).integers(0, len(sums), (STRAPS, len(sums)))
    means = sums[draw].sum(1) / sizes[draw].sum(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return f"{difference.mean():+.4f} ({low:+.4f} to {high:+.4f})"


def quality(bench: Bench, count: int) -> dict[str, Any]:
    """The Pareto table, and hybrid against random at the same rates."""
    cohort = Cohort(bench.kernel, sequences(bench, count))
    owners = np.array([i for _, i in cohort.places])
    text = cohort.kinds == "text"
    rows, replays = [], list[tuple[str, Replay]]()
    for name, make in policies(bench):
        run = cohort.replay(make)
        replays.append((name, run))
        lost = run.nll - cohort.nll
        rows.append(
            {
                "policy": name,
                "depth": round(float(run.depth.mean()), 2),
                "nats": round(float(lost.mean()), 4),
                "text ppl": round(float(np.exp(lost[text].mean())), 3),
                "text KL": round(float(run.kl[text].mean()), 4),
                "text top-1": round(float(run.same[text].mean()), 3),
                "chat nats": round(float(lost[~text].mean()), 4),
                "chat KL": round(float(run.kl[~text].mean()), 4),
                "chat top-1": round(float(run.same[~text].mean()), 3),
            }
        )
        print(rows[-1], flush=True)
    paired = [
        {
            "depth": f"{b.depth.mean():.2f} / {a.depth.mean():.2f}",
            "nats": interval(b.nll - a.nll, owners),
            "KL": interval(b.kl - a.kl, owners),
        }
        for (name, a), (other, b) in zip(replays[1:], replays[:-1], strict=True)
        if (other, name) == ("hybrid", "random")
    ]
    by_plan = sorted((r["depth"], r["nats"]) for r in rows if r["policy"] in ("full", "plan"))
    for row in rows:
        if row["policy"] not in ("full", "plan"):
            row["plan at that depth"] = round(float(np.interp(row["depth"], *zip(*by_plan, strict=True))), 4)
    return {
        "pareto": [{**row, "plan at that depth": row.get("plan at that depth", "")} for row in rows],
        "hybrid less random, per token": paired,
        "tokens": {"text": int(text.sum()), "chat": int((~text).sum())},
        "sequences": int(owners.max()) + 1,
    }


def stored(bench: Bench, count: int) -> dict[str, Any]:
    """Keys and values of skipped attention kept, against holes in their place. Under a static plan nobody would read
    them, so this is for policies that choose per token.
    """
    cohort = Cohort(bench.kernel, sequences(bench, count))
    owners = np.array([i for _, i in cohort.places])
    rows = []
    for point in [p for p in bench.rules.points if p.policy == "hybrid"]:
        pair: tuple[tuple[Policy, Rule], ...] = (("hybrid", point.rule), ("random", point.rule.blind()))
        for policy, rule in pair:
            holes, kept = (cohort.replay(bench.chooser(policy, rule=rule, store=store)) for store in (False, True))
            rows.append(
                {
                    "policy": policy,
                    "depth": f"{holes.depth.mean():.2f} / {kept.depth.mean():.2f}",
                    "nats with holes": round(float((holes.nll - cohort.nll).mean()), 4),
                    "stored less holes, nats": interval(kept.nll - holes.nll, owners),
                    "stored less holes, KL": interval(kept.kl - holes.kl, owners),
                }
            )
            print(rows[-1], flush=True)
    return {"skipped keys and values stored": rows}


def operating(bench: Bench, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per loss allowed: the shallowest point measured here, and what the thresholds' own figures choose per work."""
    found = []
    for loss in LOSSES:
        fits = [r for r in rows if max(math.log(r["text ppl"]), r["chat nats"]) <= loss]
        best = min(fits, key=lambda r: r["depth"])
        chosen = {work: bench.rules.within(loss, work) for work in ("chat", "grounded", "scoring")}
        found.append(
            {
                "nats lost": loss,
                "percent": f"{math.expm1(loss):.1%}",
                "best here": f"{best['policy']} {best['depth']:g}",
                **{
                    work: "full" if point is None else f"{point.policy} {point.depth[work]:.2f}"
                    for work, point in chosen.items()
                },
            }
        )
    return found


def questions(path: Path, count: int, options: int) -> list[tuple[str, list[str], int]]:
    """Question, options and the right one's place, from the folder's instruction form."""
    found = []
    for row in json.loads(path.read_text("utf-8")):
        asked = row["instruction"].split("question: ", 1)[1].split("\n\nAnswer format")[0]
        if row["answer"] in ("true", "false"):
            found.append((asked.strip(), ["true", "false"], int(row["answer"] == "false")))
            continue
        question, *parts = re.split(r"\s*(?:Answer|Solution|Ending|Option)\d: ", asked)
        right = int(row["answer"][-1]) - 1
        if len(parts) == options and right < options:
            found.append((question.strip(), [part.strip() for part in parts], right))
    return random.Random(SEED).sample(found, min(count, len(found)))


def choice(bench: Bench, count: int) -> dict[str, Any]:
    """Accuracy by likelihood per token of the option, and paired differences from full depth in percent."""
    points = [p for p in bench.rules.points if p.policy == "hybrid"]
    near = [min(points, key=lambda p: abs(p.loss["scoring"] - loss)) for loss in (0.02, 0.1)]
    makers = {f"hybrid {p.depth['scoring']:.1f}": bench.chooser("hybrid", rule=p.rule, whole=0) for p in near}
    dropped = bench.plan.point_for(near[-1].depth["scoring"])
    makers[f"plan {bench.plan.depth_at(dropped):g}"] = bench.chooser("plan", dropped=dropped)
    rows = []
    for name, (file, options) in SETS.items():
        asked = questions(DATA / f"arc_boolq_obqa/dataset__{file}.json", count, options)
        right: dict[str, list[bool]] = {label: [] for label in ("full", *makers)}
        for at in range(0, len(asked), 16):
            part = asked[at : at + 16]
            cohort = Cohort(bench.kernel, [s for question in part for s in option_samples(bench, question)])
            owners = np.array([i for _, i in cohort.places])
            sizes = np.bincount(owners)
            runs = {"full": cohort.nll} | {label: cohort.replay(make).nll for label, make in makers.items()}
            for label, nll in runs.items():
                best = (np.bincount(owners, nll) / sizes).reshape(len(part), options).argmin(1)
                right[label] += (best == [answer for _, _, answer in part]).tolist()
        full = np.array(right["full"], float)
        row: dict[str, Any] = {"set": name, "items": len(asked), "chance": round(1 / options, 2)}
        row["full"] = round(float(full.mean()), 3)
        for label in makers:
            row[label] = paired_percent(np.array(right[label], float) - full)
        rows.append(row)
        print(row, flush=True)
    return {"multiple choice": rows}


def option_samples(bench: Bench, question: tuple[str, list[str], int]) -> list[Sample]:
    """One sample per option after the same question."""
    asked, options, _ = question
    prefix = bench.tokenizer.encode_text(f"Question: {asked}\nAnswer:")
    return [Sample(kind="choice", prefix=prefix, rest=bench.tokenizer.encode_text(f" {o}")) for o in options]


def paired_percent(difference: NDArray[np.float64]) -> str:
    half = 196 * float(difference.std(ddof=1)) / math.sqrt(len(difference))
    return f"{100 * difference.mean():+.1f} ± {half:.1f}"


def cost(bench: Bench) -> dict[str, Any]:
    """Time of one token at full depth as it is, in two parts, and with signals and decision; all in turn."""
    config, kernel = bench.config, bench.kernel
    probe = bench.rules.points[0].rule.probe or 1
    never = {name: Bound(side="<=", value=-1.0) for name in NAMES}
    rule = Rule(levels=(Level(drops=bench.rules.points[0].rule.levels[0].drops, bounds=never),), probe=probe)
    hybrid = next(p.rule for p in bench.rules.points if p.policy == "hybrid")
    predicting = Rule(levels=(Level(drops=rule.levels[0].drops, bounds={"residual": never["residual"]}),), probe=probe,
                      predictor=hybrid.predictor)  # fmt: skip
    prefix = bench.tokenizer.encode_text((DATA / "wikitext2/test.txt").read_text("utf-8")[:2000])[:256]
    kv = kernel.new_kv(len(prefix) + 8)
    kernel.forward(prefix, [kv] * len(prefix), range(len(prefix)), wanted=[])
    held, states = kv.lengths.copy(), np.zeros((1, config.hidden), np.float32)
    row = ([7], [kv], [len(prefix)])

    def whole(gating: Gating) -> None:
        kernel.forward(*row, gating.begin())
        gating.finish(0.5)

    def parted(gating: Gating) -> None:
        run = gating.begin()
        kernel.forward(*row, run, layers=(0, probe), states=states)
        kernel.forward(*row, run, layers=(probe, config.layers), states=states)
        gating.finish(0.5)

    def decided(gating: Gating) -> None:
        watch, run = Watch.of(config, 1, probe - 1), gating.begin()
        kernel.forward(*row, run, layers=(0, probe), states=states, watch=watch)
        run = gating.decide(Reading(state=states[0], middle=watch.middle[0], gaps=watch.gaps[0]))
        kernel.forward(*row, run, layers=(probe, config.layers), states=states)
        gating.finish(0.5)

    turns: dict[str, tuple[Callable[[Gating], None], Gating]] = {
        "one pass": (whole, bench.chooser("full")(0)),
        "one pass again": (whole, bench.chooser("full")(0)),
        "two parts": (parted, bench.chooser("full")(0)),
        "signals": (decided, bench.chooser("signals", rule=rule)(0)),
        "hybrid": (decided, bench.chooser("hybrid", rule=predicting)(0)),
    }
    took: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(ROUNDS):
        for name, (turn, gating) in turns.items():
            kv.truncate(held)
            start = time.perf_counter()
            turn(gating)
            took[name].append(time.perf_counter() - start)
    rows = []
    for name, seconds in took.items():
        low, middle, high = statistics.quantiles([a / b for a, b in zip(seconds, took["one pass"], strict=True)], n=4)
        least = min(seconds)
        rows.append(
            {
                "token": name,
                "least ms": round(1000 * least, 3),
                "ratio of least": round(least / min(took["one pass"]), 3),
                "ratio": round(middle, 3),
                "quartiles": f"{low:.3f}-{high:.3f}",
            }
        )
    print(table(rows))
    return {"cost of a token": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["quality", "stored", "choice", "cost"])
    parser.add_argument("--sequences", type=int, default=20, help="of text, and as many chats")
    parser.add_argument("--rules", type=Path, default=None, help="thresholds other than those that ship")
    parser.add_argument("--gates", type=Path, default=None, help="learned gates other than those that ship")
    parser.add_argument("--items", type=int, default=300, help="of each multiple-choice set")
    chosen = parser.parse_args()
    kept = OUT / "pareto_parts.json"
    parts: dict[str, Any] = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    bench = Bench.load(chosen.rules, chosen.gates)
    for part in chosen.parts:
        made = {"quality": lambda: quality(bench, chosen.sequences), "stored": lambda: stored(bench, chosen.sequences),
                "choice": lambda: choice(bench, chosen.items), "cost": lambda: cost(bench)}[part]()  # fmt: skip
        parts |= made
        OUT.mkdir(exist_ok=True)
        kept.write_text(json.dumps(parts), "utf-8")
    if "pareto" in parts:
        parts["operating points"] = operating(bench, parts["pareto"])
        print("\n" + table(parts["pareto"]) + "\n\n" + table(parts["operating points"]))
    write(
        "pareto",
        "Depth per token: policies against each other",
        {
            "note": f"{DEFAULT_MODEL}, plan {bench.plan.fingerprint}, int4 kernel. `nats`: likelihood lost per token "
            "against full depth, text and chats together; `text ppl`: ratio of perplexities on WikiText-2's test text; "
            "chats: the model's own greedy answers to MT-bench and self-instruct. `plan at that depth`: the static "
            "plan's nats, interpolated. Prompts and the first two tokens of an answer run whole under the per-token "
            "policies. Multiple choice: option likelihood per token, options under the policy, question at full depth; "
            "differences from full depth in percent, with 95% intervals.",
            **parts,
            "data": "wikitext2/test.txt, mt_bench, self_instruct/seed_tasks, arc_boolq_obqa",
        },
    )


if __name__ == "__main__":
    main()
