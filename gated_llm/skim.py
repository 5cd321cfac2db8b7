"""How much of what a model makes of a text is left when it only skims it: the raw depth score of a passage (A3).

A token's alpha is how far its successor's distribution moves (total variation) when the branches that a neutral budget
does without are left out; the score is 1 - mean alpha over the text's tokens. So it is per token, knows no length, and
the last layers, which no plan leaves out, do not enter. Knows no questions of a user, no index and no threshold.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .engine import GatedLLM
from .errors import GatedError

if TYPE_CHECKING:
    from torch import Tensor

    from .model import Decoder

NEUTRAL = 0.9  # of all layers: the budget that a text is skimmed with
LONGEST = 256  # tokens of a text that are read
_BARE, _ASKED = "Passage: ", "Question: {}\nPassage: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Skimmed:
    """`score`: the raw depth score; `surprise`: nats per token, `sure`: mean top probability, both at full depth."""

    score: float
    surprise: float
    sure: float


class Skim:
    """Raw depth scores of texts, 0 to 1, high where a skimming model makes the same of them. Thread-safe.

    `fingerprint` changes with the model, its plan and this measure. Raises GatedError for a model without a calibrated
    plan, or one whose passes torch cannot make (`edge`).
    """

    def __init__(self, llm: GatedLLM) -> None:
        reader = getattr(llm.model, "reader", None) or getattr(llm.model, "decoder", None)
        if reader is None or not llm.plan.points:
            lacking = "a calibrated plan (`shoal gates calibrate`)" if reader is not None else "torch (no `edge`)"
            raise GatedError(f"{llm.name} cannot score passages: that needs {lacking}.")
        self._decoder: Decoder = reader
        self._tokenizer = llm.tokenizer
        depth = max(llm.min_depth, math.floor(NEUTRAL * llm.total))
        self._mask = llm.plan.mask(llm.plan.point_for(depth))
        self.fingerprint = f"skim1:{llm.plan.fingerprint}:{depth:g}"

    def __call__(self, texts: Sequence[str]) -> list[float]:
        """Scores [n] of n texts by themselves."""
        return [self.read(text).score for text in texts]

    def read(self, text: str, question: str = "") -> Skimmed:
        """What two passes over a text show, whole and skimmed, with a question before it or without."""
        import torch

        head = self._tokenizer.encode_text(_ASKED.format(question) if question else _BARE)
        ids = head + self._tokenizer.encode_text(text)[:LONGEST]
        if len(ids) == len(head):
            return Skimmed(score=1.0, surprise=0.0, sure=1.0)  # there is nothing to dig for
        with torch.inference_mode():
            whole, skimmed = self._chances(ids, len(head), skim=False), self._chances(ids, len(head), skim=True)
            said = whole.gather(1, torch.tensor(ids[len(head) :], device=whole.device)[:, None])
            return Skimmed(
                score=min(1.0, torch.minimum(whole, skimmed).sum(-1).mean().item()),
                surprise=-said.clamp(min=1e-12).log().mean().item(),
                sure=whole.max(-1).values.mean().item(),
            )

    def _chances(self, ids: Sequence[int], start: int, *, skim: bool) -> "Tensor":
        """Distributions [n, vocab] of the tokens from `start` on."""
        import torch

        places = torch.arange(len(ids), device=self._decoder.device)[None]
        tokens = torch.tensor([list(ids)], device=self._decoder.device)
        hidden = self._decoder.forward(tokens, places, self._decoder.cache(len(ids)), self._mask if skim else None)
        return self._decoder.logits(hidden[0, start - 1 : -1]).softmax(-1)
