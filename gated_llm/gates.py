"""Learned gates: what each branch of each layer is scaled by, from the residual stream and the thrift (G1, G5).

alpha = sigmoid(weight · x / |x| + bias - thrift * slope), where |x| is the root mean square of what the layer takes in
and thrift is 0 at full depth and 1 at the floor. Below a half the branch is not run. The last layers never fall below
0.7. One set serves every thrift; it belongs to one model's weights, with or without an adapter. Knows no training.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .errors import PlanError
from .policy import SAFE_LAYERS

SKIP = 0.5  # alpha below which a branch is not run
SAFE = 0.7  # the least alpha of the last layers
WHOLE_PROMPT = 4  # first positions of a prompt that no gate shortens
_FORM = "1"
_AGAIN = "`shoal gates train`"
Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thrift:
    """How much gates are to save: `value` as `Gates.thrift` gives it; with `store`, attention that is left out still
    stores keys and values.
    """

    value: float
    store: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePoint:
    """A thrift with what was measured on held-out text: mean depth in layers, and likelihood lost in nats per token, by
    kind of work.
    """

    thrift: float
    depth: Mapping[str, float]
    loss: Mapping[str, float]

    def __post_init__(self) -> None:
        numbers = (self.thrift, *self.depth.values(), *self.loss.values())
        if (
            not self.depth
            or set(self.depth) != set(self.loss)
            or not all(map(math.isfinite, numbers))
            or self.thrift < 0
        ):
            raise PlanError("A point of the gates lacks a depth or a loss for some kind of work.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """`weight` [layers, 2, hidden], `bias` and `slope` [layers, 2], attention before MLP; `floor`: the depth in layers
    that thrift 1 was trained for; `points`: what was measured; `about`: data, tokens, seed. Raises
    PlanError for parts that do not fit together.
    """

    model_fingerprint: str
    floor: float
    weight: Array
    bias: Array
    slope: Array
    about: Mapping[str, Any]
    points: tuple[GatePoint, ...] = ()

    def __post_init__(self) -> None:
        layers = len(self.bias)
        fits = self.weight.ndim == 3 and self.weight.shape[:2] == self.bias.shape == self.slope.shape == (layers, 2)
        if not fits or not 0 < self.floor < layers:
            raise PlanError(
                f"Gates of shapes {self.weight.shape}, {self.bias.shape}, {self.slope.shape} and floor "
                f"{self.floor!r:.20} do not fit together: train them again with {_AGAIN}."
            )
        if not all(np.isfinite(part).all() for part in (self.weight, self.bias, self.slope)):
            raise PlanError(f"Gates hold values that are no numbers: train them again with {_AGAIN}.")

    @property
    def layers(self) -> int:
        return len(self.bias)

    @property
    def fingerprint(self) -> str:
        """Eight hex digits that change with any value or point."""
        digest = hashlib.sha256(repr((self.floor, self.points)).encode())
        for part in (self.weight, self.bias, self.slope):
            digest.update(part.tobytes())
        return digest.hexdigest()[:8]

    def thrift(self, depth: float) -> float:
        """0 at full depth, 1 at the floor; `depth` in layers."""
        return (self.layers - depth) / (self.layers - self.floor)

    def within(self, loss: float, work: str | None) -> tuple[GatePoint, float] | None:
        """The point with the least mean depth among those that lose at most `loss` nats a token, with that depth, for a
        kind of `work` or, with None, for all that were measured; None where none is. Raises PlanError for a `work` that
        was not measured.
        """
        best: tuple[GatePoint, float] | None = None
        for point in self.points:
            if work is not None and work not in point.depth:
                raise PlanError(f"work={work!r:.40}: the gates were measured for {', '.join(sorted(point.depth))}.")
            works = [work] if work is not None else list(point.depth)
            depth = sum(point.depth[name] for name in works) / len(works)
            if max(point.loss[name] for name in works) <= loss and (best is None or depth < best[1]):
                best = point, depth
        return best

    def alpha(self, layer: int, states: Array, thrift: float) -> Array:
        """[rows, 2] of what the layer takes in, `states` [rows, hidden]."""
        unit = states / np.sqrt(np.square(states).mean(1, keepdims=True) + 1e-6)
        logit = unit @ self.weight[layer].T + self.bias[layer] - thrift * self.slope[layer]
        alpha: Array = 1 / (1 + np.exp(-logit))
        return np.maximum(alpha, SAFE) if layer >= self.layers - SAFE_LAYERS else alpha

    def check(self, layers: int, hidden: int, model_fingerprint: str, path: Path | str = "The gates") -> None:
        """Raises PlanError where they were trained for another model."""
        if (self.layers, self.weight.shape[2]) != (layers, hidden):
            raise PlanError(
                f"{path}: made for {self.layers} layers with states of {self.weight.shape[2]}, this model has {layers} "
                f"with {hidden}: train them again with {_AGAIN}."
            )
        if self.model_fingerprint != model_fingerprint:
            raise PlanError(
                f"{path}: made for model {self.model_fingerprint}, this one is {model_fingerprint}: train them again "
                f"with {_AGAIN}."
            )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises PlanError when the file holds no gates."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "np") as file:
                head = file.metadata() or {}
                if head.get("form") != _FORM:
                    raise ValueError(f"form {head.get('form')!r} instead of {_FORM!r}")
                parts = {name: file.get_tensor(name).astype(np.float32) for name in ("weight", "bias", "slope")}
            points = tuple(GatePoint(**point) for point in json.loads(head["points"]))
            return cls(
                model_fingerprint=head["model"],
                floor=float(head["floor"]),
                about=json.loads(head["about"]),
                points=points,
                **parts,
            )
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, PlanError) as error:
            raise PlanError(f"{path} holds no gates ({error}): train them again with {_AGAIN}.") from error

    def write(self, path: Path) -> None:
        """Writes weights in fp16, the rest in fp32; whole or not at all."""
        from safetensors.numpy import save_file

        head = {
            "form": _FORM,
            "model": self.model_fingerprint,
            "floor": str(self.floor),
            "points": json.dumps([asdict(point) for point in self.points]),
            "about": json.dumps(dict(self.about)),
        }
        tensors = {"weight": self.weight.astype(np.float16), "bias": self.bias, "slope": self.slope}
        scratch = path.with_suffix(".new")
        save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, scratch, metadata=head)
        scratch.replace(path)
