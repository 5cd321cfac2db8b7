"""A training run of low-rank additions, of gates, or of both, at full depth and with branches left out (G1, G13).

A step learns fresh batches at full depth, then the last of them again at a depth that is drawn, along the plan's nested
order or kept to by gates, towards both the right answer and the full-depth output. The run stops at its steps, at its
minutes or when held-out quality no longer rises, whichever comes first; killed, it goes on from the last checkpoint
and, without a time limit, to the same result as an unbroken run. Ideas: training for depth as in LayerSkip, arXiv
2404.16710; additions as in LoRA, arXiv 2106.09685.
"""

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import DecoderConfig
from ..errors import GatedError
from ..gates import WHOLE_PROMPT
from ..policy import Plan
from .curve import draw_curve
from .packs import Pack, batches, packed
from .recipe import Recipe
from .soft_gates import SoftGates
from .student import Packed, Student

Say = Callable[[str], None]
_BETAS, _EPS, _CLIP = (0.9, 0.98), 1e-8, 1.0
CHECKPOINT = "checkpoint.safetensors"
_THRIFTS = (0.1, 0.3, 0.6)  # at which gates alone are judged


class Adam:
    """Adam over one flat vector, so that its state is two tensors."""

    def __init__(self, size: int) -> None:
        self.first, self.second = torch.zeros(size), torch.zeros(size)

    def step(self, flat: Tensor, gradient: Tensor, *, rate: float, count: int) -> float:
        """One step, the `count`th, on `flat` in place; the gradient's norm, which is cut to 1."""
        norm = float(gradient.norm())
        if not math.isfinite(norm):
            return norm
        gradient = gradient * min(1.0, _CLIP / (norm + 1e-6))
        one, two = _BETAS
        self.first.mul_(one).add_(gradient, alpha=1 - one)
        self.second.mul_(two).addcmul_(gradient, gradient, value=1 - two)
        size = (self.second / (1 - two**count)).sqrt_().add_(_EPS)
        flat.addcdiv_(self.first, size, value=-rate / (1 - one**count))
        return norm


class Run:
    """A training run in the folder `out`: checkpoint, curve and the best additions so far."""

    def __init__(
        self,
        recipe: Recipe,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        plan: Plan,
        train: Sequence[Pack],
        held: Sequence[Pack],
        out: Path,
        *,
        say: Say = print,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.recipe, self.plan, self._out, self._say, self._dtype = recipe, plan, out, say, dtype
        self._train, self._held = train, held
        self.student = Student(
            config, weights, rank=recipe.rank, seed=recipe.seed, dtype=dtype, compiled=recipe.compiled
        )
        self.gates = SoftGates(plan, config.hidden, floor=recipe.min_share * plan.total) if recipe.gated else None
        self._owners: list[Student | SoftGates] = [self.student, *([self.gates] if self.gates else [])]
        self._flat = torch.cat([value.flatten() for owner in self._owners for value in owner.parameters.values()])
        self._view()
        self._adam = Adam(len(self._flat))
        self._best = self._flat.clone()
        self._points = [i for i in range(1, len(plan.points) + 1) if plan.depth_at(i) >= recipe.min_share * plan.total]
        self.state: dict[str, Any] = {
            "step": 0,
            "seconds": 0.0,
            "tokens": 0,
            "best": -math.inf,
            "stale": 0,
            "curve": [],
        }

    def _view(self) -> None:
        for owner, named in zip(self._owners, self._named(self._flat), strict=True):
            owner.parameters.update(named)

    def start(self, parameters: Mapping[str, Tensor]) -> None:
        """Goes on from an adapter's tensors."""
        self.student.load(parameters)
        self._best = self._flat.clone()

    def estimate(self) -> str:
        """What the run will take, from one batch that is timed and thrown away."""
        recipe, batch = self.recipe, self._packed(next(self._batches(0)))
        for _ in range(2):  # the first one compiles
            began = time.perf_counter()
            _backward(_cross_entropy(self.student.logits(batch), batch))
            took = time.perf_counter() - began
        self.student.gradients()
        minutes = recipe.steps * took * (recipe.full + 0.9 * recipe.shallow) / 60
        least = minutes if recipe.minutes is None else min(minutes, recipe.minutes)
        share = f"{least / minutes:.0%} of " if least < minutes else ""
        return (
            f"{len(self._train)} packs, {sum(len(p.branches) for p in self._train)} questions, "
            f"{sum(p.size for p in self._train)} tokens; {len(self._flat) / 1e6:.2f} M parameters; "
            f"about {least:.0f} minutes for {share}{recipe.steps} steps at {batch.ids.numel() / took:.0f} tokens/s"
        )

    def train(self) -> dict[str, Tensor]:
        """Runs to the end and returns the best additions by their peft names."""
        began, before = time.monotonic(), self.state["seconds"]
        stream = self._batches(self.state["step"] * self.recipe.full)
        running: list[dict[str, float]] = []
        while self.state["step"] < self.recipe.steps:
            self.state["seconds"] = before + time.monotonic() - began
            left = self._left()
            if left <= 0 or self.state["stale"] >= self.recipe.patience:
                break
            running.append(self._step(stream, left))
            step = self.state["step"]
            if step % 10 == 0:
                row = {}
                for key in ("full", "shallow", "gated", "distance", "norm"):
                    if given := [r[key] for r in running if key in r]:
                        row[key] = sum(given) / len(given)
                spent = before + time.monotonic() - began
                self._say(
                    f"step {step:5}  {spent:6.0f} s  {self.state['tokens'] / max(spent, 1e-9):.0f} tokens/s  "
                    + "  ".join(f"{key} {value:.4f}" for key, value in row.items())
                )
                self.state["curve"].append({"step": step, "seconds": round(spent, 1), **row})
                running = []
            if step % self.recipe.check_every == 0:
                self._check()
            if step % self.recipe.save_every == 0:
                self.state["seconds"] = before + time.monotonic() - began
                self.save()
        self.state["seconds"] = before + time.monotonic() - began
        self._check()
        self.save()
        return {name: value.clone() for name, value in self._named(self._best)[0].items()}

    def trained_gates(self) -> dict[str, Tensor]:
        """The best gates: `weight`, `bias` and `slope`; empty where none were trained."""
        if self.gates is None:
            return {}
        self.gates.parameters.update(self._named(self._best)[1])
        return self.gates.values()

    def about(self, data: Mapping[str, int]) -> dict[str, Any]:
        """What is kept beside the result of how it was made; `data`: questions by source."""
        return {
            "data": dict(data),
            "seed": self.recipe.seed,
            "steps": self.state["step"],
            "tokens": self.state["tokens"],
            "seconds": round(self.state["seconds"]),
            "held_out": round(self.state["best"], 4),
        }

    def _left(self) -> float:
        """What is left of the run, 1 to 0, by steps or by time, whichever is less."""
        left = 1 - self.state["step"] / self.recipe.steps
        if self.recipe.minutes is not None:
            left = min(left, 1 - self.state["seconds"] / (60 * self.recipe.minutes))
        return float(left)

    def _step(self, stream: Iterator[list[Pack]], left: float) -> dict[str, float]:
        recipe, student, step = self.recipe, self.student, self.state["step"] + 1
        draw = random.Random(f"{recipe.seed}-{step}")
        losses: dict[str, float] = {}
        for turn in range(recipe.full):
            packs = next(stream)
            batch = self._packed(packs)
            with torch.set_grad_enabled(not recipe.gates_only):
                logits = student.logits(batch)
                loss = _cross_entropy(logits, batch)
            if not recipe.gates_only:
                _backward(loss / (recipe.full + recipe.shallow))
            losses["full"] = losses.get("full", 0.0) + float(loss.detach()) / recipe.full
            self.state["tokens"] += sum(pack.size for pack in packs)
            if recipe.shallow and turn == recipe.full - 1 and self._points:
                hint = max((branch.hint or 0 for pack in packs for branch in pack.branches), default=0)
                losses |= self._shallow(batch, logits.detach(), hint, draw, left)
                self.state["tokens"] += sum(pack.size for pack in packs)
        gradient = torch.cat([value.flatten() for owner in self._owners for value in owner.gradients().values()])
        if recipe.gates_only:
            gradient[: sum(value.numel() for value in student.parameters.values())] = 0
        rate = recipe.rate * min(1.0, step / recipe.warmup) * left
        losses["norm"] = self._adam.step(self._flat, gradient, rate=rate, count=step)
        for owner in self._owners:
            owner.refresh()
        self.state["step"] = step
        return losses

    def _shallow(self, batch: Packed, full: Tensor, hint: float, draw: random.Random, left: float) -> dict[str, float]:
        """Learns a batch again with branches left out, by the plan or by gates; `full`: its logits at full depth."""
        recipe, name, distance = self.recipe, "shallow", torch.zeros(())
        whole = draw.random() < recipe.read_whole
        if self.gates is not None and draw.random() < recipe.gated:
            name, target = "gated", draw.uniform(max(self.gates.floor, hint), self.plan.total)
            gates = self.gates.at(self.gates.thrift(target), _free(batch, read_whole=whole), temperature=1 + left)
            drawn = self.student.logits(batch, gates=gates)
            distance = (gates.depth() - target).abs() / self.plan.total
        else:
            points = [i for i in self._points if self.plan.depth_at(i) >= hint] or [0]
            drawn = self.student.logits(batch, self.plan.mask(draw.choice(points)), read_whole=whole)
        near = _divergence(full, drawn, batch)
        loss = (1 - recipe.distil) * _cross_entropy(drawn, batch) + recipe.distil * near
        _backward((loss + recipe.sparsity * distance) / (recipe.full + 1))
        return {name: float(loss.detach()), "distance": float(distance.detach()) * self.plan.total}

    def _batches(self, skip: int) -> Iterator[list[Pack]]:
        """Batches for ever, in an order that the seed fixes, from the `skip`th on."""
        epoch = 0
        while True:
            draw = random.Random(f"{self.recipe.seed}/{epoch}")
            made = batches(self._train, tokens=self.recipe.tokens, sizes=self.recipe.sizes, draw=draw)
            if skip >= len(made):
                skip -= len(made)
            else:
                yield from made[skip:]
                skip = 0
            epoch += 1

    def _packed(self, packs: Sequence[Pack]) -> Packed:
        longest = max(pack.size for pack in packs)
        size = next((size for size in self.recipe.sizes if size >= longest), longest)
        return packed(packs, size=size, dtype=self._dtype)

    @torch.no_grad()
    def _check(self) -> None:
        """Held-out answers that greedy decoding would give word for word, at full depth and at the middle point."""
        if not self._held:
            self._best, self.state["best"] = self._flat.clone(), 0.0
            return
        row: dict[str, float] = {"step": self.state["step"], "seconds": round(self.state["seconds"], 1)}
        score = self._check_gates(row) if self.recipe.gates_only else self._check_answers(row)
        self._say("held out  " + "  ".join(f"{key} {value:.4g}" for key, value in row.items()))
        self.state["curve"].append(row)
        if score > self.state["best"]:
            self._best, self.state["best"], self.state["stale"] = self._flat.clone(), score, 0
        else:
            self.state["stale"] += 1

    def _check_gates(self, row: dict[str, float]) -> float:
        """KL from full depth on held-out tokens at three thrifts, with the mean depth of those tokens."""
        assert self.gates is not None
        for thrift in _THRIFTS:
            kl = depth = tokens = 0.0
            for start in range(0, len(self._held), 4):
                batch = self._packed(self._held[start : start + 4])
                gates = self.gates.at(thrift, _free(batch, read_whole=True))
                drawn = self.student.logits(batch, gates=gates)
                here = len(batch.targets)
                kl += float(_divergence(self.student.logits(batch), drawn, batch)) * here
                depth += float(gates.depth()) * here
                tokens += here
            row[f"kl_{thrift}"], row[f"depth_{thrift}"] = kl / tokens, depth / tokens
        return -sum(row[f"kl_{thrift}"] for thrift in _THRIFTS)

    def _check_answers(self, row: dict[str, float]) -> float:
        middle = self._points[len(self._points) // 2] if self._points else 0
        for name in ("exact", "exact_shallow", *(("exact_gated",) if self.gates else ())):
            right = total = 0
            nll, depths = 0.0, list[float]()
            for start in range(0, len(self._held), 4):
                packs = self._held[start : start + 4]
                batch = self._packed(packs)
                mask = self.plan.mask(middle) if name == "exact_shallow" else None
                gates = None
                if name == "exact_gated" and self.gates:
                    thrift = self.gates.thrift(self.plan.depth_at(middle))
                    gates = self.gates.at(thrift, _free(batch))
                logits = self.student.logits(batch, mask, gates=gates)
                if gates is not None:
                    depths.append(float(gates.depth()))
                nll += float(F.cross_entropy(logits, batch.targets, reduction="sum"))
                hits = iter((logits.argmax(1) == batch.targets).tolist())
                for pack in packs:
                    for branch in pack.branches:
                        right += sum(next(hits) for _ in range(branch.answer)) == branch.answer
                        total += 1
            row[name], row[f"{name}_nll"] = right / total, nll / total
            if depths:
                row["depth_gated"] = sum(depths) / len(depths)
        score = row["exact"] + 0.3 * row["exact_shallow"] - 1e-3 * row["exact_nll"]
        return score + 0.3 * row.get("exact_gated", 0.0)

    def _named(self, flat: Tensor) -> list[dict[str, Tensor]]:
        """Views of `flat` by their owners' names."""
        found, at = [], 0
        for owner in self._owners:
            named = {}
            for name, old in owner.parameters.items():
                named[name] = flat[at : at + old.numel()].view(old.shape)
                at += old.numel()
            found.append(named)
        return found

    def save(self) -> None:
        """Writes the checkpoint, whole or not at all, and the curve."""
        from safetensors.torch import save_file

        tensors = {"flat": self._flat, "best": self._best, "first": self._adam.first, "second": self._adam.second}
        about = {"recipe": self._stamp(), "state": json.dumps(self.state)}
        scratch = self._out / "checkpoint.new"
        save_file(tensors, scratch, metadata=about)
        scratch.replace(self._out / CHECKPOINT)
        draw_curve(self.state["curve"], self._out)

    def resume(self) -> bool:
        """Goes on from the checkpoint in the folder, if there is one. Raises GatedError when the recipe is another."""
        from safetensors import safe_open

        path = self._out / CHECKPOINT
        if not path.exists():
            return False
        with safe_open(path, "pt") as file:
            about = file.metadata()
            if about["recipe"] != self._stamp():
                raise GatedError(
                    f"{path} is of another recipe, model, plan or data: start in a fresh folder, or without resume."
                )
            self._flat.copy_(file.get_tensor("flat"))
            self._best = file.get_tensor("best")
            self._adam.first, self._adam.second = file.get_tensor("first"), file.get_tensor("second")
        self.state = json.loads(about["state"])
        for owner in self._owners:
            owner.refresh()
        return True

    def _stamp(self) -> str:
        data = f"{len(self._train)}/{sum(pack.size for pack in self._train)}"
        return json.dumps({**asdict(self.recipe), "plan": self.plan.fingerprint, "data": data})


def _free(batch: Packed, *, read_whole: bool = False) -> Tensor:
    """Which tokens gates may shorten, [rows, 1]; none at the very beginning, with `read_whole` only the late ones."""
    free = (batch.positions >= WHOLE_PROMPT).view(-1, 1)
    return free & (batch.late == 0) if read_whole else free


def _backward(loss: Tensor) -> None:
    torch.autograd.backward(loss)


def _cross_entropy(logits: Tensor, batch: Packed) -> Tensor:
    each = F.cross_entropy(logits, batch.targets, reduction="none")
    return (each * batch.weights).sum() / batch.weights.sum()


def _divergence(full: Tensor, shallow: Tensor, batch: Packed) -> Tensor:
    """KL from the full-depth output, in nats, weighed like the loss."""
    each = F.kl_div(shallow.log_softmax(1), full.log_softmax(1), reduction="none", log_target=True).sum(1)
    return (each * batch.weights).sum() / batch.weights.sum()
