"""Many sequences in lock-step, each under a chooser of its own, against the full model (G3).

Prefixes are read at full depth and continuations token by token, as in decoding: a chooser sees the signals that its
own choices led to, and skipped tokens leave the same holes. Rows of different sequences share a pass, which changes no
result and takes a quarter of the time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..gating import Gating, Mask
from ..native import Gated, NativeDecoder, NativeKV, Watch
from ..signals import Reading
from .samples import Sample

_TOP = 256  # of the full model's tokens that KL is summed over; the others count as one
_READ = 256  # prefix tokens per pass
_SHORTEST = 4  # tokens of an answer worth judging
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Per token, in the order of `Cohort.places`: `nll` of the text's token, `kl` from the full model, both in nats,
    whether the first choice is the same, and `depth` in layers."""

    nll: Floats
    kl: Floats
    same: NDArray[np.bool_]
    depth: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Teacher:
    """The full model after the tokens of one step: likeliest tokens [rows, top], log-probabilities, and the rest's."""

    best: Tensor
    tokens: Tensor
    logp: Tensor
    rest: Tensor
    nll: Tensor

    def judge(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Negative log-likelihood, KL and agreement, each [rows], of other logits [rows, vocab]."""
        total = logits.logsumexp(1, keepdim=True)
        logq = logits.gather(1, self.tokens) - total
        rest = torch.log1p(-logq.exp().sum(1).clamp(max=1 - 1e-6))
        kl = (self.logp.exp() * (self.logp - logq)).sum(1) + self.rest.exp() * (self.rest - rest)
        nll = total[:, 0] - logits.gather(1, targets[:, None])[:, 0]
        return nll, kl.clamp(min=0), logits.argmax(1) == self.best


def _teach(logits: Tensor, targets: Tensor) -> _Teacher:
    logp = logits.log_softmax(1)
    top, tokens = logp.topk(min(_TOP, logp.shape[1] - 1), dim=1)
    return _Teacher(
        best=tokens[:, 0],
        tokens=tokens,
        logp=top,
        rest=torch.log1p(-top.exp().sum(1).clamp(max=1 - 1e-6)),
        nll=F.nll_loss(logp, targets, reduction="none"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a full pass leaves of a watched block, per token, and the losses of skipping at that token alone.

    `states`, `middles` [tokens, hidden], `gaps` [tokens, heads], `confidence` [tokens] of the token before (NaN for the
    first), `kl` [tokens, masks].
    """

    states: Floats
    middles: Floats
    gaps: Floats
    confidence: Floats
    kl: Floats


def answers(
    kernel: NativeDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    kind: str,
    ends: frozenset[int],
    rest: int = 96,
    choose: Callable[[int, Tensor], int] = lambda index, logits: int(logits.argmax()),
) -> list[Sample]:
    """The model's own answers at full depth to token ids of prompts, as samples; those under 4 tokens are left out.

    `choose` picks a token for prompt `index` from logits [vocab]; greedy unless given.
    """
    kvs = [_prefix(kernel, ids, rest) for ids in prompts]
    made: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))
    for _ in range(rest):
        ids = [made[i][-1] if made[i] else prompts[i][-1] for i in live]
        places = [len(prompts[i]) - 1 + len(made[i]) for i in live]
        logits = kernel.forward(ids, [kvs[i] for i in live], places)
        for row, i in enumerate(live):
            made[i].append(choose(i, logits[row]))
        live = [i for i in live if made[i][-1] not in ends]
        if not live:
            break
    return [
        Sample(kind=kind, prefix=list(ids), rest=rest_of)
        for ids, rest_of in zip(prompts, made, strict=True)
        if len(rest_of) >= _SHORTEST
    ]


def _prefix(kernel: NativeDecoder, ids: Sequence[int], more: int) -> NativeKV:
    """Keys and values of all but the last of `ids`, whose pass chooses the first token that is judged."""
    kv = kernel.new_kv(len(ids) + more)
    for start in range(0, len(ids) - 1, _READ):
        part = ids[start : min(start + _READ, len(ids) - 1)]
        kernel.forward(part, [kv] * len(part), range(start, start + len(part)), wanted=[])
    return kv


class Cohort:
    """`places`: (step, sequence) of every judged token; `nll`: the full model's, in nats; `kinds`: one per token."""

    def __init__(self, kernel: NativeDecoder, samples: Sequence[Sample]) -> None:
        self._kernel, self.samples = kernel, samples
        read: dict[tuple[int, ...], NativeKV] = {}
        for sample in samples:
            if (key := tuple(sample.prefix)) not in read:
                read[key] = _prefix(kernel, key, len(sample.rest))
        self._kvs = [read[tuple(sample.prefix)].copy() for sample in samples]
        self._start = [kv.lengths.copy() for kv in self._kvs]
        self.steps = max(len(sample.rest) for sample in samples)
        self._live = [[i for i, s in enumerate(samples) if len(s.rest) > step] for step in range(self.steps)]
        self.places = [(step, i) for step, live in enumerate(self._live) for i in live]
        self.kinds = np.array([samples[i].kind for _, i in self.places])
        self._teachers: list[_Teacher] = []
        self._restart()
        for step in range(self.steps):
            self._teachers.append(_teach(self._pass(step), self._targets(step)))
        self.nll = torch.cat([teacher.nll for teacher in self._teachers]).numpy()

    def replay(self, make: Callable[[int], Gating]) -> Replay:
        """Every sequence under the chooser that `make` gives for its index."""
        self._restart()
        gatings = [make(i) for i in range(len(self.samples))]
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        depths: list[float] = []
        for step, live in enumerate(self._live):
            logits = self._gated(step, [gatings[i] for i in live])
            found.append(self._teachers[step].judge(logits, self._targets(step)))
            confident = (logits.amax(1) - logits.logsumexp(1)).exp().tolist()
            depths += [gatings[i].finish(value) for i, value in zip(live, confident, strict=True)]
        nll, kl, same = (torch.cat(column).numpy() for column in zip(*found, strict=True))
        return Replay(nll=nll, kl=kl, same=same, depth=np.array(depths, np.float32))

    def see(self, probe: int, masks: Sequence[Mask]) -> Seen:
        """Signals at block `probe - 1` of the full model, and the KL of running one token under each mask."""
        self._restart()
        columns: list[tuple[Floats, Floats, Floats, Floats]] = []
        losses: list[Floats] = []
        last = np.full(len(self.samples), np.nan, np.float32)
        for step, live in enumerate(self._live):
            held = [self._kvs[i].lengths.copy() for i in live]
            kls = []
            for mask in masks:
                kls.append(self._teachers[step].judge(self._pass(step, mask), self._targets(step))[1].numpy())
                for i, lengths in zip(live, held, strict=True):
                    self._kvs[i].truncate(lengths)
            losses.append(np.stack(kls, 1))
            states = np.empty((len(live), self._kernel.config.hidden), np.float32)
            watch = Watch.of(self._kernel.config, len(live), probe - 1)
            self._pass(step, layers=(0, probe), states=states, watch=watch)
            logits = self._pass(step, layers=(probe, self._kernel.config.layers), states=states.copy())
            columns.append((states, watch.middle, watch.gaps, last[live]))
            last[live] = (logits.amax(1) - logits.logsumexp(1)).exp().numpy()
        stacked = (np.concatenate(column) for column in zip(*columns, strict=True))
        return Seen(**dict(zip(("states", "middles", "gaps", "confidence"), stacked, strict=True)),
                    kl=np.concatenate(losses))  # fmt: skip

    def _restart(self) -> None:
        for kv, lengths in zip(self._kvs, self._start, strict=True):
            kv.truncate(lengths)

    def _targets(self, step: int) -> Tensor:
        return torch.tensor([self.samples[i].rest[step] for i in self._live[step]])

    def _rows(self, step: int) -> tuple[list[int], list[NativeKV], list[int]]:
        chosen = [self.samples[i] for i in self._live[step]]
        ids = [s.rest[step - 1] if step else s.prefix[-1] for s in chosen]
        return ids, [self._kvs[i] for i in self._live[step]], [len(s.prefix) - 1 + step for s in chosen]

    def _pass(
        self,
        step: int,
        run: Mask | None = None,
        *,
        layers: tuple[int, int] | None = None,
        states: Floats | None = None,
        watch: Watch | None = None,
        gated: Gated | None = None,
    ) -> Tensor:
        return self._kernel.forward(*self._rows(step), run, layers=layers, states=states, watch=watch, gated=gated)

    def _gated(self, step: int, gatings: Sequence[Gating]) -> Tensor:
        run = np.stack([gating.begin() for gating in gatings])
        probe, total = gatings[0].probe, self._kernel.config.layers
        if gatings[0].thrift is not None:
            return self._by_gates(step, gatings, run)
        if probe is None:
            return self._pass(step, run)
        states = np.empty((len(gatings), self._kernel.config.hidden), np.float32)
        watch = Watch.of(self._kernel.config, len(gatings), probe - 1)
        self._pass(step, run, layers=(0, probe), states=states, watch=watch)
        for row, gating in enumerate(gatings):
            reading = Reading(state=states[row], middle=watch.middle[row], gaps=watch.gaps[row])
            run[row, probe:] = gating.decide(reading)[probe:]
        return self._pass(step, run, layers=(probe, total), states=states)

    def _by_gates(self, step: int, gatings: Sequence[Gating], run: Mask) -> Tensor:
        """Learned gates decide inside the pass, one thrift for each sequence."""
        gated = Gated.of(self._kernel.config, [gating.thrift for gating in gatings], run)
        logits = self._pass(step, gated.run, gated=gated)
        for row, gating in enumerate(gatings):
            gating.gated(gated.run[row], gated.alpha[row])
        return logits
