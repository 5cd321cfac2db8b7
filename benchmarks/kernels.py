"""The native kernel beside transformers on the default model: speed, quality, skipping, batches, share of the floor.

Everything that is compared takes turns within a round, so that a busy machine slows all alike; a ratio is that of one
round, and its quartiles are over rounds. Speeds are the best of all rounds. The floor is a loop that only reads as many
bytes as the weights have, from memory laid out as theirs are, in the same rounds.

`--rounds N` (default 12): each takes about half a minute.
"""

import argparse
import ctypes
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._router import DATA, table, write
from shoal.gated_llm.checkpoint import read_tensors
from shoal.gated_llm.config import DecoderConfig
from shoal.gated_llm.native import NativeDecoder, NativeKV
from shoal.gated_llm.tokenizer import ChatTokenizer
from shoal.gated_llm.weights import DEFAULT_MODEL, locate

PROMPT = "Write a long story about a fishing village, its people, and the storm that changed them."
NEW = 32  # tokens per turn
DEPTHS = (30, 26, 22, 18, 15)
PROMPTS = (32, 512, 2048)
BATCHES = (1, 4, 8, 16)
WINDOWS, WINDOW = 16, 256
READ = """
#include <immintrin.h>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>
static int64_t part(const int64_t *p, size_t n) {
    int64_t s[8] = {};
    for (size_t i = 0; i < n; i += 8) {
        __builtin_prefetch(p + i + 512);
        for (int j = 0; j < 8; j++) s[j] += p[i + j];
    }
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}
extern "C" int64_t read_all(const int64_t *p, size_t n, int threads) {
    std::vector<int64_t> sums(threads);
    std::vector<std::thread> others;
    auto share = [&](int t) { sums[t] = part(p + n / 8 / threads * 8 * t, n / 8 / threads * 8); };
    for (int t = 1; t < threads; t++) others.emplace_back(share, t);
    share(0);
    for (auto &o : others) o.join();
    int64_t sum = 0;
    for (auto s : sums) sum += s;
    return sum;
}
"""
Turn = Callable[[], object]
Times = dict[str, list[float]]


def rounds(turns: Mapping[str, Turn], count: int) -> Times:
    """Seconds of every turn in every round; a first round that nobody times warms everything up."""
    took: Times = {name: [] for name in turns}
    for turn in turns.values():
        turn()
    for _ in range(count):
        for name, turn in turns.items():
            start = time.perf_counter()
            turn()
            took[name].append(time.perf_counter() - start)
    return took


def ratio(slow: Sequence[float], fast: Sequence[float]) -> str:
    """How many times faster, median and quartiles over rounds."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(slow, fast, strict=True)], n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


class Reader:
    """The floor: reads `size` bytes and adds them up."""

    def __init__(self, size: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, made = Path(folder) / "read.cpp", Path(folder) / "read.so"
            source.write_text(READ, "utf-8")
            compiler = shutil.which("g++") or "clang++"
            flags = ["-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
            subprocess.run([compiler, *flags, str(source), "-o", str(made)], check=True)
            self._read = ctypes.CDLL(str(made)).read_all
        self._read.argtypes, self._read.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int64
        self._data = np.ones(size // 8, np.int64)  # numpy asks for huge pages, as the kernel does

    def __call__(self, threads: int) -> object:
        return self._read(self._data.ctypes.data, self._data.size, threads)


class Native:
    """Greedy decoding after a prompt that is read once."""

    def __init__(self, decoder: NativeDecoder, ids: list[int], copies: int = 1) -> None:
        self.decoder, self.start, self.stores = decoder, len(ids), list[NativeKV]()
        for _ in range(copies):
            kv = decoder.new_kv(len(ids) + NEW)
            self.first = int(decoder.forward(ids, [kv] * len(ids), range(len(ids)), wanted=[len(ids) - 1]).argmax())
            self.stores.append(kv)
        self.held = self.stores[0].lengths.copy()

    def __call__(self, run: NDArray[np.uint8] | None = None) -> list[int]:
        for kv in self.stores:
            kv.truncate(self.held)
        tokens = [self.first] * len(self.stores)
        for step in range(NEW):
            places = [self.start + step] * len(self.stores)
            tokens = self.decoder.forward(tokens, self.stores, places, run).argmax(1).tolist()
        return tokens


def speed(
    hf: Mapping[str, Any], kernels: Mapping[str, NativeDecoder], ids: list[int], count: int
) -> list[dict[str, Any]]:
    """Tokens a second at batch 1, on one thread and on two."""
    rows = []
    prompt = torch.tensor([ids])
    reader = Reader(kernels["int4"].weight_bytes)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        turns: dict[str, Turn] = {"read only": lambda threads=threads: [reader(threads) for _ in range(NEW)]}
        for name, decoder in kernels.items():
            decoder.set_threads(threads)
            turns[name] = Native(decoder, ids)
        for name, model in hf.items():
            turns[name] = lambda model=model: generate(model, prompt, NEW)
        took = rounds(turns, count)
        prefill = rounds({name: lambda model=model: generate(model, prompt, 1) for name, model in hf.items()}, count)
        for name in hf:  # generate reads the prompt too: take that away
            took[name] = [whole - statistics.median(prefill[name]) for whole in took[name]]
        best = min((took[name] for name in hf), key=min)
        for name, seconds in took.items():
            rows.append(
                {
                    "threads": threads,
                    "": name,
                    "tokens/s": round(NEW / min(seconds), 1),
                    "times the best transformers": ratio(best, seconds),
                    "share of the floor": ratio(took["read only"], seconds) if name == "int4" else "",
                }
            )
    return rows


@torch.inference_mode()
def generate(model: Any, prompt: torch.Tensor, new: int) -> Any:
    return model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False)


def first_token(hf: Mapping[str, Any], kernel: NativeDecoder, count: int) -> list[dict[str, Any]]:
    """Seconds from prompt to first token."""
    rows = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        kernel.set_threads(threads)
        for length in PROMPTS:
            ids = torch.randint(100, 40_000, (length,), generator=torch.Generator().manual_seed(0)).tolist()

            def ours(ids: list[int] = ids) -> None:
                kv = kernel.new_kv(len(ids))
                for at in range(0, len(ids), 128):
                    part = range(at, min(at + 128, len(ids)))
                    kernel.forward([ids[i] for i in part], [kv] * len(part), part, wanted=[len(part) - 1])

            turns: dict[str, Turn] = {"int4": ours}
            for name, model in hf.items():
                turns[name] = lambda model=model, ids=ids: generate(model, torch.tensor([ids]), 1)
            took = rounds(turns, max(3, count // 3))
            row: dict[str, Any] = {"threads": threads, "prompt": length}
            row |= {f"{name}, s": round(min(seconds), 3) for name, seconds in took.items()}
            rows.append(row | {f"times {name}": ratio(took[name], took["int4"]) for name in hf})
    return rows


def skipping(kernel: NativeDecoder, ids: list[int], count: int) -> list[dict[str, Any]]:
    """Time per token at a depth, as a share of full depth, beside what the depth alone would say."""
    kernel.set_threads(1)
    turn, masks = Native(kernel, ids), {}
    layers = kernel.config.layers
    for depth in DEPTHS:
        masks[depth] = np.ones((layers, 2), np.uint8)
        masks[depth][3 : 3 + layers - depth] = 0
    turns: dict[str, Turn] = {str(depth): lambda mask=mask: turn(mask) for depth, mask in masks.items()}
    turns["head"] = lambda: turn(np.zeros((layers, 2), np.uint8))
    took = rounds(turns, count)
    fixed = statistics.median(a / b for a, b in zip(took["head"], took[str(layers)], strict=True))
    head = layers * fixed / (1 - fixed)  # the cost of embedding and head, in layers
    rows = []
    for depth in DEPTHS:
        shares = [a / b for a, b in zip(took[str(depth)], took[str(layers)], strict=True)]
        expected, middle = (depth + head) / (layers + head), statistics.median(shares)
        rows.append(
            {
                "depth": depth,
                "ms per token": round(1000 * min(took[str(depth)]) / NEW, 2),
                "share of full depth": round(middle, 3),
                "(d + c) / (N + c)": round(expected, 3),
                "off by": f"{middle / expected - 1:+.1%}",
                "c, layers": round(head, 1),
            }
        )
    return rows


def batches(kernel: NativeDecoder, ids: list[int], count: int) -> list[dict[str, Any]]:
    """Tokens a second over all requests; in the mixed batch every other one runs 18 layers of 30."""
    rows = []
    shallow = np.ones((kernel.config.layers, 2), np.uint8)
    shallow[3:15] = 0
    for threads in (1, 2):
        kernel.set_threads(threads)
        turns: dict[str, Turn] = {str(size): Native(kernel, ids, size) for size in BATCHES}
        mixed = np.ones((8, kernel.config.layers, 2), np.uint8)
        mixed[::2] = shallow
        eight = Native(kernel, ids, 8)
        turns["8, half of them at depth 18"] = lambda mask=mixed, eight=eight: eight(mask)
        took = rounds(turns, max(3, count // 2))
        for name, seconds in took.items():
            size = int(name.split(",")[0])
            rate = ratio([size * s for s in took["1"]], seconds)
            rows.append(
                {
                    "threads": threads,
                    "requests": name,
                    "tokens/s": round(size * NEW / min(seconds), 1),
                    "times one request": rate,
                }
            )
    return rows


@torch.inference_mode()
def quality(config: DecoderConfig, weights: Any, hf: Mapping[str, Any], ids: list[int]) -> list[dict[str, Any]]:
    """KL divergence from fp32 in nats per token, and how often the first choice is the same."""
    windows = [ids[i * WINDOW : (i + 1) * WINDOW] for i in range(WINDOWS)]
    expected = [hf["fp32"](torch.tensor([w])).logits[0].log_softmax(-1) for w in windows]

    def judge(name: str, logits: Callable[[list[int]], torch.Tensor], size: str) -> dict[str, Any]:
        kl, same = [], []
        for window, p in zip(windows, expected, strict=True):
            q = logits(window).float().log_softmax(-1)
            kl.append((p.exp() * (p - q)).sum(-1))
            same.append((p.argmax(-1) == q.argmax(-1)).float())
        divergence = torch.cat(kl)
        row = {"": name, "KL": f"{divergence.mean():.1e}", "worst KL": f"{divergence.max():.1e}"}
        return row | {"top-1 same": round(float(torch.cat(same).mean()), 4), "weights, MB": size}

    rows = [judge("transformers bf16", lambda w: hf["bf16"](torch.tensor([w])).logits[0], "269")]
    for bits, head, kv in ((4, 8, "fp32"), (4, 8, "fp16"), (4, 8, "bf16"), (8, 8, "fp16"), (4, 4, "fp16")):
        decoder = NativeDecoder(config, weights, bits=bits, head_bits=head, kv=kv)  # type: ignore[arg-type]

        def logits(window: list[int], decoder: NativeDecoder = decoder) -> torch.Tensor:
            return decoder.forward(window, [decoder.new_kv(WINDOW)] * len(window), range(len(window)))

        size = f"{decoder.weight_bytes / 1e6:.0f}"
        rows.append(judge(f"kernel: int{bits}, head int{head}, keys and values {kv}", logits, size))
        decoder.close()
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=12)
    count = arguments.parse_args().rounds
    from transformers import AutoModelForCausalLM

    folder = locate(DEFAULT_MODEL)
    config, weights, tokenizer = DecoderConfig.from_folder(folder), read_tensors(folder), ChatTokenizer(folder)
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    hf = {name: AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval() for name, dtype in dtypes.items()}
    kernels = {f"int{bits}": NativeDecoder(config, weights, bits=bits) for bits in (4, 8)}
    ids = tokenizer.encode_prompt(PROMPT)
    text = tokenizer.encode_text((DATA / "wikitext2/valid.txt").read_text("utf-8")[: 8 * WINDOWS * WINDOW])
    result = {
        "decoding": speed(hf, kernels, ids, count),
        "first token": first_token(hf, kernels["int4"], count),
        "skipping": skipping(kernels["int4"], ids, count),
        "batches": batches(kernels["int4"], ids, count),
        "quality": quality(config, weights, hf, text),
    }
    for name, rows in result.items():
        print(f"\n{name}\n{table(rows)}")
    write(
        "kernels",
        "The native kernel beside transformers",
        {
            "note": f"{DEFAULT_MODEL}; fp32 and bf16 are `transformers.generate`, int4 and int8 the kernel with an "
            f"int8 head and fp16 keys and values. Speeds: best of {count} rounds; ratios: median and quartiles. "
            "The floor only reads as many bytes as the int4 weights have. First token: prompts of random tokens. "
            f"Quality: {WINDOWS * WINDOW} tokens of WikiText-2's validation text, against fp32.",
            **result,
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "data": "wikitext2/valid.txt",
        },
    )


if __name__ == "__main__":
    main()
