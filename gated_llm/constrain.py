"""Answers held to a JSON schema, token by token (G10): what may come next is a grammar's to say, not the model's.

The grammar is llguidance's, a kept library (extra `llm`). Knows no model and no budget.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import GatedError, SamplingError

if TYPE_CHECKING:
    from torch import Tensor

_COMPACT: dict[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_LONGEST = 100_000  # characters of a schema


class Grammars:
    """Makes constraints for one model's tokens; made once per model, which takes about half a second."""

    def __init__(self, tokenizer_json: str, *, vocab: int, eos: frozenset[int]) -> None:
        """Raises GatedError without the library."""
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise GatedError(f"Answers by a schema need the extra: pip install 'shoal[llm]' ({error}).") from error
        self._tokens, self._vocab = LLTokenizer(tokenizer_json, n_vocab=vocab, eos_token=sorted(eos)), vocab

    def json(self, schema: Mapping[str, Any]) -> "Constraint":
        """Raises SamplingError for a schema that cannot be kept."""
        from llguidance import LLMatcher

        try:
            text = json.dumps(schema)
        except (TypeError, ValueError) as error:
            raise SamplingError(f"The schema is not JSON: {error}") from error
        if len(text) > _LONGEST:
            raise SamplingError(f"The schema has {len(text)} characters; at most {_LONGEST} are read.")
        try:
            grammar = LLMatcher.grammar_from_json_schema(text, defaults=_COMPACT)  # type: ignore[arg-type]
        except ValueError as error:
            raise SamplingError(f"The schema cannot be read: {error}") from error
        matcher = LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            raise SamplingError(f"The schema cannot be kept: {matcher.get_error()[:300]}")
        matcher.compute_bitmask()  # which is when a schema without an end is noticed
        if matcher.is_stopped():
            raise SamplingError("The schema cannot be kept: no finite JSON fits it.")
        return Constraint(matcher, self._vocab)


class Constraint:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab

    def hold(self, logits: "Tensor") -> "Tensor":
        """fp32 `logits` [vocab] with -inf for every token that may not come next."""
        import torch

        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little", count=self._vocab).astype(bool)
        return torch.where(torch.from_numpy(allowed).to(logits.device), logits, -torch.inf)

    def took(self, token: int) -> bool:
        """Goes on by the token that was chosen; True once the answer is complete.

        Raises SamplingError where nothing could complete it.
        """
        self._matcher.consume_token(token)
        if not self._matcher.is_stopped():
            return False
        if self._matcher.is_error() or not self._matcher.is_accepting():
            raise SamplingError("The schema cannot be kept: no finite JSON fits it from here on.")
        return True
