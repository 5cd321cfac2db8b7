"""From logits to the next token (G8, G10): greedy at temperature 0, else by a generator of the request's own.

Knows no model and no text.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .constrain import Constraint
from .errors import LogitsError, SamplingError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings of one request, checked when made."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.max_tokens, bool) or not _is_int(self.max_tokens) or self.max_tokens < 1:
            raise SamplingError(f"max_tokens={self.max_tokens!r}: give a whole number of at least 1.")
        if not _is_number(self.temperature) or not 0 <= self.temperature <= 10:
            raise SamplingError(f"temperature={self.temperature!r}: give a number from 0 (greedy) to 10.")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise SamplingError(f"top_p={self.top_p!r}: give a number above 0 and up to 1.")
        if not _is_int(self.seed) or not -(2**63) <= self.seed < 2**63:
            raise SamplingError(f"seed={self.seed!r}: give a whole number that fits in 64 bits.")
        if any(not isinstance(word, str) or not word for word in self.stop):
            raise SamplingError("stop: give non-empty strings.")


def stop_words(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """One string or several, as a tuple."""
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


class Sampler:
    """Chooses tokens for one request; the same settings give the same choices."""

    def __init__(self, sampling: Sampling) -> None:
        import torch

        self._sampling = sampling
        self._random = torch.Generator().manual_seed(sampling.seed) if sampling.temperature > 0 else None

    def choose(self, logits: "Tensor", constraint: Constraint | None = None) -> tuple[int, float]:
        """The next token's id, within `constraint`, and the likeliest one's probability without it.

        For fp32 `logits` [vocab]. Raises LogitsError.
        """
        top, best = logits.max(dim=0)
        confidence = (top - logits.logsumexp(dim=0)).exp().item()
        if not math.isfinite(confidence):
            raise LogitsError(
                "The model gave logits that are not finite numbers: the checkpoint is damaged, fetch it again."
            )
        if constraint is not None:
            logits = constraint.hold(logits)
            best = logits.argmax()
        if self._random is None:
            return int(best.item()), confidence
        chosen = self._probabilities(logits.cpu()).multinomial(1, generator=self._random)
        return int(chosen.item()), confidence

    def _probabilities(self, logits: "Tensor") -> "Tensor":
        import torch

        probabilities = torch.softmax((logits - logits.max()) / max(self._sampling.temperature, 1e-5), dim=0)
        if self._sampling.top_p == 1.0:
            return probabilities
        ordered, order = probabilities.sort(descending=True, stable=True)
        # a token stays while the mass before it is below top_p, so the likeliest always does
        ordered[ordered.cumsum(0) - ordered >= self._sampling.top_p] = 0.0
        return torch.zeros_like(probabilities).scatter_(0, order, ordered)


class StopText:
    """Finds stop strings across token borders: text that may be the start of one is held back."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is safe to send, and whether a stop string was met (what follows it is dropped)."""
        text = self._held + text
        hits = [at for word in self._stop if (at := text.find(word)) >= 0]
        if hits:
            self._held = ""
            return text[: min(hits)], True
        keep = max((_overlap(text, word) for word in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """What was held back when generation ended otherwise."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, word: str) -> int:
    """Length of the longest end of `text` that begins `word`."""
    return next((n for n in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:n])), 0)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_int(value: object) -> bool:
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
