"""See for oneself that layers are skipped: one prompt at several budgets, side by side (G1, G4, G6).

What the first token costs (reading the prompt) is taken off by running it alone, so figures are those of the tokens
after it. Calls are counted by the kernel itself where there is one, else by the engine's own report.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import GatedError
from .report import Generation

if TYPE_CHECKING:
    from .engine import GatedLLM

_ROUNDS = 3
Calls = NDArray[np.int64]  # [layers, 2], attention and MLP


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One budget. `tokens`: those after the first; `calls`: per layer, attention and MLP branches run for them.

    `dropped`: branches that the budget leaves out, and `dropped_calls` how often one of them ran all the same: 0.
    `ms_per_token`: the best of several rounds. `kv_bytes`: keys and values stored for these tokens.
    """

    budget: float
    total: int
    depth: float
    tokens: int
    calls: tuple[tuple[int, int], ...]
    counted_by: str
    dropped: int
    dropped_calls: int
    ms_per_token: float
    kv_bytes: int
    text: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {name: getattr(self, name) for name in self.__slots__} | {"calls": [list(pair) for pair in self.calls]}


def side_by_side(llm: "GatedLLM", budgets: Sequence[int | str], prompt: str, *, max_tokens: int = 32) -> list[Measured]:
    """The prompt at each budget, in turns, so that a busy machine slows all alike. Raises what `generate` raises.

    Raises GatedError when the model says nothing beyond one token.
    """
    if max_tokens < 2:
        raise GatedError("Give at least 2 tokens: the first one is the prompt's.")
    for budget in budgets:
        llm.generate(prompt, max_depth=budget, max_tokens=2, drafts=False)
    times: list[list[float]] = [[] for _ in budgets]
    found: list[tuple[Generation, Calls]] = []
    for _ in range(_ROUNDS):
        found = []
        for budget, took in zip(budgets, times, strict=True):
            first, first_calls, first_s = _run(llm, prompt, budget, 1)
            answer, calls, seconds = _run(llm, prompt, budget, max_tokens)
            if answer.usage.completion_tokens <= first.usage.completion_tokens:
                raise GatedError("The model ended at once: give another prompt.")
            took.append(1000 * (seconds - first_s) / (answer.usage.completion_tokens - 1))
            found.append((answer, calls - first_calls))
    return [_measured(llm, answer, calls, min(took)) for (answer, calls), took in zip(found, times, strict=True)]


def _run(llm: "GatedLLM", prompt: str, budget: int | str, tokens: int) -> tuple[Generation, Calls, float]:
    kernel = getattr(llm.model, "kernel", None)
    before = None if kernel is None else kernel.branch_runs.copy()
    start = time.perf_counter()
    answer = llm.generate(prompt, max_depth=budget, max_tokens=tokens, drafts=False)
    seconds = time.perf_counter() - start
    calls = np.array(answer.depth.branch_runs, np.int64) if kernel is None else kernel.branch_runs - before
    return answer, calls, seconds


def _measured(llm: "GatedLLM", answer: Generation, calls: Calls, ms: float) -> Measured:
    mask = np.array(llm.plan.mask(llm.plan.point_for(answer.depth.budget)))
    model = llm.model
    return Measured(
        budget=answer.depth.budget,
        total=answer.depth.total,
        depth=answer.depth.mean,
        tokens=answer.usage.completion_tokens - 1,
        calls=tuple((int(attention), int(mlp)) for attention, mlp in calls),
        counted_by="kernel" if hasattr(model, "kernel") else "report",
        dropped=int((~mask).sum()),
        dropped_calls=int(calls[~mask].sum()),
        ms_per_token=ms,
        kv_bytes=int(calls[:, 0].sum()) * model.token_bytes,
        text=answer.text,
    )
