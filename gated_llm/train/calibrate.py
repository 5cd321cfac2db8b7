"""Makes a depth plan by measured importance (G2): which branches can leave, in which order, and what each step costs.

Greedy backward elimination: at every step each branch that is left is tried without, and the one that adds least KL to
the full model per depth saved leaves. Prefixes are read at full depth and continuations without the branches, the same
cache holes as in decoding. Losses are then measured on samples that the search did not see. The cheaper
measure, how little a block turns its input, misleads: it finds layer 11 of the default model idle, KL 2.0 without it.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checkpoint import fingerprint, read_tensors
from ..config import DecoderConfig
from ..engine import GatedLLM
from ..errors import GatedError
from ..kv import KVCache
from ..model import Decoder, RunMask
from ..policy import SAFE_LAYERS, Branch, Plan
from ..weights import DEFAULT_MODEL, locate
from .samples import Batch, Sample, batch_of, chat_samples, read_prompts, text_samples

_TOP = 256  # of the full model's tokens that KL is summed over; the others count as one
_ROWS = 512  # rows of logits in memory at once
_WIDE_EVERY, _NARROW = 5, 12  # every so many steps all branches are tried, else this many of the best so far
_SCREEN = 4  # branches are ranked on every so-manieth token, the best few on all
_FINAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Teacher:
    """The full model's view of some rows: its likeliest tokens [rows, top] and their log-probabilities, and the rest's
    [rows].
    """

    rows: Tensor
    tokens: Tensor
    logp: Tensor
    rest: Tensor


class Bench:
    """A batch whose prefix is read once at full depth; continuations are then run under any mask.

    Keeps the hidden states before every layer under the current mask, so that a trial computes only the layers from its
    branch on.
    """

    def __init__(self, decoder: Decoder, batch: Batch) -> None:
        self._decoder, self._batch = decoder, batch
        size, left = batch.prefix.shape
        self._cache: KVCache = decoder.cache(left + batch.rest.shape[1], batch=size)
        decoder.forward(batch.prefix, batch.prefix_at, self._cache, padded=True)
        self._mark = self._cache.mark()
        self._rotary = decoder.rotary(batch.rest_at)
        self._judged = (batch.targets.flatten() >= 0).nonzero().flatten()
        self._targets = batch.targets.flatten()[self._judged]
        self._mask: RunMask = ((True, True),) * decoder.config.layers
        self._inputs = [decoder.embed(batch.rest)]
        self._advance(0, self._mask)
        full = self._final(self._run(0, self._mask))
        self.all_rows = self._teach(full, self._judged)
        self.some_rows = self._teach(full, self._judged[::_SCREEN])

    def adopt(self, mask: RunMask) -> None:
        """Makes `mask` the one that trials start from."""
        first = next((i for i, (a, b) in enumerate(zip(mask, self._mask, strict=True)) if tuple(a) != tuple(b)), None)
        self._mask = mask
        if first is not None:
            self._advance(first, mask)

    def kl(self, first: int, mask: RunMask, *, screen: bool) -> float:
        """Mean KL from the full model, in nats per token, under `mask`, which equals the adopted one below layer
        `first`.
        """
        teacher = self.some_rows if screen else self.all_rows
        final = self._final(self._run(first, mask))
        total = 0.0
        for at in range(0, len(teacher.rows), _ROWS):
            part = slice(at, at + _ROWS)
            logits = self._decoder.logits(final[teacher.rows[part]])
            logq = logits.gather(1, teacher.tokens[part]) - logits.logsumexp(1, keepdim=True)
            p = teacher.logp[part].exp()
            rest_p, rest_q = teacher.rest[part], torch.log1p(-logq.exp().sum(1).clamp(max=1 - 1e-6))
            total += float((p * (teacher.logp[part] - logq)).sum() + (rest_p.exp() * (rest_p - rest_q)).sum())
        return total / len(teacher.rows)

    def nll(self, mask: RunMask) -> tuple[Tensor, Tensor]:
        """Negative log-likelihood and best token, for every judged token, under `mask`."""
        final = self._final(self._run(0, mask))[self._judged]
        losses, best = [], []
        for at in range(0, len(final), _ROWS):
            logits = self._decoder.logits(final[at : at + _ROWS])
            losses.append(F.cross_entropy(logits, self._targets[at : at + _ROWS], reduction="none"))
            best.append(logits.argmax(1))
        return torch.cat(losses), torch.cat(best)

    def _run(self, first: int, mask: RunMask) -> Tensor:
        self._cache.rewind(self._mark)
        self._cache.advance(self._batch.rest_at)
        x = self._inputs[first]
        for index in range(first, len(mask)):
            x = self._block(index, x, mask)
        return x

    def _advance(self, first: int, mask: RunMask) -> None:
        self._cache.rewind(self._mark)
        self._cache.advance(self._batch.rest_at)
        del self._inputs[first + 1 :]
        for index in range(first, len(mask) - 1):
            self._inputs.append(self._block(index, self._inputs[index], mask))

    def _block(self, index: int, x: Tensor, mask: RunMask) -> Tensor:
        attention, mlp = mask[index]
        return self._decoder.block(
            index, x, self._batch.rest_at, self._rotary, self._cache, attention, mlp, padded=True
        )

    def _final(self, x: Tensor) -> Tensor:
        return self._decoder.finish(x).view(-1, self._decoder.config.hidden)

    def _teach(self, final: Tensor, rows: Tensor) -> _Teacher:
        tokens, logps, rests = [], [], []
        for at in range(0, len(rows), _ROWS):
            logp = self._decoder.logits(final[rows[at : at + _ROWS]]).log_softmax(1)
            top, best = logp.topk(min(_TOP, logp.shape[1] - 1), dim=1)
            tokens.append(best)
            logps.append(top)
            rests.append(torch.log1p(-top.exp().sum(1).clamp(max=1 - 1e-6)))
        return _Teacher(rows=rows, tokens=torch.cat(tokens), logp=torch.cat(logps), rest=torch.cat(rests))


def without(mask: RunMask, branch: Branch) -> RunMask:
    """`mask` with one more branch left out."""
    kind, layer = branch
    attention, mlp = mask[layer]
    changed = (False, mlp) if kind == "attention" else (attention, False)
    return (*mask[:layer], changed, *mask[layer + 1 :])


def eliminate(
    bench: Bench,
    config: DecoderConfig,
    *,
    min_depth: float,
    order: list[Branch],
    step: Callable[[list[Branch], float], None],
) -> list[Branch]:
    """Extends `order` until the depth is at most `min_depth`; `step` gets the order and its KL after each branch."""
    share = {"attention": config.attention_share, "mlp": 1 - config.attention_share}
    mask: RunMask = ((True, True),) * config.layers
    for branch in order:
        mask = without(mask, branch)
    bench.adopt(mask)
    base, floor = bench.kl(0, mask, screen=True), bench.kl(0, mask, screen=False)
    left: list[Branch] = [
        (kind, layer)  # type: ignore[misc]
        for layer in range(config.layers - SAFE_LAYERS)
        for kind in share
        if (kind, layer) not in order
    ]
    price: dict[Branch, float] = {}
    depth = config.layers - sum(share[kind] for kind, _ in order)
    while depth > min_depth + 1e-9 and left:
        wide = len(order) % _WIDE_EVERY == 0 or len(price) < len(left)
        tried = left if wide else sorted(left, key=price.__getitem__)[:_NARROW]
        rough = {b: bench.kl(b[1], without(mask, b), screen=True) for b in tried}
        price |= {b: (rough[b] - base) / share[b[0]] for b in tried}
        finalists = sorted(tried, key=price.__getitem__)[:_FINAL]
        exact = {b: bench.kl(b[1], without(mask, b), screen=False) for b in finalists}
        chosen = min(finalists, key=lambda b: (exact[b] - floor) / share[b[0]])
        left.remove(chosen)
        del price[chosen]
        order.append(chosen)
        mask = without(mask, chosen)
        bench.adopt(mask)
        base, floor = rough[chosen], exact[chosen]
        depth -= share[chosen[0]]
        step(order, exact[chosen])
    return order


def measure(decoder: Decoder, samples: Sequence[Sample], order: Sequence[Branch]) -> list[dict[str, float]]:
    """For the full model and after each branch: KL, and per kind of sample the likelihood lost, in nats per token, and
    top-1 agreement.
    """
    bench = Bench(decoder, batch_of(samples))
    lengths = torch.tensor([len(sample.rest) for sample in samples])
    kinds = sorted({sample.kind for sample in samples})
    of_kind = {kind: torch.tensor([s.kind == kind for s in samples]).repeat_interleave(lengths) for kind in kinds}
    mask: RunMask = ((True, True),) * decoder.config.layers
    full, best = bench.nll(mask)
    rows = []
    for branch in (None, *order):
        if branch is not None:
            mask = without(mask, branch)
        nll, choice = bench.nll(mask)
        row = {"kl": bench.kl(0, mask, screen=False)}
        for kind, at in of_kind.items():
            row[kind] = float((nll - full)[at].mean())
            row[f"{kind}_top1"] = float((choice == best)[at].float().mean())
        rows.append({key: round(value, 6) for key, value in row.items()})
    return rows


def plan_from(
    order: Sequence[Branch],
    rows: Sequence[dict[str, float]],
    config: DecoderConfig,
    model: str,
    about: dict[str, object],
) -> Plan:
    """The plan. A point's loss is that of the kind of text that loses most, and never less than at a deeper point."""
    losses, worst = [], 0.0
    for row in rows[1:]:
        worst = max(worst, *(value for key, value in row.items() if key in ("text", "chat")))
        losses.append(worst)
    return Plan.from_order(
        list(order),
        losses,
        total=config.layers,
        attention_share=config.attention_share,
        model_fingerprint=model,
        about=about,
    )


@torch.inference_mode()
def calibrate(
    source: str | Path = DEFAULT_MODEL,
    *,
    text: str,
    prompts: Sequence[str],
    home: str | Path | None = None,
    min_share: float = 0.5,
    search: int = 14,
    held_out: int = 20,
    progress_file: Path | None = None,
    say: Callable[[str], None] = print,
) -> Plan:
    """A plan for `source` down to `min_share` of its layers.

    `text`: running text; `prompts`: what its users ask. `search` and `held_out`: samples of either kind that the search
    and the measurement use. With `progress_file` a run that was broken off goes on where it stopped. Raises GatedError
    where the text or the prompts are too few.
    """
    folder = locate(source, home=home)
    config, weights = DecoderConfig.from_folder(folder), read_tensors(folder)
    model = fingerprint(weights)
    saved = _Saved(progress_file, model)
    with GatedLLM.load(folder) as llm:
        ids = llm.tokenizer.encode_text(text[: 40 * 160 * (search + held_out)])
        samples = text_samples(ids, search + held_out)
        chats = saved.chats or chat_samples(llm, prompts, search + held_out)
    saved.chats = chats
    saved.write()
    if min(len(samples), len(chats)) < search + held_out:
        raise GatedError(
            f"{len(samples)} pieces of text and {len(chats)} prompts; {search + held_out} of each are needed."
        )
    say(f"calibrating on {search} pieces of text and {search} chats, measuring on {held_out} of each")
    decoder = Decoder(config, weights, dtype="bf16")
    started = time.monotonic()

    def step(order: list[Branch], kl: float) -> None:
        saved.order = order
        saved.write()
        share = {"attention": config.attention_share, "mlp": 1 - config.attention_share}
        depth = config.layers - sum(share[kind] for kind, _ in order)
        kind, layer = order[-1]
        say(f"{time.monotonic() - started:6.0f} s  depth {depth:5.2f}  without {kind} {layer:<3} KL {kl:.4f}")

    bench = Bench(decoder, batch_of([*samples[:search], *chats[:search]]))
    order = eliminate(bench, config, min_depth=config.layers * min_share, order=saved.order, step=step)
    del bench
    unseen = [*samples[search : search + held_out], *chats[search : search + held_out]]
    rows = measure(decoder, unseen, order)
    about: dict[str, object] = {
        "made": date.today().isoformat(),
        "model": folder.name,
        "tokens": {
            "search": sum(len(s.rest) for s in [*samples[:search], *chats[:search]]),
            "held_out": sum(len(s.rest) for s in unseen),
        },
        "units": "kl, text and chat in nats per token against full depth; top1 is agreement with it",
        "measured": rows[1:],
    }
    return plan_from(order, rows, config, model, about)


class _Saved:
    """What a run has reached, on disk."""

    def __init__(self, path: Path | None, model: str) -> None:
        self._path, self._model = path, model
        self.order: list[Branch] = []
        self.chats: list[Sample] = []
        if path is not None and path.exists():
            raw = json.loads(path.read_text("utf-8"))
            if raw["model"] == model:
                self.order = [(kind, layer) for kind, layer in raw["order"]]
                self.chats = [Sample(kind="chat", prefix=prefix, rest=rest) for prefix, rest in raw["chats"]]

    def write(self) -> None:
        if self._path is not None:
            state = {"model": self._model, "order": self.order, "chats": [(s.prefix, s.rest) for s in self.chats]}
            scratch = self._path.with_suffix(".new")
            scratch.write_text(json.dumps(state), "utf-8")
            scratch.replace(self._path)


def main() -> None:
    data = Path(os.environ.get("SHOAL_DATA", "../shared/data"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--text", type=Path, default=data / "wikitext2" / "valid.txt")
    parser.add_argument(
        "--skip", type=int, default=20_000, help="tokens at the start of the text to leave for benchmarks"
    )
    parser.add_argument("--prompts", type=Path, default=data / "self_instruct" / "user_oriented_instructions.jsonl")
    parser.add_argument("--min-share", type=float, default=0.5)
    parser.add_argument("--progress-file", type=Path, default=None)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    with GatedLLM.load(chosen.model) as llm:
        text = llm.tokenizer.decode(llm.tokenizer.encode_text(chosen.text.read_text("utf-8"))[chosen.skip :])
    plan = calibrate(
        chosen.model,
        text=text,
        prompts=read_prompts(chosen.prompts, 200),
        min_share=chosen.min_share,
        progress_file=chosen.progress_file,
        say=lambda line: print(line, flush=True),
    )
    plan.write(chosen.out)
    percent = 100 * -math.expm1(-plan.points[0].loss)
    print(
        f"{chosen.out}: {len(plan.points)} points down to depth {plan.min_depth:g}; "
        f"the first branch costs {percent:.2f}%"
    )


if __name__ == "__main__":
    main()
