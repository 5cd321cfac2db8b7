"""The engine as people use it, beside what they would use instead: `transformers.generate` and llama.cpp.

Everything that is compared takes turns within a round, so that a busy machine slows all alike; a ratio is that of one
round, its quartiles are over rounds. llama.cpp joins where LLAMA_PYTHON names a Python that has llama-cpp-python and
LLAMA_GGUF the default model's GGUF file (a build without native flags: -DGGML_NATIVE=OFF and AVX2, FMA, F16C, AVX512
on). Memory is that of a fresh process each.

`--rounds N` (default 8): each takes about a minute.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import torch

from benchmarks._router import OUT, table, write
from benchmarks.kernels import generate, ratio, rounds
from shoal.gated_llm import GatedLLM
from shoal.gated_llm.weights import DEFAULT_MODEL, locate

STORY = "Write a long story about a fishing village, its people, and the storm that changed them."
NEW = 48
PROMPTS = (32, 512, 2048)
DEPTHS = (30, 26, 22, 18, 15)
BATCHES = (1, 4, 8, 16)
MEMORY = """
import resource, sys, threading
from concurrent.futures import ThreadPoolExecutor
from shoal.gated_llm import GatedLLM
edge, requests, words, new = sys.argv[1] == "edge", *map(int, sys.argv[2:])
llm = GatedLLM.load(edge=edge, dtype="int4" if edge else "auto")
with open("/proc/self/clear_refs", "w") as peak:  # from here on: what serving takes, not what loading took
    peak.write("5")
loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
with ThreadPoolExecutor(requests) as pool:
    made = list(pool.map(lambda n: llm.generate(f"{n} " + "word " * words, max_tokens=new), range(requests)))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(loaded, int(status["VmHWM"].split()[0]) >> 10, made[0].usage.prompt_tokens)
"""


class Llama:
    """llama.cpp in a process of its own."""

    def __init__(self, python: str, gguf: str) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks._llama", gguf], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, ids: Sequence[int], new: int, threads: int) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"ids": list(ids), "new": new, "threads": threads}), file=self._process.stdin, flush=True)
        answer: dict[str, float] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def prompt_of(llm: GatedLLM, tokens: int) -> str:
    """Text of exactly so many tokens, unlike any other length's so that no beginning is shared."""
    text = f"{tokens} " + "tide harbour net lantern " * tokens
    ids = llm.tokenizer.encode_prompt(text, raw=True)[:tokens]
    return llm.tokenizer.decode(ids)


class Racers:
    """Who takes part, by name; each reads the ids and makes `new` greedy tokens without ending early."""

    def __init__(self, llm: GatedLLM, hf: dict[str, Any], llama: Llama | None) -> None:
        self.llm, self.hf, self.llama = llm, hf, llama
        self.made: dict[int, int] = {}  # depth to tokens made: an answer may end of itself

    def turns(self, tokens: int, new: int, threads: int) -> dict[str, Callable[[], object]]:
        llm, text = self.llm, prompt_of(self.llm, tokens) if tokens else STORY
        ids = llm.tokenizer.encode_prompt(text, raw=bool(tokens))
        torch.set_num_threads(threads)
        llm.set_threads(threads)

        def ours(depth: int = 30) -> None:
            llm.prefix.clear()
            answer = llm.generate(text, raw=bool(tokens), max_tokens=new, max_depth=depth, drafts=False)
            self.made[depth] = answer.usage.completion_tokens

        turns: dict[str, Callable[[], object]] = {"shoal": ours}
        if new > 1:
            turns["shoal at depth 24"] = lambda: ours(24)
        for name, model in self.hf.items():
            turns[f"transformers {name}"] = lambda model=model: generate(model, torch.tensor([ids]), new)
        if self.llama is not None:
            turns["llama.cpp"] = lambda llama=self.llama: llama(ids, new, threads)
        return turns


def decoding(racers: Racers, count: int) -> list[dict[str, Any]]:
    """Tokens a second after the first, at batch 1."""
    rows = []
    for threads in (1, 2):
        whole = rounds(racers.turns(0, NEW, threads), count)
        made = dict.fromkeys(whole, NEW) | {"shoal": racers.made[30], "shoal at depth 24": racers.made[24]}
        first = rounds(racers.turns(0, 1, threads), count)
        first["shoal at depth 24"] = first["shoal"]
        took = {name: [(a - min(first[name])) / (made[name] - 1) for a in times] for name, times in whole.items()}
        best = min((took[name] for name in took if name.startswith("transformers")), key=min)
        for name, seconds in took.items():
            row: dict[str, Any] = {"threads": threads, "": name, "tokens/s": round(1 / min(seconds), 1)}
            row["times the best transformers"] = ratio(best, seconds)
            row["times llama.cpp"] = ratio(took["llama.cpp"], seconds) if "llama.cpp" in took else ""
            rows.append(row)
    return rows


def first_token(racers: Racers, count: int) -> list[dict[str, Any]]:
    """Milliseconds from prompt to first token."""
    rows = []
    for threads in (1, 2):
        for tokens in PROMPTS:
            few = max(2, 128 * count // tokens)  # llama.cpp reads 2048 tokens in half a minute
            took = rounds(racers.turns(tokens, 1, threads), min(count, few))
            row: dict[str, Any] = {"threads": threads, "prompt": tokens}
            row |= {f"{name}, ms": round(1000 * min(seconds)) for name, seconds in took.items()}
            row |= {f"times {name}": ratio(seconds, took["shoal"]) for name, seconds in took.items() if name != "shoal"}
            rows.append(row)
    return rows


def memory() -> list[dict[str, Any]]:
    """Resident MiB of fresh processes, and bytes of keys and values."""
    rows = []
    edge = [("edge", 1, 1900, 100)]
    for kind, requests, words, new in (*edge, *(("default", size, 200, 32) for size in BATCHES)):
        arguments = [kind, str(requests), str(words), str(new)]
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=True, cwd=os.getcwd()
        )
        loaded, peak, tokens = map(int, done.stdout.split())
        rows.append(
            {"profile": kind, "requests": requests, "prompt tokens each": tokens, "new": new,
             "peak while loading, MiB": loaded, "peak while serving, MiB": peak}
        )  # fmt: skip
    return rows


def kept(llm: GatedLLM) -> list[dict[str, Any]]:
    """Bytes of keys and values that a generated token adds, at the plan's depths."""
    model = llm.model
    rows = []
    for depth in DEPTHS:
        mask = llm.plan.mask(llm.resolve_budget(depth).dropped)
        stored = sum(attention for attention, _ in mask)
        row = {"depth": depth, "layers that store": stored, "KV bytes per token": stored * model.token_bytes}
        rows.append(row | {"share": round(stored / len(mask), 3)})
    return rows


def throughput(llm: GatedLLM, count: int) -> list[dict[str, Any]]:
    """Tokens a second over all requests that run at once, and what they take from one another."""
    rows = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        llm.set_threads(threads)
        made: dict[int, int] = {}

        def crowd(size: int, made: dict[int, int] = made) -> None:
            def one(n: int) -> int:
                text = f"{n}: {STORY}"
                return llm.generate(text, max_tokens=NEW, max_depth=30).usage.completion_tokens

            with ThreadPoolExecutor(size) as pool:
                made[size] = sum(pool.map(one, range(size)))

        took = rounds({str(size): lambda size=size: crowd(size) for size in BATCHES}, max(3, count // 2))
        for size in BATCHES:
            seconds = [s / made[size] for s in took[str(size)]]
            rows.append(
                {
                    "threads": threads,
                    "requests": size,
                    "tokens/s": round(1 / min(seconds), 1),
                    "times one request": ratio([s / made[1] for s in took["1"]], seconds),
                }
            )
    return rows


def save(result: dict[str, Any], count: int) -> None:
    """Writes what there is so far: a run that is cut short keeps its finished parts."""
    write(
        "engine",
        "The engine beside transformers and llama.cpp",
        {
            "note": f"{DEFAULT_MODEL}, as people call it: `GatedLLM.generate`, `transformers.generate`, and `eval` "
            f"and `sample` of llama-cpp-python on the same GGUF (Q4_1). Greedy, {NEW} tokens after a chat prompt. "
            f"Speeds: best of {count} rounds; ratios: median and quartiles over rounds. Drafts are off. Memory: fresh "
            "processes; while loading the whole checkpoint is unpacked once.",
            **result,
            "versions": {name: version(name) for name in ("torch", "transformers")} | {"llama-cpp-python": "0.3.36"},
        },
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=8)
    arguments.add_argument("--parts", nargs="*", help="run these alone; the others stay as they were")
    chosen = arguments.parse_args()
    count = chosen.rounds
    from transformers import AutoModelForCausalLM

    folder = locate(DEFAULT_MODEL)
    python, gguf = os.environ.get("LLAMA_PYTHON"), os.environ.get("LLAMA_GGUF")
    llama = Llama(python, gguf) if python and gguf else None
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    hf = {name: AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval() for name, dtype in dtypes.items()}
    with GatedLLM.load() as llm:
        racers = Racers(llm, hf, llama)
        parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
            "decoding": lambda: decoding(racers, count),
            "throughput": lambda: throughput(llm, count),
            "keys and values": lambda: kept(llm),
            "memory": memory,
            "first token": lambda: first_token(racers, count),
        }
        result: dict[str, Any] = {}
        if chosen.parts:
            before = json.loads((OUT / "engine.json").read_text(encoding="utf-8"))
            result = {name: before[name] for name in parts if name in before}
        for name in chosen.parts or parts:
            part = parts[name]
            start = time.perf_counter()
            result[name] = part()
            print(f"\n{name}, {time.perf_counter() - start:.0f} s\n{table(result[name])}", flush=True)
            save(result, count)
    if llama is not None:
        llama.close()


if __name__ == "__main__":
    main()
