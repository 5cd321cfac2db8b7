"""Branches that answers people disliked had left out unusually often (G15), from their depth reports.

Answers are compared within one caller, one kind of work and one budget, so that a caller who dislikes everything, or a
kind of answer that nobody likes, says nothing about branches. A branch is marked where the difference is larger than
any branch shows when the thumbs are dealt out anew at random (Westfall and Young's maximum over branches, 5%), and
where it outlasts leaving out any one caller. A branch that ran is never marked: the full model runs them all. Knows no
store and no model.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .policy import Branch

LEAST_DISLIKED = 20  # distinct answers with a thumbs-down that can be compared
LEAST_OTHERS = 20
_LEAST = 0.05  # of the tokens: a smaller excess is not worth a change
_EACH = 500  # newest answers with, and without, a thumbs-down that one caller counts with
_REMAIN = 5  # disliked answers that must be left when any one caller is left out
_OWN = 0.9  # share of all answers from which a caller is the service's own, and need not be borne out by others
_ROWS = 10_000  # newest answers that are compared at all
_DEALS, _AT_ONCE = 2000, 100
_CHANCE = 0.05
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A kept answer: who asked, a digest of what, on which `kind` of work, whether it was disliked, and its depth
    report as `DepthReport.to_dict` gives it.
    """

    caller: str
    prompt: str
    kind: str
    disliked: bool
    depth: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Per marked branch the share of tokens, 0 to 1, by which disliked answers skipped it more than the others did.

    `disliked`, `others`: answers that were compared; `why`: why none is marked.
    """

    branches: Mapping[Branch, float] = field(default_factory=dict)
    disliked: int = 0
    others: int = 0
    why: str = ""

    def __str__(self) -> str:
        return ", ".join(f"{kind} {layer} ({share:.0%})" for (kind, layer), share in sorted(self.branches.items()))


def marks_of(answers: Iterable[Answered], *, gates: str | None = None, seed: int = 0) -> Marks:
    """What stands out among answers, newest first.

    With `gates`, the fingerprint of a set of learned gates, only answers that this set decided count; else only those
    that none did. Of a prompt that a caller asked again only the newest answer counts.
    """
    rows = _distinct(answers, gates)
    if len({len(row.depth["branch_runs"]) for row in rows}) > 1:
        return Marks(why="the kept answers are of models with different numbers of layers")
    table = _Table.of(rows)
    bad = int(table.disliked.sum())
    others = len(table.disliked) - bad
    if bad < LEAST_DISLIKED or others < LEAST_OTHERS:
        return Marks(
            disliked=bad,
            others=others,
            why=f"{bad} answers with a thumbs-down can be compared with {others} others of the same caller, "
            f"kind and budget; {LEAST_DISLIKED} and {LEAST_OTHERS} are needed",
        )
    excess = table.excess()
    found = (excess > _LEAST) & table.stands_out(excess, seed)
    shares = Counter(row.caller for row in rows)
    for caller in {row.caller for row in rows if row.disliked}:
        if shares[caller] < _OWN * len(rows):
            rest = table.without(caller)
            found &= (rest.excess() > _LEAST) if rest.disliked.sum() >= _REMAIN else False
    branches: dict[Branch, float] = {}
    for at in np.flatnonzero(found):
        branches["mlp" if at % 2 else "attention", int(at) // 2] = round(float(excess[at]), 4)
    return Marks(disliked=bad, others=others, branches=branches, why="" if branches else "no branch stands out")


def _distinct(answers: Iterable[Answered], gates: str | None) -> list[Answered]:
    """The newest answer to each prompt of each caller that says something, at most `_EACH` of a caller and thumb."""
    found: dict[tuple[str, str], Answered] = {}
    taken: Counter[tuple[str, bool]] = Counter()
    for answer in answers:
        depth, by = answer.depth, (answer.caller, answer.disliked)
        decided = depth.get("policy") == "gates"
        right = depth.get("gate_fingerprint", "").endswith(gates) and decided if gates is not None else not decided
        if not (right and depth.get("per_token") and depth.get("branch_runs")):
            continue
        if len(found) == _ROWS:
            break
        if (answer.caller, answer.prompt) not in found and taken[by] < _EACH:
            taken[by] += 1
            found[answer.caller, answer.prompt] = answer
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Answers whose group (caller, kind, budget) has both disliked and other ones: shares of tokens that skipped each
    branch [answers, 2 * layers], and thumbs; `members`: the rows of each group, by group.
    """

    skipped: Floats
    disliked: NDArray[np.bool_]
    groups: tuple[tuple[str, str, float], ...]

    @classmethod
    def of(cls, rows: list[Answered]) -> "_Table":
        groups = [(row.caller, row.kind, float(row.depth.get("budget", 0.0))) for row in rows]
        both = {g for g, row in zip(groups, rows, strict=True) if row.disliked} & {
            g for g, row in zip(groups, rows, strict=True) if not row.disliked
        }
        kept = [(row, group) for row, group in zip(rows, groups, strict=True) if group in both]
        wide = 2 * len(rows[0].depth["branch_runs"]) if rows else 0
        shares = [1 - np.ravel(r.depth["branch_runs"]).astype(float) / len(r.depth["per_token"]) for r, _ in kept]
        return cls(
            skipped=np.array(shares).reshape(len(kept), wide),
            disliked=np.array([row.disliked for row, _ in kept], bool),
            groups=tuple(group for _, group in kept),
        )

    def without(self, caller: str) -> "_Table":
        left = np.array([group[0] != caller for group in self.groups], bool)
        groups = tuple(group for group in self.groups if group[0] != caller)
        return _Table(skipped=self.skipped[left], disliked=self.disliked[left], groups=groups)

    def excess(self) -> Floats:
        """Per branch, the mean share by which disliked answers skipped it more than the others of their group."""
        excess: Floats = self._excess(self.disliked[None])[0]
        return excess

    def stands_out(self, excess: Floats, seed: int) -> NDArray[np.bool_]:
        """Per branch, whether its excess is above what the largest of all branches is when thumbs are dealt anew."""
        draw = np.random.default_rng(seed)
        parts = []
        for _ in range(_DEALS // _AT_ONCE):
            dealt = np.empty((_AT_ONCE, len(self.disliked)), bool)
            for rows in self._members():
                dealt[:, rows] = draw.permuted(np.tile(self.disliked[rows], (_AT_ONCE, 1)), axis=1)
            parts.append(self._excess(dealt))
        chance = np.concatenate(parts)
        spread = chance.std(0)
        known = spread > 1e-12
        scaled = chance / np.where(known, spread, np.inf)
        bound = np.quantile(scaled.max(1), 1 - _CHANCE)
        stands: NDArray[np.bool_] = known & (excess > bound * spread)
        return stands

    def _members(self) -> list[NDArray[np.int64]]:
        places: dict[tuple[str, str, float], list[int]] = {}
        for at, group in enumerate(self.groups):
            places.setdefault(group, []).append(at)
        return [np.array(rows) for rows in places.values()]

    def _excess(self, thumbs: NDArray[np.bool_]) -> Floats:
        """[deals, branches] for thumbs [deals, answers]; groups count by how much they tell."""
        weight = thumbs.astype(np.float32)
        told = 0.0
        for rows in self._members():
            share = float(self.disliked[rows].mean())
            weight[:, rows] -= share
            told += len(rows) * share * (1 - share)
        excess: Floats = np.asarray(weight @ self.skipped, float) / max(told, 1e-12)
        return excess
