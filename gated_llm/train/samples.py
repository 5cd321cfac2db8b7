"""Token sequences to calibrate on: running text, and the model's own greedy answers to prompts.

Each has a prefix that is read at full depth and a continuation that is judged, as in decoding.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..model import Decoder
from ..tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Token ids of what is read and of what follows it."""

    kind: str
    prefix: list[int]
    rest: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples side by side: prefixes padded on the left, continuations on the right.

    `prefix`, `rest` ids and their positions (-1 is padding) [batch, seq]; `targets` the tokens that follow [batch,
    rest], -1 for none. The prefix leaves out its last token, which begins `rest`: its pass chooses the first token that
    is judged.
    """

    prefix: Tensor
    prefix_at: Tensor
    rest: Tensor
    rest_at: Tensor
    targets: Tensor


def text_samples(ids: Sequence[int], count: int, *, prefix: int = 64, rest: int = 96) -> list[Sample]:
    """`count` samples from consecutive pieces of `ids`."""
    size = prefix + rest
    starts = range(0, min(len(ids) // size, count) * size, size)
    return [
        Sample(kind="text", prefix=list(ids[at : at + prefix]), rest=list(ids[at + prefix : at + size]))
        for at in starts
    ]


@torch.inference_mode()
def chat_samples(
    decoder: Decoder,
    tokenizer: ChatTokenizer,
    prompts: Sequence[str],
    count: int,
    *,
    longest_prompt: int = 128,
    rest: int = 96,
    shortest: int = 8,
) -> list[Sample]:
    """The model's own greedy answers, at full depth, to the first `count` prompts that are short enough and get one."""
    asked = [ids for prompt in prompts if len(ids := tokenizer.encode_prompt(prompt)) <= longest_prompt]
    samples: list[Sample] = []
    while asked and len(samples) < count:
        batch, asked = asked[:count], asked[count:]
        answers = _answers(decoder, batch, rest)
        samples += [
            Sample(kind="chat", prefix=ids, rest=answer)
            for ids, answer in zip(batch, answers, strict=True)
            if len(answer) >= shortest
        ]
    return samples[:count]


def _answers(decoder: Decoder, prompts: Sequence[list[int]], most: int) -> list[list[int]]:
    """Greedy continuations, without the token that ends them."""
    longest = max(map(len, prompts))
    ids, at = torch.zeros(len(prompts), longest, dtype=torch.long), torch.full((len(prompts), longest), -1)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        at[row, longest - len(prompt) :] = torch.arange(len(prompt))
    cache = decoder.cache(longest + most, batch=len(prompts))
    made: list[list[int]] = [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    for _ in range(most):
        hidden = decoder.forward(ids, at, cache, padded=True)
        ids, at = decoder.logits(hidden[:, -1]).argmax(1, keepdim=True), at[:, -1:] + 1
        for row in list(open_rows):
            token = int(ids[row])
            if token in decoder.config.eos:
                open_rows.remove(row)
            else:
                made[row].append(token)
        if not open_rows:
            break
    return made


def read_prompts(path: Path, limit: int) -> list[str]:
    """Prompts from JSON lines with an `instruction` (and an input) or a `prompt` each, or from plain lines."""
    prompts = []
    for line in path.read_text("utf-8").split("\n"):
        if line.startswith("{"):
            row = json.loads(line)
            given = row.get("prompt") or row["instruction"]
            shown = (row.get("instances") or [{}])[0].get("input", "")
            prompts.append(f"{given}\n\n{shown}".strip())
        elif line.strip():
            prompts.append(line.strip())
    return prompts[:limit]


def batch_of(samples: Sequence[Sample]) -> Batch:
    """All samples as one padded batch."""
    left = max(len(s.prefix) for s in samples) - 1
    right = max(len(s.rest) for s in samples)
    prefix, prefix_at = torch.zeros(len(samples), left, dtype=torch.long), torch.full((len(samples), left), -1)
    rest, rest_at = torch.zeros(len(samples), right, dtype=torch.long), torch.full((len(samples), right), -1)
    targets = torch.full((len(samples), right), -1)
    for row, sample in enumerate(samples):
        n, m = len(sample.prefix) - 1, len(sample.rest)
        prefix[row, left - n :] = torch.tensor(sample.prefix[:-1])
        prefix_at[row, left - n :] = torch.arange(n)
        rest[row, :m] = torch.tensor([sample.prefix[-1], *sample.rest[:-1]])
        rest_at[row, :m] = torch.arange(n, n + m)
        targets[row, :m] = torch.tensor(sample.rest)
    return Batch(prefix=prefix, prefix_at=prefix_at, rest=rest, rest_at=rest_at, targets=targets)
