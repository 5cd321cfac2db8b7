"""Plain chat beside other servers that people run on a CPU: `shoal serve`, llama-cpp-python's and `transformers serve`.

The same model on the same machine with as many threads, in one run: every round asks each server the same question, in
an order that is drawn anew, so that a busy machine slows all alike. Greedy, streamed, every question new to all; the
answer cache is off. LLAMA_PYTHON names a Python with `llama-cpp-python[server]` and LLAMA_GGUF the model's GGUF file;
`transformers[serving]` is looked for in this environment. Who is not there does not take part.

`--rounds N` (default 12), `--threads T` (default 2). About four minutes.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks._router import SEED, table
from benchmarks._service import Served, percentile, save
from shoal.gated_llm.weights import DEFAULT_MODEL, locate

NEW = 48
AT_ONCE = 4
TOPICS = ("tides", "bread", "bees", "clocks", "glass", "maps", "salt", "wool", "kites", "bells", "ink", "tin")


class Peer:
    """One server: its address, what model name it takes, and how many tokens its answer had when it does not say."""

    def __init__(self, name: str, url: str, model: str, **more: Any) -> None:
        self.name, self._model, self._more = name, model, more
        self._http = httpx.Client(base_url=url, timeout=300, trust_env=False)

    def ask(self, text: str) -> tuple[float, float, int]:
        """Seconds to the first text and to the end, and the pieces that came: one a token."""
        messages = [{"role": "user", "content": text}]
        body = {"model": self._model, "messages": messages, "max_tokens": NEW, "stream": True, "temperature": 0}
        began, first, pieces = time.perf_counter(), 0.0, 0
        with self._http.stream("POST", "/v1/chat/completions", json=body | self._more) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                choices = json.loads(line[6:]).get("choices") or [{}]
                if choices[0].get("delta", {}).get("content"):
                    pieces += 1
                    first = first or time.perf_counter() - began
        return first, time.perf_counter() - began, pieces

    def ready(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 180
        while time.monotonic() < end and process.poll() is None:
            try:
                if self._http.get("/v1/models").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.3)
        raise RuntimeError(f"{self.name} did not come up")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(command: list[str], peer: Callable[[str], Peer], port: int, threads: int) -> tuple[Peer, Any]:
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    made = peer(f"http://127.0.0.1:{port}")
    try:
        made.ready(process)
    except BaseException:
        process.kill()
        raise
    return made, process


def others(threads: int) -> list[tuple[Peer, Any]]:
    found = []
    python, gguf = os.environ.get("LLAMA_PYTHON"), os.environ.get("LLAMA_GGUF")
    if python and gguf:
        port = free_port()
        command = [python, "-m", "llama_cpp.server", "--model", gguf, "--port", str(port), "--n_ctx", "2048",
                   "--n_threads", str(threads), "--n_threads_batch", str(threads),
                   "--interrupt_requests", "false"]  # fmt: skip
        name = f"llama-cpp-python, {Path(gguf).stem.rpartition('.')[2]}"
        found.append(started(command, lambda url: Peer(name, url, "m"), port, threads))
    if find_spec("transformers") and find_spec("fastapi"):
        port, folder = free_port(), str(locate(DEFAULT_MODEL))
        command = [str(Path(sys.executable).with_name("transformers")), "serve", folder, "--port", str(port),
                   "--device", "cpu", "--log-level", "error"]  # fmt: skip
        name = f"transformers serve {version('transformers')}, float32"
        found.append(started(command, lambda url: Peer(name, url, folder), port, threads))
    return found


def one_at_a_time(peers: list[Peer], rounds: int) -> list[dict[str, Any]]:
    draw = random.Random(SEED)
    took: dict[str, list[tuple[float, float, int]]] = {peer.name: [] for peer in peers}
    for number in range(rounds + 1):
        question = f"Write a short text about {draw.choice(TOPICS)} and the number {draw.randrange(10_000)}."
        for peer in draw.sample(peers, len(peers)):
            found = peer.ask(question)
            if number:  # the first round warms
                took[peer.name].append(found)
    rows = []
    for name, each in took.items():
        rates = [(pieces - 1) / (whole - first) for first, whole, pieces in each if pieces > 1]
        first, whole = [f for f, _, _ in each], [w for _, w, _ in each]
        rows.append({"server": name, "requests": len(each), "first token p50 ms": percentile(first, 0.5),
                     "first token p99 ms": percentile(first, 0.99), "whole p50 ms": percentile(whole, 0.5),
                     "whole p99 ms": percentile(whole, 0.99),
                     "tokens/s after the first, p50": round(median(rates), 1)})  # fmt: skip
    return rows


def at_once(peers: list[Peer], rounds: int) -> list[dict[str, Any]]:
    draw = random.Random(SEED + 1)
    rates: dict[str, list[float]] = {peer.name: [] for peer in peers}
    first: dict[str, list[float]] = {peer.name: [] for peer in peers}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in range(rounds):
            questions = [f"Tell me about {draw.choice(TOPICS)} and {draw.randrange(10_000)}." for _ in range(AT_ONCE)]
            for peer in draw.sample(peers, len(peers)):
                began = time.perf_counter()
                found = list(pool.map(peer.ask, questions))
                rates[peer.name].append(sum(pieces for _, _, pieces in found) / (time.perf_counter() - began))
                first[peer.name] += [each for each, _, _ in found]
    return [
        {"server": name, "callers": AT_ONCE, "rounds": rounds, "tokens/s of all, p50": round(median(each), 1),
         "first token p50 ms": percentile(first[name], 0.5), "first token p99 ms": percentile(first[name], 0.99)}
        for name, each in rates.items()
    ]  # fmt: skip


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=12)
    arguments.add_argument("--threads", type=int, default=2)
    asked = arguments.parse_args()
    running = []
    title, note = "Plain chat beside other servers", (
        f"{DEFAULT_MODEL}, {asked.threads} threads each, greedy, up to {NEW} tokens, streamed; the servers take turns. "
        "Shoal: int8 by default, full depth, cache off, the router in front. A piece of a stream counts as a token. "
        "llama-cpp-python's server is told not to cut a stream when another request comes, as it does by default."
    )  # fmt: skip
    try:
        with Served(threads=str(asked.threads)) as served:
            peers = [Peer("shoal", served.url, "shoal", cache=False, max_depth="100%")]
            running = others(asked.threads)
            peers += [peer for peer, _ in running]
            rows = one_at_a_time(peers, asked.rounds)
            print(table(rows), flush=True)
            save("service_peers", title, note, "one at a time", rows)
            rows = at_once(peers, max(2, asked.rounds // 3))
            print(table(rows), flush=True)
            save("service_peers", title, note, "several at once", rows)
    finally:
        for _, process in running:
            process.kill()


if __name__ == "__main__":
    main()
