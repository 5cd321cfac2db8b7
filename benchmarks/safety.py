"""Ten thousand tokens under every policy (G1, G2, G5): the last layers always run, no token goes over its budget, and
the kernel's own counters agree with the reports, so a branch that a report calls skipped was not called.

The default model answers the prompts of self-instruct, eight at a time, at temperature 1 so that it keeps talking, at
budgets in turn. Counts, no times. `--tokens N` (default 10,000) for each policy.
"""

import argparse
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from benchmarks._router import DATA, SEED, table, write
from shoal.gated_llm import GatedLLM
from shoal.gated_llm.passes import MANY, KernelModel
from shoal.gated_llm.policy import SAFE_LAYERS
from shoal.gated_llm.report import Generation
from shoal.gated_llm.train.samples import read_prompts
from shoal.gated_llm.weights import DEFAULT_MODEL

Policy = Literal["full", "plan", "signals", "hybrid", "random"]
POLICIES: tuple[Policy, ...] = ("full", "plan", "signals", "hybrid", "random")
BUDGETS = (30, 28, 24, 20, 15)
NEW, AT_ONCE = 160, 8


def under(llm: GatedLLM, policy: Policy, prompts: list[str], wanted: int) -> dict[str, Any]:
    """One policy's row: what was made, what broke a promise, and how counters and reports compare."""
    assert isinstance(llm.model, KernelModel)
    before = llm.model.kernel.branch_runs.copy()
    asked = zip(itertools.cycle(prompts), itertools.cycle(BUDGETS), itertools.count(SEED))
    tokens = over = unsafe = skipped = 0
    expected = np.zeros_like(before)

    def one(job: tuple[str, int, int]) -> Generation:
        prompt, budget, seed = job
        settings: dict[str, Any] = {"max_depth": budget, "max_tokens": NEW, "seed": seed, "temperature": 1.0}
        return llm.generate(prompt, policy=policy, drafts=False, **settings)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        while tokens < wanted:
            for made in pool.map(one, itertools.islice(asked, 4 * AT_ONCE)):
                count, runs = made.usage.completion_tokens, np.array(made.depth.branch_runs)
                tokens += count
                over += sum(depth > made.depth.budget + 1e-9 for depth in made.depth.per_token)
                unsafe += int((runs[-SAFE_LAYERS:] != len(made.depth.per_token)).sum())
                skipped += int((len(made.depth.per_token) - runs).sum())
                expected += runs + made.usage.prompt_tokens - 1  # the last prompt token's pass chose the first token
    counted = llm.model.kernel.branch_runs - before
    return {
        "policy": policy,
        "tokens": tokens,
        "branches skipped": skipped,
        "tokens over budget": over,
        "last layers left out": unsafe,
        "branches called beyond the reports": int(np.abs(counted - expected).sum()),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tokens", type=int, default=10_000, help="for each policy")
    wanted = arguments.parse_args().tokens
    asked = read_prompts(DATA / "self_instruct" / "user_oriented_instructions.jsonl", 200)
    rows = []
    with GatedLLM.load(quality=0.1) as llm:
        prompts = [text for text in asked if llm.count_tokens(text) < MANY]  # longer ones are read by torch
        for policy in POLICIES:
            rows.append(under(llm, policy, prompts, wanted))
            print(rows[-1], flush=True)
    print(table(rows))
    note = (
        f"{DEFAULT_MODEL}, budgets of {', '.join(map(str, BUDGETS))} layers in turn, thresholds of up to 10% of "
        f"likelihood, temperature 1, {AT_ONCE} requests at once, prompts at full depth."
    )
    write("safety", "Promises kept over ten thousand tokens", {"note": note, "by policy": rows})
    if any(row[key] for row in rows for key in list(row)[3:]):
        raise SystemExit("a promise was broken")


if __name__ == "__main__":
    main()
