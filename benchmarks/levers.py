"""What each sampling lever does to depth and quality under the best per-token policy (G10).

The model answers MT-bench prompts at full depth with a lever set, and the same tokens are then passed again under the
policy, so that every lever is judged against full depth on its own text. Loss is nats per token, and the share is of
tokens that the policy made shallower.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks._router import DATA, SEED, table, write
from benchmarks.pareto import Bench
from shoal.gated_llm.sampler import Sampler, Sampling
from shoal.gated_llm.train.cohort import Cohort, answers
from shoal.gated_llm.train.samples import Sample, read_prompts
from shoal.gated_llm.weights import DEFAULT_MODEL
from shoal.router.policy import PROFILES, Profile

PLAIN = replace(PROFILES["balanced"], max_tokens=64)
LEVERS: dict[str, Profile] = {
    "greedy": PLAIN,
    "temperature 0.7": replace(PLAIN, temperature=0.7),
    "temperature 1.2": replace(PLAIN, temperature=1.2),
    "temperature 0.7, top_p 0.5": replace(PLAIN, temperature=0.7, top_p=0.5),
    "temperature 0.7, top_p 0.9": replace(PLAIN, temperature=0.7, top_p=0.9),
    "stop at a line's end": replace(PLAIN, stop=("\n",)),
    "anchor": replace(PLAIN, anchor=PROFILES["command"].anchor),
    **{f"profile {name}": replace(PROFILES[name], max_tokens=64) for name in ("command", "chat")},
    "profile of one's own": replace(PROFILES["command"], name="terse", stop=(".",), max_tokens=32),
}


def spoken(bench: Bench, asked: list[str], lever: Profile) -> list[Sample]:
    """Answers under a lever, cut before a stop word."""
    anchor = lever.anchor.get("en", "")
    prompts = [bench.tokenizer.encode_prompt(f"{prompt}\n{anchor}".strip()) for prompt in asked]
    samplers = [
        Sampler(
            Sampling(
                max_tokens=lever.max_tokens, temperature=lever.temperature, top_p=lever.top_p, stop=(), seed=SEED + i
            )
        )
        for i in range(len(prompts))
    ]
    choose: Callable[[int, Tensor], int] = lambda i, logits: samplers[i].choose(logits)[0]  # noqa: E731
    made = answers(bench.kernel, prompts, kind="chat", ends=bench.config.eos, rest=lever.max_tokens, choose=choose)
    return [replace(sample, rest=cut(bench, sample.rest, lever.stop)) for sample in made]


def cut(bench: Bench, ids: list[int], stop: tuple[str, ...]) -> list[int]:
    """Tokens up to the one that completes a stop word."""
    for n in range(1, len(ids) + 1):
        text = bench.tokenizer.decode(ids[:n]).lstrip()
        if any(word in text for word in stop):
            return ids[:n]
    return ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=16)
    chosen = parser.parse_args()
    bench = Bench.load()
    asked = read_prompts(DATA / "self_instruct/seed_tasks.jsonl", 100)[60 : 60 + chosen.prompts]
    best = min((p for p in bench.rules.points if p.policy == "hybrid"), key=lambda p: abs(p.loss["chat"] - 0.03))
    rows: list[dict[str, Any]] = []
    for name, lever in LEVERS.items():
        cohort = Cohort(bench.kernel, spoken(bench, asked, lever))
        run = cohort.replay(bench.chooser("hybrid", rule=best.rule))
        later = np.array([step >= 2 for step, _ in cohort.places])
        rows.append(
            {
                "lever": name,
                "tokens": len(cohort.places),
                "mean depth": round(float(run.depth.mean()), 2),
                "shallower": round(float((run.depth[later] < bench.plan.total).mean()), 3),
                "nats": round(float((run.nll - cohort.nll).mean()), 4),
                "KL": round(float(run.kl.mean()), 4),
                "top-1": round(float(run.same.mean()), 3),
            }
        )
        print(rows[-1], flush=True)
    print("\n" + table(rows))
    write(
        "levers",
        "Levers: what sampling does to depth",
        {
            "note": f"{DEFAULT_MODEL}, hybrid policy at {best.depth['chat']:.2f} layers on chats. Answers of at most "
            f"64 tokens to {chosen.prompts} prompts of self-instruct's seed tasks; `shallower`: share of tokens, after "
            "the first two, that ran fewer layers than there are; nats and KL per token against full depth on the same "
            "text.",
            "levers": rows,
            "data": "self_instruct/seed_tasks.jsonl",
        },
    )


if __name__ == "__main__":
    main()
