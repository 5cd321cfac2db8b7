"""The default model's own answers, with the residual stream that chose each token: what a draft is trained on (G16).

Prompts: user turns that the model makes up at temperature 1 after its own system prompt (Magpie, Xu et al. 2024),
prompts from files, and questions over passages in the router's form. Answers are greedy, by the native kernel in
batches. Everything is written in shards; a run that was stopped goes on where it was.
"""

import json
import random
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..native import NativeDecoder, NativeKV
from ..tokenizer import ChatTokenizer, Prompt

ROWS = 24  # answers under way at once
_READ = 128  # prompt tokens read in one pass
_LIKELIEST = 400  # tokens that made-up prompts are drawn from


@dataclass(slots=True)
class _Answer:
    """One answer under way. `states[i]` chose `made[i]`: the residual stream of the token before it."""

    ids: list[int]
    kv: NativeKV
    made: list[int] = field(default_factory=list)
    states: list[NDArray[np.float32]] = field(default_factory=list)


class Writer:
    """Greedy answers to prompts, `ROWS` at a time; keys and values of what a prompt shares with the last are reused."""

    def __init__(self, kernel: NativeDecoder, most: int) -> None:
        self._kernel, self._most, self._last = kernel, most, _Answer([], kernel.new_kv(16))

    def write(self, prompts: Sequence[list[int]]) -> Iterator[_Answer]:
        waiting, rows = list(prompts)[::-1], list[_Answer]()
        while waiting or rows:
            while waiting and len(rows) < ROWS:
                rows.append(self._read(waiting.pop()))
            states = np.empty((len(rows), self._kernel.config.hidden), np.float32)
            places = [len(row.ids) + len(row.made) - 1 for row in rows]
            logits = self._kernel.forward(
                [row.made[-1] for row in rows], [row.kv for row in rows], places, states=states
            )
            for row, token, state in zip(rows, logits.argmax(1).tolist(), states, strict=True):
                row.states.append(state.copy())
                row.made.append(token)
            yield from (row for row in rows if self._over(row))
            rows = [row for row in rows if not self._over(row)]

    def _over(self, row: _Answer) -> bool:
        return row.made[-1] in self._kernel.config.eos or len(row.made) >= self._most

    def _read(self, ids: list[int]) -> _Answer:
        last = self._last
        shared = next((i for i, (a, b) in enumerate(zip(ids, last.ids, strict=False)) if a != b), len(last.ids))
        shared = min(shared, len(ids) - 1)
        kv = last.kv.copy()
        kv.truncate(np.full_like(kv.lengths, shared))
        for start in range(shared, len(ids), _READ):
            part = ids[start : start + _READ]
            states = np.empty((len(part), self._kernel.config.hidden), np.float32)
            places = range(start, start + len(part))
            logits = self._kernel.forward(part, [kv] * len(part), places, wanted=[len(part) - 1], states=states)
        self._last = _Answer(ids, kv.copy())
        return _Answer(ids, kv, [int(logits.argmax())], [states[-1]])


def made_up(kernel: NativeDecoder, head: list[int], count: int, *, most: int, seed: int) -> list[list[int]]:
    """User turns that the model writes after `head`, at temperature 1, those that end within `most` tokens."""
    random_, prompts = torch.Generator().manual_seed(seed), list[list[int]]()
    first = kernel.new_kv(len(head) + most)
    start = kernel.forward(head, [first] * len(head), range(len(head)), wanted=[len(head) - 1])
    while len(prompts) < count:
        kvs, rows = [first.copy() for _ in range(ROWS)], [list[int]() for _ in range(ROWS)]
        logits = start.expand(ROWS, -1)
        for step in range(most):
            top, ids = logits.topk(min(_LIKELIEST, logits.shape[1]), dim=1)
            chosen = ids.gather(1, top.softmax(1).multinomial(1, generator=random_))[:, 0].tolist()
            for row, token in zip(rows, chosen, strict=True):
                row.append(token)
            over = [token in kernel.config.eos for token in chosen]
            prompts += [row[:-1] for row, done in zip(rows, over, strict=True) if done and len(row) > 3]
            rows = [row for row, done in zip(rows, over, strict=True) if not done]
            kvs = [kv for kv, done in zip(kvs, over, strict=True) if not done]
            if not rows:
                break
            logits = kernel.forward([row[-1] for row in rows], kvs, [len(head) + step] * len(rows))
    return prompts[:count]


def file_prompts(data: Path, config: Mapping[str, Any]) -> list[list[Prompt]]:
    """Groups of prompts from `data`; those of a group share a beginning, so they stay in order."""
    groups: list[list[Prompt]] = []
    seed = config["seed"]
    for name in config["instructions"]:
        for line in (data / name).read_text("utf-8").rstrip("\n").split("\n"):
            row = json.loads(line)
            groups.append([f"{row['instruction']}\n\n{row['instances'][0].get('input', '')}".strip()])
    for name in config["conversations"]:
        groups += [[row["text"]] for row in json.loads((data / name).read_text("utf-8")) if row["role"] == "prompter"]
    for language, path in config["questions"].items():
        form, most = config["grounded"][language], config["longest_passage"][language]
        passages = [part for article in json.loads(_read(data / path))["data"] for part in article["paragraphs"]]
        for number, passage in enumerate(random.Random(seed).sample(passages, config["passages"][language])):
            text = passage["context"][:most]
            cited = f"[{language}-{number}, 0-{len(text)}] {text}"
            asked = passage["qas"][: config["per_passage"]]
            groups.append([form.format(passages=cited, question=question["question"]) for question in asked])
    random.Random(seed).shuffle(groups)
    return groups


def _read(path: Path) -> bytes:
    """A file, or the only member of a zip."""
    if path.suffix != ".zip":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return archive.read(archive.namelist()[0])


def collect(
    kernel: NativeDecoder, tokenizer: ChatTokenizer, data: Path, folder: Path, config: Mapping[str, Any]
) -> Iterator[Path]:
    """Writes shard after shard under `folder`, from the first that is missing; yields each.

    A shard: `tokens` int32, `states` fp16 [n, hidden] of unit mean square, `starts` of the answers; `states[i]` chose
    `tokens[i]`. `prompts` and `prompt_starts` the same way.
    """
    seed = config["seed"]
    files = file_prompts(data, config)
    made = tokenizer.encode_prompt("x")
    at = len(made) - made[::-1].index(tokenizer.encode_text("x")[0]) - 1
    head, tail = made[:at], made[at + 1 :]
    for shard in range(config["shards"]):
        path = folder / f"{shard:04d}.npz"
        if path.exists():
            continue
        per = -(-len(files) // config["shards"])
        prompts = [tokenizer.encode_prompt(p) for group in files[shard * per : (shard + 1) * per] for p in group]
        prompts = [ids for ids in prompts if len(ids) <= config["longest"]]
        own = made_up(kernel, head, config["made_up"], most=config["most_made_up"], seed=seed + shard)
        prompts += [[*head, *ids, *tail] for ids in own]
        answers = list(Writer(kernel, config["answer"]).write(prompts))
        states = np.concatenate([answer.states for answer in answers])
        states /= np.sqrt(np.mean(states**2, axis=1, keepdims=True) + kernel.config.norm_eps)
        starts = np.cumsum([0, *(len(answer.made) for answer in answers)])
        tokens = np.concatenate([answer.made for answer in answers]).astype(np.int32)
        folder.mkdir(parents=True, exist_ok=True)
        asked = np.concatenate([answer.ids for answer in answers]).astype(np.int32)
        asked_starts = np.cumsum([0, *(len(answer.ids) for answer in answers)])
        np.savez(
            folder / "part.npz", tokens=tokens, states=states.astype(np.float16), starts=starts,
            prompts=asked, prompt_starts=asked_starts,
        )  # fmt: skip
        (folder / "part.npz").rename(path)
        yield path
