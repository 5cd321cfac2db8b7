"""Drafts of the next tokens, to be verified by the model in one pass (G16): from the text so far and a small network.

`LookUp` copies what followed the longest earlier occurrence of the last tokens (prompt look-up, Saxena 2023).
`TrainedDraft` reads the model's own last hidden state and the token chosen after it, as EAGLE does (Li et al. 2024),
without attention: one block over a short list of tokens. `Draft` puts both together for one request and proposes only
as many tokens as should pay, by running estimates of acceptance and by what a longer pass costs.

A draft never changes an answer. The request's own sampler chooses every token from the verified logits, with the random
numbers that it would have used anyway, and a draft is kept only where it equals the choice: at any temperature the same
seed gives the same text as without drafts. Knows no passes and no sampler.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from .errors import WeightsError

if TYPE_CHECKING:
    from torch import Tensor

Vector = NDArray[np.float32]

# What a pass of 1, 2, … rows of one request costs beside one row, measured on the native kernel.
PASS_COSTS = (1.0, 1.10, 1.19, 1.34, 1.55, 1.76, 1.92, 2.09, 2.28, 2.47, 2.66, 2.85, 3.09, 3.33, 3.56, 3.8)
NETWORK_COST = 0.05  # a guess of the trained draft, in passes
# How often the token after a match of 0, 1, … tokens was the model's next (training prompts, greedy).
_MATCHED = (0.0, 0.19, 0.52, 0.63, 0.73, 0.76, 0.79, 0.81, 0.84, 0.85, 0.88, 0.89, 0.89, 0.9, 0.91, 0.92, 0.97)
_LONGEST = len(_MATCHED) - 1
_SIZES = (4, 3, 2, 1)  # n-grams that are indexed
_SURE = 0.7  # a match that is likelier than this is taken without asking the network
_MARGIN = 0.05  # tokens that a proposal must promise beyond its cost
_HOPE = 0.4  # how sure the network is on average, to begin with


class LookUp:
    """The text of one request with an index of its n-grams. What `text` has beyond it was not passed yet."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self._follows: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def extend(self, ids: Sequence[int]) -> None:
        """Adds and indexes tokens; what was in `text` beyond the index is forgotten."""
        del self.text[self._indexed :]
        for token in ids:
            self.text.append(token)
            end = len(self.text)
            for size in _SIZES:
                if size <= end:
                    self._follows[tuple(self.text[end - size :])] = end
        self._indexed = len(self.text)

    def find(self) -> tuple[int, int]:
        """Where in `text` stands what followed the latest longest match of its end, and the match's length, 0 to 16.

        The end is not in the index yet, or it would match itself.
        """
        text, end = self.text, len(self.text)
        for size in _SIZES:
            at = self._follows.get(tuple(text[-size:])) if size <= end else None
            if at is not None:
                while size >= _SIZES[0] and size < min(_LONGEST, at) and text[at - 1 - size] == text[end - 1 - size]:
                    size += 1
                return at, size
        return 0, 0


class TrainedDraft:
    """The network, shared by all requests. State vectors are fp32 [dim], about unit mean square."""

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]], embedding: "Tensor") -> None:
        """`embedding` [vocab, hidden] is the model's; `arrays` as `train/draft.py` writes them."""
        import torch

        full = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items() if name != "tokens"}
        self._project, self._repeat, self._norm = full["project"], full["repeat"], full["norm"]
        self._inner, self._down, self._head, self._bias = full["inner"], full["down"], full["head"], full["bias"]
        self._scale, self._shift = full["calibration"].tolist()
        self._tokens: list[int] = arrays["tokens"].tolist()
        with torch.inference_mode():
            mix = torch.from_numpy(full["embed"]).to(embedding.dtype)
            size = embedding.float().pow(2).mean(1, keepdim=True).add(1e-5).rsqrt()
            self._table = ((embedding @ mix.T).float() * size).to(torch.float16).numpy()

    @classmethod
    def load(cls, path: Path, embedding: "Tensor", model_fingerprint: str) -> Self | None:
        """The network in `path`, or None where there is none for this model. Raises WeightsError when it is damaged."""
        from safetensors import SafetensorError, safe_open

        if not path.exists():
            return None
        try:
            with safe_open(path, framework="np") as file:
                if json.loads(file.metadata()["draft"])["model"] != model_fingerprint:
                    return None
                return cls({name: file.get_tensor(name) for name in file.keys()}, embedding)  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise WeightsError(f"{path} is damaged ({error}): install shoal again, or remove it.") from error

    def start(self, state: Vector) -> Vector:
        """The vector of a token that was passed, from the model's residual stream [hidden] after its last layer."""
        return self._project @ _unit(state)

    def step(self, vector: Vector, token: int) -> Vector:
        """The vector of `token`, which follows that of `vector`."""
        mixed = self._repeat @ vector + self._table[token]
        inner = self._inner @ (_unit(mixed) * self._norm)
        gate, up = inner[: len(inner) // 2], inner[len(inner) // 2 :]
        return _unit(mixed + self._down @ (gate / (1 + np.exp(-gate)) * up))

    def guess(self, vector: Vector) -> tuple[int, float]:
        """The likeliest next token of the short list and the chance that the model chooses it."""
        logits = self._head @ vector + self._bias
        best = int(logits[:-1].argmax())  # the last one stands for all other tokens
        others = float(np.exp(logits - logits[best]).sum()) - 1
        odds = self._shift - self._scale * np.log(max(others, 1e-6))
        return self._tokens[best], float(1 / (1 + np.exp(-odds)))


def _unit(x: Vector) -> Vector:
    return x * np.float32(1 / np.sqrt(float(x @ x) / len(x) + 1e-5))


class _Trust:
    """How much more or less often than expected a source's tokens are accepted in this request; old ones fade."""

    def __init__(self) -> None:
        self._expected = self._accepted = 4.0

    def __call__(self, chance: float) -> float:
        return min(0.99, chance * self._accepted / self._expected)

    def add(self, expected: float, accepted: bool) -> None:
        self._expected = 0.96 * self._expected + 0.04 + expected
        self._accepted = 0.96 * self._accepted + 0.04 + accepted

    def forgive(self) -> None:
        """A step without a draft: what failed before may be worth a try again."""
        self._expected += 0.02 * (self._accepted - self._expected)


class Draft:
    """One request's drafts: longest matches first, else the network's guesses. Implements `request.Drafter`."""

    def __init__(
        self,
        network: TrainedDraft | None = None,
        *,
        costs: Sequence[float] = PASS_COSTS,
        network_cost: float = NETWORK_COST,
        ends: frozenset[int] = frozenset(),
    ) -> None:
        """`costs[k]`: a pass of k + 1 rows, in passes of one; no pass is made longer than that. `network_cost`: a guess
        of the network, in the same unit. `ends`: tokens that end an answer, not worth a row."""
        self._network, self._costs, self._network_cost, self._ends = network, costs, network_cost, ends
        self._look_up = LookUp()
        self._vector: Vector | None = None
        self._copied, self._guessed = _Trust(), _Trust()
        self._hope = _HOPE
        self._rate = 1.2  # tokens for the time of a pass, lately
        self._asked = 0  # of the network, for this proposal
        self._proposal: list[tuple[_Trust, float, float]] = []  # source, its own chance, the chance with trust

    def observe(self, ids: Sequence[int], states: NDArray[np.float32] | None) -> None:
        """Tokens that were passed, in order (the prompt, then what was accepted), and the residual stream after the
        last layer [n, hidden], None where it is not known."""
        self._look_up.extend(ids)
        known = self._network is not None and states is not None and len(ids) > 0
        self._vector = self._network.start(states[len(ids) - 1]) if known else None  # type: ignore[union-attr, index]

    def propose(self, token: int, most: int) -> list[int]:
        """Up to `most` tokens that may follow `token`, which was chosen but not passed yet; none if not worth it."""
        text = self._look_up.text
        start = len(text) + 1
        text.append(token)
        self._proposal, self._asked = [], 0
        self._extend(min(most, len(self._costs) - 1), start)
        kept = self._best_length()
        drafts = text[start : start + kept]
        del text[start - 1 :]
        del self._proposal[kept:]
        if not drafts:
            self._copied.forgive()
            self._guessed.forgive()
            self._spent(1, 1.0)
        return drafts

    def taken(self, proposed: int, accepted: int) -> None:
        """How many of the last proposal the model chose itself."""
        for number, (source, chance, _) in enumerate(self._proposal[: min(accepted + 1, proposed)]):
            source.add(chance, number < accepted)
        self._spent(accepted + 1, self._costs[proposed])

    def _extend(self, most: int, start: int) -> None:
        """Appends drafts to the text until no further one could pay."""
        text, vector, passed, reach = self._look_up.text, self._vector, start - 1, 1.0
        at = length = 0
        for number in range(1, most + 1):
            if length and text[at] == text[-1]:  # what was drafted goes on with the match
                at, length = at + 1, min(length + 1, _LONGEST)
            else:
                at, length = self._look_up.find()
            row = self._rate * (self._costs[number] - self._costs[number - 1])
            token, source, chance = (text[at] if length else -1), self._copied, _MATCHED[length]
            if self._network is not None and vector is not None and self._copied(chance) < _SURE:
                if reach * max(self._hope, self._copied(chance)) > row + self._rate * self._network_cost + _MARGIN:
                    for known in text[passed:]:
                        vector = self._network.step(vector, known)
                    passed, self._asked = len(text), self._asked + 1
                    guess, sure = self._network.guess(vector)
                    self._hope += 0.05 * (self._guessed(sure) - self._hope)
                    if self._guessed(sure) > self._copied(chance):
                        token, source, chance = guess, self._guessed, sure
                else:
                    self._hope += 0.01 * (_HOPE - self._hope)
            reach *= source(chance)
            if token < 0 or token in self._ends or reach < row / 3:
                return
            text.append(token)
            self._proposal.append((source, chance, source(chance)))

    def _best_length(self) -> int:
        """The length whose expected tokens outweigh the pass's cost by most."""
        best, kept, reach, tokens = _MARGIN, 0, 1.0, 0.0
        for number, (_, _, chance) in enumerate(self._proposal, 1):
            reach *= chance
            tokens += reach
            gain = tokens - self._rate * (self._costs[number] - 1)
            if gain > best:
                best, kept = gain, number
        return kept

    def _spent(self, tokens: int, cost: float) -> None:
        self._rate += 0.05 * (tokens / (cost + self._asked * self._network_cost) - self._rate)
