"""Measures run masks on one batch of samples: KL to the full model, likelihood, first choices (G2).

Prefixes are read once at full depth and continuations under a mask, with the cache holes that decoding has. Hidden
states before every layer are kept for one mask, so that a mask near it is measured from the first layer where they
differ. Knows no order of masks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model import Decoder, RunMask
from ..policy import Branch
from .samples import Sample, batch_of

_TOP = 256  # of the full model's tokens that KL is summed over; the others count as one
_ROWS = 512  # rows of logits in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Of every judged token: KL from the full model and negative log-likelihood in nats, and the likeliest token."""

    kl: Tensor
    nll: Tensor
    best: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Teacher:
    """The full model's likeliest tokens [rows, top] and their log-probabilities, and those of all others [rows]."""

    tokens: Tensor
    logp: Tensor
    rest: Tensor


class Bench:
    """One batch of samples; of the tokens after their prefixes, every `every`-th is judged."""

    def __init__(self, decoder: Decoder, samples: Sequence[Sample], *, every: int = 1) -> None:
        self._decoder, self._batch = decoder, batch_of(samples)
        batch = self._batch
        size, left = batch.prefix.shape
        self._cache = decoder.cache(left + batch.rest.shape[1], batch=size)
        if left:
            decoder.forward(batch.prefix, batch.prefix_at, self._cache, padded=True)
        self._mark = self._cache.mark()
        self._rotary = decoder.rotary(batch.rest_at)
        self._rows = (batch.targets.flatten() >= 0).nonzero().flatten()[::every]
        self.targets = batch.targets.flatten()[self._rows]
        self.kinds = [samples[row // batch.targets.shape[1]].kind for row in self._rows.tolist()]
        self.full: RunMask = ((True, True),) * decoder.config.layers
        self._mask: RunMask = self.full
        self._inputs = [decoder.embed(batch.rest)]
        self._advance(0)
        self._teacher = self._teach(self._final(self.full))

    def adopt(self, mask: RunMask) -> None:
        """Keeps hidden states for `mask`: masks that differ from it late are measured quickly."""
        first = self._parting(mask)
        self._mask = mask
        self._advance(first)

    def kl(self, mask: RunMask) -> float:
        """Mean KL from the full model, in nats per token."""
        return float(self.judge(mask).kl.mean())

    def judge(self, mask: RunMask) -> Judged:
        """What `mask` makes of every judged token."""
        final, teacher = self._final(mask), self._teacher
        kls, losses, best = [], [], []
        for at in range(0, len(final), _ROWS):
            part = slice(at, at + _ROWS)
            logits = self._decoder.logits(final[part])
            norm = logits.logsumexp(1, keepdim=True)
            logq = logits.gather(1, teacher.tokens[part]) - norm
            logp, rest_p = teacher.logp[part], teacher.rest[part]
            rest_q = torch.log1p(-logq.exp().sum(1).clamp(max=1 - 1e-6))
            kls.append((logp.exp() * (logp - logq)).sum(1) + rest_p.exp() * (rest_p - rest_q))
            losses.append((norm - logits.gather(1, self.targets[part, None])).flatten())
            best.append(logits.argmax(1))
        return Judged(kl=torch.cat(kls), nll=torch.cat(losses), best=torch.cat(best))

    def _parting(self, mask: RunMask) -> int:
        """The first layer at which `mask` and the kept one differ, the last layer where none does."""
        differ = (i for i, (a, b) in enumerate(zip(mask, self._mask, strict=True)) if tuple(a) != tuple(b))
        return min(next(differ, len(mask)), len(mask) - 1)

    def _advance(self, first: int) -> None:
        self._restart()
        del self._inputs[first + 1 :]
        for index in range(first, len(self._mask) - 1):
            self._inputs.append(self._block(index, self._inputs[index], self._mask))

    def _final(self, mask: RunMask) -> Tensor:
        self._restart()
        first = self._parting(mask)
        x = self._inputs[first]
        for index in range(first, len(mask)):
            x = self._block(index, x, mask)
        return self._decoder.finish(x.flatten(0, 1)[self._rows])

    def _restart(self) -> None:
        self._cache.rewind(self._mark)
        self._cache.advance(self._batch.rest_at)

    def _block(self, index: int, x: Tensor, mask: RunMask) -> Tensor:
        at, (attention, mlp) = self._batch.rest_at, mask[index]
        return self._decoder.block(index, x, at, self._rotary, self._cache, attention, mlp, padded=True)

    def _teach(self, final: Tensor) -> _Teacher:
        tokens, logps, rests = [], [], []
        for at in range(0, len(final), _ROWS):
            logp = F.log_softmax(self._decoder.logits(final[at : at + _ROWS]), 1)
            top, likeliest = logp.topk(min(_TOP, logp.shape[1] - 1), dim=1)
            tokens.append(likeliest)
            logps.append(top)
            rests.append(torch.log1p(-top.exp().sum(1).clamp(max=1 - 1e-6)))
        return _Teacher(tokens=torch.cat(tokens), logp=torch.cat(logps), rest=torch.cat(rests))


def mask_without(branches: Sequence[Branch], layers: int) -> RunMask:
    """The run mask of `layers` layers that leaves out `branches`."""
    gone = set(branches)
    return tuple((("attention", i) not in gone, ("mlp", i) not in gone) for i in range(layers))
