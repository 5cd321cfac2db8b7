"""Drafts on the default model (G16): latency with and without, on prompts over passages and on chats.

Every prompt is answered without drafts, by look-up alone and with the trained network beside it, in turns, in one
process on one thread; greedy, at full depth, 128 tokens at most. Time is that of the process on the processor, so that
a busy machine distorts it less; `decode` leaves out everything before the first token. Intervals: bootstrap over
prompts. What is done is kept in benchmarks/out/lossless.jsonl and not done again; `--minutes` stops early.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._router import DATA, OUT, SEED, table, write
from shoal.gated_llm import GatedLLM
from shoal.gated_llm.checkpoint import fingerprint, read_tensors
from shoal.gated_llm.draft import Draft, TrainedDraft
from shoal.gated_llm.report import Chunk
from shoal.gated_llm.request import Drafter, Work
from shoal.gated_llm.weights import DEFAULT_MODEL, locate
from shoal.router.decision import Message
from shoal.router.deep import grounded

NEW = 128
ASSET = Path(__file__).parents[1] / "gated_llm" / "assets" / f"{DEFAULT_MODEL}.draft.safetensors"
Prompts = list[tuple[str, Any]]


class Drafting(GatedLLM):
    """Answers with the drafts that `make` makes."""

    make: Callable[[], Drafter | None] = lambda: None

    def _run(self, work: Work) -> Iterator[Chunk]:
        return super()._run(replace(work, drafter=type(self).make()))


def rag_prompts(count: int) -> Prompts:
    """Questions of XQuAD over their passage, in the router's form; half English, half Chinese."""
    prompts: Prompts = []
    for language in ("en", "zh"):
        articles = json.loads((DATA / "xquad" / f"xquad.{language}.json").read_text("utf-8"))["data"]
        passages = [passage for article in articles for passage in article["paragraphs"]]
        for number in np.random.default_rng(SEED).permutation(len(passages))[: count // 2].tolist():
            text, question = passages[number]["context"], passages[number]["qas"][0]["question"]
            cited = f"[{language}-{number}, 0-{len(text)}] {text}"
            prompt = grounded([Message(role="user", content=question)], question, cited, language)
            prompts.append((f"rag {language}", prompt))
    return prompts


def chat_prompts(count: int) -> Prompts:
    """First turns of MT-bench and seed tasks of self-instruct, half each."""
    bench = DATA / "mt_bench" / "fastchat__llm_judge__data__mt_bench__question.jsonl"
    turns = [json.loads(line)["turns"][0] for line in bench.read_text("utf-8").splitlines()]
    tasks = [json.loads(line) for line in (DATA / "self_instruct" / "seed_tasks.jsonl").read_text("utf-8").splitlines()]
    seeds = [f"{task['instruction']}\n\n{task['instances'][0]['input']}".strip() for task in tasks]
    chosen: Prompts = []
    for kind, found in (("chat mt-bench", turns), ("chat self-instruct", seeds)):
        order = np.random.default_rng(SEED).permutation(len(found))[: count // 2]
        chosen += [(kind, found[i]) for i in order.tolist()]
    return chosen


def answer(llm: Drafting, prompt: Any, arm: str, make: Callable[[], Drafter | None]) -> dict[str, Any]:
    """One answer: its text, counts and processor seconds up to the first token and in all."""
    Drafting.make = make
    start, first, text, last = time.process_time(), 0.0, "", None
    for chunk in llm.stream(prompt, max_depth=llm.total, max_tokens=NEW, partition=arm):
        first = first or time.process_time() - start
        text, last = text + chunk.text, chunk
    assert last is not None
    assert last.usage is not None
    usage = last.usage
    return {
        "text": text, "tokens": usage.completion_tokens, "drafted": usage.drafted, "accepted": usage.accepted,
        "first": first, "whole": time.process_time() - start,
    }  # fmt: skip


def summary(rows: list[dict[str, Any]], arm: str) -> dict[str, Any]:
    """One line of the table: means over prompts, against no drafts."""
    plain, mine = [row["plain"] for row in rows], [row[arm] for row in rows]
    drafted, accepted = sum(a["drafted"] for a in mine), sum(a["accepted"] for a in mine)
    tokens = sum(a["tokens"] for a in mine)

    def saved(measure: Callable[[dict[str, Any]], float]) -> str:
        slow, fast = np.array([measure(a) for a in plain]), np.array([measure(a) for a in mine])
        draws = np.random.default_rng(SEED).integers(0, len(rows), (2000, len(rows)))
        low, high = np.quantile(1 - fast[draws].mean(1) / slow[draws].mean(1), [0.025, 0.975])
        return f"{1 - fast.mean() / slow.mean():.0%} ({low:.0%} to {high:.0%})"

    return {
        "drafts": arm,
        "prompts": len(rows),
        "less decode time": saved(lambda a: a["whole"] - a["first"]),
        "less whole time": saved(lambda a: a["whole"]),
        "tokens a pass": round(tokens / (tokens - accepted), 2),
        "accepted": f"{accepted / max(1, drafted):.0%}",
        "drafted tokens": drafted,
        "differing answers": sum(a["text"] != b["text"] for a, b in zip(plain, mine, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--prompts", type=int, default=60, help="of either kind")
    parser.add_argument("--asset", type=Path, default=ASSET)
    chosen = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    kept, start = OUT / "lossless.jsonl", time.monotonic()
    rows = [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.exists() else []
    pairs = zip(rag_prompts(chosen.prompts), chat_prompts(chosen.prompts), strict=True)
    prompts = [prompt for pair in pairs for prompt in pair]
    with Drafting.load(threads=1) as llm:
        weights = read_tensors(locate(DEFAULT_MODEL))
        network = TrainedDraft.load(chosen.asset, weights["model.embed_tokens.weight"], fingerprint(weights))
        ends = llm.model.config.eos
        arms: dict[str, Callable[[], Drafter | None]] = {
            "plain": lambda: None,
            "look-up": lambda: Draft(ends=ends),
            "look-up and network": lambda: Draft(network, ends=ends),
        }
        for arm, make in arms.items():
            answer(llm, "Hello, who are you?", arm, make)
        for number in range(len(rows), len(prompts)):
            if time.monotonic() - start > 60 * chosen.minutes:
                break
            kind, prompt = prompts[number]
            order = list(arms)[number % 3 :] + list(arms)[: number % 3]
            made = {arm: answer(llm, prompt, arm, arms[arm]) for arm in order}
            rows.append({"kind": kind, **made})
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1], ensure_ascii=False) + "\n")
    report: dict[str, Any] = {}
    for kind in ("rag", "chat"):
        mine = [row for row in rows if row["kind"].startswith(kind)]
        if not mine:
            raise SystemExit("No prompt of either kind was answered yet: give it more minutes.")
        report[kind] = [summary(mine, arm) for arm in arms if arm != "plain"]
        print(f"{kind}\n{table(report[kind])}\n")
    parts = sorted({row["kind"] for row in rows})
    report["parts"] = [
        {"prompts of": kind, **summary([r for r in rows if r["kind"] == kind], "look-up and network")} for kind in parts
    ]
    print(table(report["parts"]))
    write("lossless", "Lossless drafts", {"note": " ".join((__doc__ or "").split("\n\n")[1].split()), **report})


if __name__ == "__main__":
    main()
