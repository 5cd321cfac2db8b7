"""What depth costs and buys on the default model: time per token, perplexity and agreement; what `auto` picks.

Time: the model as `GatedLLM.load` gives it, through `stream`; every depth has an answer under way and they take turns
token by token, so that a busy machine slows all of them alike; full depth takes part twice, as its own control.
Perplexity: windows of the first tokens of WikiText-2's validation text, which the calibration left out; the first
tokens of a window are read at full depth, the others within the budget, as a prompt and its answer are. It does not
depend on the machine and is kept in benchmarks/out/ for the next run with the same plan.
"""

import json
import math
import random
import statistics
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks._router import DATA, OUT, SEED, table, write
from shoal.gated_llm import GatedLLM
from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.model import Decoder, RunMask
from shoal.gated_llm.policy import Plan, resolve_budget
from shoal.gated_llm.train.samples import batch_of, text_samples
from shoal.gated_llm.weights import DEFAULT_MODEL, locate

DEPTHS = (30, 28, 26, 24, 22, 18, 15)
QUALITIES = (0.003, 0.01, 0.03)
TOKENS, WINDOW, PREFIX = 20_000, 512, 64
ROUNDS, NEW = 300, 48
BATCH, ROWS = 8, 512
PROMPT = "Write a long story about a fishing village, its people, and the storm that changed them."


def answers(llm: GatedLLM, depth: int) -> Iterator[int]:
    """Answers to one prompt, one after the other: after each chunk, how many tokens it took."""
    while True:
        before = 0
        for chunk in llm.stream(PROMPT, max_depth=depth, max_tokens=NEW):
            made = len(chunk.depth.per_token)
            if made > before:
                yield made - before if before else 0  # the first token's time holds the prompt's
            before = made


def timings(llm: GatedLLM) -> tuple[dict[int, list[float]], list[float]]:
    """Seconds per token in every round, by depth, and those of full depth's second answer."""
    runs = [(depth, answers(llm, depth), list[float]()) for depth in (*DEPTHS, llm.total)]
    order, draw = list(runs), random.Random(SEED)
    for _ in range(ROUNDS):
        draw.shuffle(order)
        for _, run, took in order:
            start = time.perf_counter()
            made = next(run)
            if made:
                took.append((time.perf_counter() - start) / made)
    return {depth: took for depth, _, took in runs[:-1]}, runs[-1][2]


@torch.inference_mode()
def likelihoods(decoder: Decoder, ids: list[int], masks: list[RunMask]) -> list[tuple[Tensor, Tensor]]:
    """For each mask, the judged tokens' negative log-likelihood in nats and the model's first choices."""
    samples = text_samples(ids, len(ids) // WINDOW, prefix=PREFIX, rest=WINDOW - PREFIX)
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in masks]
    for at in range(0, len(samples), BATCH):
        batch = batch_of(samples[at : at + BATCH])
        cache = decoder.cache(WINDOW, batch=len(batch.prefix))
        decoder.forward(batch.prefix, batch.prefix_at, cache)
        mark = cache.mark()
        for mask, out in zip(masks, found, strict=True):
            cache.rewind(mark)
            hidden = decoder.forward(batch.rest, batch.rest_at, cache, mask).flatten(0, 1)
            targets = batch.targets.flatten()
            for row in range(0, len(hidden), ROWS):
                logits = decoder.logits(hidden[row : row + ROWS])
                loss = F.cross_entropy(logits, targets[row : row + ROWS], reduction="none")
                out.append((loss, logits.argmax(1)))
        print(f"perplexity: {min(at + BATCH, len(samples))} of {len(samples)} windows", flush=True)
    return [(torch.cat([loss for loss, _ in out]), torch.cat([best for _, best in out])) for out in found]


def quality(folder: Path, plan: Plan, ids: list[int]) -> list[dict[str, float]]:
    """Perplexity, its ratio to full depth's and agreement with it, one row per depth."""
    kept = OUT / f"depth_quality_{plan.fingerprint}.json"
    if kept.exists():
        rows: list[dict[str, float]] = json.loads(kept.read_text("utf-8"))
        return rows
    decoder = Decoder(DecoderConfig.from_folder(folder), read_tensors(folder), dtype="bf16")
    found = likelihoods(decoder, ids, [plan.mask(plan.point_for(depth)) for depth in DEPTHS])
    whole, best = found[0]
    rows = [
        {
            "perplexity": round(float(loss.mean().exp()), 2),
            "ratio": round(float((loss.mean() - whole.mean()).exp()), 3),
            "top-1": round(float((choice == best).float().mean()), 4),
        }
        for loss, choice in found
    ]
    OUT.mkdir(exist_ok=True)
    kept.write_text(json.dumps(rows), "utf-8")
    return rows


def branches(plan: Plan) -> list[dict[str, Any]]:
    """Per budget, the branches that the plan runs: a digit per layer, 1 where it runs."""
    masks = {depth: plan.mask(plan.point_for(depth)) for depth in DEPTHS}
    return [
        {
            "depth": plan.depth_at(plan.point_for(depth)),
            **{kind: "".join(str(int(pair[i])) for pair in mask) for i, kind in enumerate(("attention", "mlp"))},
        }
        for depth, mask in masks.items()
    ]


def main() -> None:
    folder = locate(DEFAULT_MODEL)
    with GatedLLM.load(folder) as llm:
        plan, passes = llm.plan, type(llm.model).__name__
        ids = llm.tokenizer.encode_text((DATA / "wikitext2/valid.txt").read_text("utf-8"))[:TOKENS]
        seconds, full = timings(llm)
    unit, rows = statistics.median(full), []
    for depth, measured in zip(DEPTHS, quality(folder, plan, ids), strict=True):
        ran = plan.depth_at(plan.point_for(depth))
        low, middle, high = (q / unit for q in statistics.quantiles(seconds[depth], n=4))
        rows.append(
            {
                "max_depth": depth,
                "depth run": ran,
                "layers": round(ran / plan.total, 3),
                "time": round(middle, 3),
                "time quartiles": f"{low:.3f}-{high:.3f}",
                **measured,
            }
        )
    slope, fixed = statistics.linear_regression([row["layers"] for row in rows], [row["time"] for row in rows])
    auto = []
    for share in QUALITIES:
        budget = resolve_budget("auto", plan, quality=share)
        auto.append({"may lose": f"{share:.1%}", "auto chooses": budget.depth, "branches dropped": budget.dropped})
    first = -math.expm1(-plan.points[0].loss)
    print(
        "\n"
        + table(rows)
        + f"\n\nfull depth: {1000 * unit:.1f} ms per token, {passes}; time = {fixed:.2f} + {slope:.2f} x layers\n\n"
        + table(auto)
    )
    print(f"the plan's first branch alone costs {first:.1%} of likelihood")
    write(
        "depth",
        "Depth: what it costs and what it buys",
        {
            "note": f"{DEFAULT_MODEL}, plan {plan.fingerprint}. `layers` and `time` are shares of full depth; time is "
            f"the median over {len(full)} tokens, all depths in turn, against a second answer at full depth "
            f"({1000 * unit:.1f} ms per token, {passes}). A line through it: {fixed:.2f} + {slope:.2f} per share of "
            "layers; "
            f"the constant is what every token pays, the output matrix above all. Perplexity (bf16), its ratio and "
            f"agreement in the first choice with full depth: windows of {WINDOW} from the first {TOKENS} tokens of "
            f"WikiText-2's validation text, which the calibration left out; the first {PREFIX} tokens of each are read "
            f"at full depth and not judged. `auto` stays at full depth where the plan's first step costs more than it "
            f"may lose: here {first:.1%} of likelihood.",
            "depths": rows,
            "auto": auto,
            "drawn": {"ran": branches(plan)},
            "versions": {"torch": version("torch")},
            "data": "wikitext2/valid.txt",
        },
    )


if __name__ == "__main__":
    main()
