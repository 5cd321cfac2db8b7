"""Learned gates changed by what people disliked, and kept only where held-out answers do not lose (G15).

Marked branches leave later: thrift weighs less on them until, on the model's own answers, they are skipped less by the
share by which disliked answers had skipped them more. It weighs more on all others, so that the mean depth stays:
feedback may say where depth is spent, never how much, and no flood of thumbs makes answers slower. Of the full change,
half and a quarter the largest is taken that does not lose on one half of the answers; the other half, which had no part
in that, decides (paired, by sequence). Knows no store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoint import fingerprint, read_tensors
from ..config import DecoderConfig
from ..errors import GatedError
from ..gates import GatePoint, Gates, Thrift
from ..gating import run_mask
from ..lora import adapted
from ..native import NativeDecoder
from ..passes import KernelModel
from ..policy import SAFE_LAYERS, Branch, Plan
from ..served import find_plan, gates_file
from ..tokenizer import ChatTokenizer, Prompt
from ..versions import Versions
from .cohort import Cohort, answers
from .gate_points import Heard
from .run import Say
from .samples import Sample

MARGIN = 0.05  # of the loss: how much more the new gates may lose, at most, with 95% certainty
DEPTH_MARGIN = 0.01  # of the layers: how much deeper they may be
LEAST = 20  # answers; half of them judge
MOST = 80
_SURE = 0.95
_NEGLIGIBLE = 0.003  # nats per token that count as nothing beside a loss
_REST = 64  # tokens of an answer
_LONGEST = 1024  # tokens of a prompt
_READ = 24_000  # tokens of all prompts, which bounds the memory
_SCALES = (1.0, 0.5, 0.25)
_ROUNDING = 1e-3  # of a logit
_MOST_PAID = 4.0  # that the slope of others grows by, as a share
_FITTED, _ROUNDS = 4, 3  # thrifts that the change is fitted at, and times that its depth is corrected
_DRAWS = 4000
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one set of gates. `version`: the number of an adopted set; `why`: of one that was refused."""

    gates: str
    outcome: Literal["adopted", "refused", "nothing"]
    why: str
    marks: Mapping[str, float] = field(default_factory=dict)
    version: int | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A set of gates on samples: KL from full depth [thrifts, sequences] in nats per token and mean depth alike, and
    logits [tokens, layers, 2] of every thrift where they were kept.
    """

    kl: Floats
    depth: Floats
    logits: tuple[NDArray[np.float32], ...] = ()


def recalibrate(
    folder: Path, marks: Mapping[Branch, float], prompts: Sequence[Prompt], *, adapter: str | None = None,
    seed: int = 0, say: Say = print,
) -> Outcome:  # fmt: skip
    """Changes the gates of the model in `folder`, or of an adapter for it, and adopts them if they hold.

    `prompts`: what users ask, whole, with any passages; what is measured is the model's own full-depth answers to them.
    One at a time for each model. Raises GatedError where there are no gates, no kernel, too few prompts or another run.
    """
    lock = FileLock(folder / "recalibrating.lock", timeout=0)
    try:
        with lock:
            return _recalibrate(folder, marks, prompts, adapter, seed, say)
    except Timeout as error:
        raise GatedError(f"The gates in {folder} are being recalibrated by another process: wait for it.") from error


def _recalibrate(
    folder: Path, marks: Mapping[Branch, float], prompts: Sequence[Prompt], adapter: str | None, seed: int, say: Say
) -> Outcome:
    source = gates_file(folder, adapter)
    versions = Versions.of(folder, adapter)
    gates, before = (Gates.read(source), versions.digest()) if source.exists() else (None, "")
    if gates is None or not gates.points:
        raise GatedError(
            f"{source} {'was never measured' if gates else 'is not there'}: train with `shoal gates train`."
        )
    kernel, plan = _kernel(folder, gates, adapter)
    try:
        config, tokenizer = kernel.config, ChatTokenizer(folder)
        drawn = np.random.default_rng(seed).permutation(len(prompts))
        ids = _short_enough([tokenizer.encode_prompt(prompts[at]) for at in drawn[: 4 * MOST]])
        say(f"the model answers {len(ids)} prompts at full depth")
        own = answers(kernel.kernel, ids, kind="own", ends=frozenset(config.eos), rest=_REST)
        if len(own) < LEAST:
            raise GatedError(
                f"{len(own)} of the prompts get an answer that can be judged, {LEAST} are needed: give more prompts."
            )
        found, tried = changed(gates, kernel.kernel, plan, own[::2], marks)
        for line in tried:
            say(line)
        name = "gates" if adapter is None else f"gates of {adapter}"
        told = {f"{kind} {layer}": share for (kind, layer), share in sorted(marks.items())}
        if found is None:
            why = f"no change of the marked branches holds ({'; '.join(tried) or 'none of them is skipped'})"
            return Outcome(gates=name, outcome="refused", marks=told, why=why)
        new, scale = found
        figures = compared(gates, new, kernel.kernel, plan, own[1::2], seed=seed)
    finally:
        kernel.close()
    figures = {"scale": scale, **figures}
    spent = gates.about.get("recalibrated", {"more": 0.0, "deeper": 0.0})
    if why := objection(figures, plan.total, spent):
        return Outcome(gates=name, outcome="refused", why=why, marks=told, figures=figures)
    since = {part: max(0.0, spent[part] + figures[part]) for part in ("more", "deeper")}
    about = {**gates.about, "recalibrated": {"marks": told, "scale": scale, **since}}
    new = replace(new, about=about, points=_points(gates, figures["thrifts"]))
    number = versions.adopt(new, reason="thumbs-down", figures={"marks": told, **figures}, instead_of=before)
    return Outcome(gates=name, outcome="adopted", why="", marks=told, version=number, figures=figures)


def _kernel(folder: Path, gates: Gates, adapter: str | None) -> tuple[KernelModel, Plan]:
    """The model that the gates are for, by the native kernel, and its plan."""
    config = DecoderConfig.from_folder(folder)
    weights: Mapping[str, Tensor] = read_tensors(folder)
    known = fingerprint(weights)
    plan = find_plan(folder, config, known)
    if adapter is not None:
        weights, plan, known = adapted(folder, adapter, weights, plan, model_fingerprint=known)
    gates.check(config.layers, config.hidden, known)
    model = KernelModel.load(config, weights, bits=8 if adapter is not None else None, reader=False)
    if model is None:
        raise GatedError(
            "Gates are measured by the native kernel, which cannot run this model here: see `shoal doctor`."
        )
    return model, plan


def _short_enough(prompts: Sequence[list[int]]) -> list[list[int]]:
    kept: list[list[int]] = []
    read = 0
    for ids in prompts:
        if len(ids) <= _LONGEST and read + len(ids) <= _READ and ids not in kept:
            kept.append(ids)
            read += len(ids)
    return kept[:MOST]


def trial(
    gates: Gates, kernel: NativeDecoder, cohort: Cohort, plan: Plan, thrifts: Sequence[float], *, keep: bool = False
) -> Trial:
    """What gates do to sequences at several thrifts; logits are kept on demand."""
    kernel.set_gates(gates)
    owner = np.array([sequence for _, sequence in cohort.places])
    tokens = np.bincount(owner)
    kls, depths, logits = [], [], []
    for thrift in thrifts:
        choices = [
            Heard(policy="gates", plan=plan, base=run_mask(plan, []), thrift=Thrift(value=thrift))
            for _ in cohort.samples
        ]
        run = cohort.replay(lambda i, choices=choices: choices[i])  # type: ignore[misc]
        kls.append(np.bincount(owner, run.kl) / tokens)
        depths.append(np.bincount(owner, run.depth) / tokens)
        if keep:
            alpha = np.clip(np.concatenate([choice.heard for choice in choices]), 1e-6, 1 - 1e-6)
            logits.append(np.log(alpha / (1 - alpha)))
    return Trial(kl=np.array(kls), depth=np.array(depths), logits=tuple(logits))


def changed(
    gates: Gates, kernel: NativeDecoder, plan: Plan, samples: Sequence[Sample], marks: Mapping[Branch, float]
) -> tuple[tuple[Gates, float] | None, list[str]]:
    """The gates with marked branches leaving later at the same mean depth, by the largest share of the full change that
    does not lose on `samples`, and that share, or None where none holds; and what was tried.
    """
    every = sorted({point.thrift for point in gates.points})
    thrifts = [every[at] for at in sorted({round(x) for x in np.linspace(0, len(every) - 1, _FITTED)})]
    cohort = Cohort(kernel, samples)
    old = trial(gates, kernel, cohort, plan, thrifts, keep=True)
    lift = lifts(gates, old.logits, thrifts, marks)
    tried: list[str] = []
    if not lift.any():
        return None, tried
    for scale in _SCALES:
        wanted = 0.0  # how much shallower the forecast must be, for what the change really does
        for _ in range(_ROUNDS):
            new = balanced(gates, plan, scale * lift, old.logits, thrifts, wanted)
            done = trial(new, kernel, cohort, plan, thrifts)
            deeper = float((done.depth - old.depth).mean())
            if abs(deeper) <= DEPTH_MARGIN / 2 * plan.total:
                break
            wanted += deeper
        more = float(beyond(old, done, plan.total).mean())
        tried.append(f"{scale:.0%} of the change: {more:+.1%} loss, {deeper:+.3f} layers where it is fitted")
        if more <= MARGIN / 2 and deeper <= DEPTH_MARGIN * plan.total:
            return (new, scale), tried
    return None, tried


def lifts(
    gates: Gates, logits: Sequence[NDArray[np.float32]], thrifts: Sequence[float], marks: Mapping[Branch, float]
) -> NDArray[np.float32]:
    """The share, 0 to 1, by which the slope of each branch [layers, 2] falls, so that each marked one is skipped by its
    mark's share of tokens less; the mean over thrifts at which it is skipped.
    """
    lift = np.zeros_like(gates.slope)
    for (kind, layer), share in marks.items():
        at, needed = (layer, int(kind == "mlp")), []
        slope = float(gates.slope[at])
        for at_thrift, thrift in zip(logits, thrifts, strict=True):
            column = at_thrift[:, layer, at[1]]
            skipped = float((column < 0).mean())
            if skipped > 0 and thrift * slope > 0:
                more = -float(np.quantile(column, max(0.0, skipped - share))) + _ROUNDING
                needed.append(min(1.0, max(0.0, more / (thrift * slope))))
        if needed and layer < len(lift) - SAFE_LAYERS:
            lift[at] = float(np.mean(needed))
    return lift


def balanced(
    gates: Gates, plan: Plan, lift: NDArray[np.float32], logits: Sequence[NDArray[np.float32]],
    thrifts: Sequence[float], shallower: float = 0.0,
) -> Gates:  # fmt: skip
    """Gates with the lift, and slopes of all other branches raised alike, so that the mean depth of the tokens whose
    `logits` are given falls by `shallower` layers; at thrift 0 nothing changes.
    """
    share = np.array([plan.attention_share, 1 - plan.attention_share], np.float32)
    fallen, others = lift * gates.slope, (lift == 0) * np.maximum(gates.slope, 0)
    others[len(lift) - SAFE_LAYERS :] = 0

    def depth(moved: NDArray[np.float32] | float) -> float:
        """Mean over tokens and thrifts, with slopes that are `moved` less; the last layers are not counted."""
        found = [
            ((at + thrift * moved >= 0) * share)[:, : len(lift) - SAFE_LAYERS].sum((1, 2)).mean()
            for at, thrift in zip(logits, thrifts, strict=True)
        ]
        return float(np.mean(found))

    aim, low, high = depth(0.0) - shallower, 0.0, _MOST_PAID
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if depth(fallen - middle * others) > aim else (low, middle)
    return replace(gates, slope=gates.slope - fallen + np.float32(high) * others, points=())


def compared(
    old: Gates, new: Gates, kernel: NativeDecoder, plan: Plan, samples: Sequence[Sample], *, seed: int = 0
) -> dict[str, Any]:
    """Both sets on samples that had no part in the change, at every thrift that requests can get. `more`: by what share
    the new ones lose more than the old ones would at their depth, mean over thrifts and sequences; `at_most`: the upper
    bound of that with 95% certainty (bootstrap over sequences); `deeper`: mean layers.
    """
    cohort = Cohort(kernel, samples)
    thrifts = [point.thrift for point in old.points]
    was, now = (trial(gates, kernel, cohort, plan, thrifts) for gates in (old, new))
    each = beyond(was, now, plan.total)
    draw = np.random.default_rng(seed)
    means = each[draw.integers(len(each), size=(_DRAWS, len(each)))].mean(1)
    rows = [
        {
            "thrift": thrift,
            "loss": [round(float(was.kl[at].mean()), 6), round(float(now.kl[at].mean()), 6)],
            "depth": [round(float(was.depth[at].mean()), 4), round(float(now.depth[at].mean()), 4)],
        }
        for at, thrift in enumerate(thrifts)
    ]
    return {
        "sequences": len(samples),
        "tokens": len(cohort.places),
        "more": round(float(each.mean()), 4),
        "at_most": round(float(np.quantile(means, _SURE)), 4),
        "deeper": round(float((now.depth - was.depth).mean()), 4),
        "thrifts": rows,
    }


def objection(figures: Mapping[str, Any], layers: int, spent: Mapping[str, float]) -> str:
    """Why new gates are not adopted, after what `compared` found; empty where they are. `spent`: what recalibrations
    since the last training have cost already, which counts, so that many small ones do not add up.
    """
    if not spent["more"] + figures["at_most"] <= MARGIN:
        return (
            f"held-out answers may lose {figures['at_most']:.1%} (95% bound, mean {figures['more']:+.1%}), "
            f"after {spent['more']:.1%} since the last training; {MARGIN:.0%} are allowed together"
        )
    if not spent["deeper"] + figures["deeper"] <= DEPTH_MARGIN * layers:
        return (
            f"answers would be {figures['deeper']:.2f} layers deeper, after {spent['deeper']:.2f} since the last "
            "training; "
            f"{DEPTH_MARGIN * layers:.2f} are allowed together"
        )
    return ""


def beyond(old: Trial, new: Trial, layers: int) -> Floats:
    """Per sequence, by what share of the old loss the new one is larger than the old gates' would be at the new depth,
    mean over thrifts: a thrift that saves more may lose more, by as much as the old gates do for it.
    """
    loss, depth, now = old.kl.mean(1), old.depth.mean(1), new.depth.mean(1)
    order = np.argsort(depth)
    due = np.interp(now, [*depth[order], layers], [*loss[order], 0.0]) - loss
    more: Floats = ((new.kl - old.kl - due[:, None]) / (loss[:, None] + _NEGLIGIBLE)).mean(0)
    return more


def _points(gates: Gates, rows: Sequence[Mapping[str, Any]]) -> tuple[GatePoint, ...]:
    """The old points moved by what the change did; a loss is never lowered by so few answers."""
    moved = []
    for point, row in zip(gates.points, rows, strict=True):
        loss, depth = (row[name][1] - row[name][0] for name in ("loss", "depth"))
        moved.append(
            GatePoint(
                thrift=point.thrift,
                depth={kind: round(min(gates.layers, value + depth), 4) for kind, value in point.depth.items()},
                loss={kind: round(value + max(0.0, loss), 6) for kind, value in point.loss.items()},
            )
        )
    return tuple(moved)
