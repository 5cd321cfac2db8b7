"""Low-rank additions to a model, in one small file, merged into its weights before it is loaded (G13).

The file is safetensors: peft's names and shapes, int8 with a scale per rank, and what it was trained on as metadata.
It fits one model, and the depth plans whose order it was trained along or calibrated with; with another, its additions
would land on branches that are left out. Knows no training. Idea: LoRA, arXiv 2106.09685.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from .errors import WeightsError
from .policy import Plan

ALPHA = 16.0
TARGETS = (
    *(f"self_attn.{part}_proj" for part in ("q", "k", "v", "o")),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)
_FORM = "1"
_ASSETS = Path(__file__).parent / "assets"
_A, _B = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """`tensors`: fp32 by peft's names, A [rank, in] and B [out, rank] per adapted matrix, added as
    B @ A * `alpha` / `rank`. `plans`: fingerprints of the depth plans it goes with; `about`: data, seed, tokens, time.
    """

    model_fingerprint: str
    plans: tuple[str, ...]
    rank: int
    tensors: Mapping[str, Tensor]
    about: Mapping[str, Any]
    alpha: float = ALPHA

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises WeightsError when the file is not an adapter."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                head = file.metadata() or {}
                if head.get("form") != _FORM:
                    raise ValueError(f"form {head.get('form')!r} instead of {_FORM!r}")
                names = [name for name in file.keys() if name.endswith((_A, _B))]  # noqa: SIM118
                tensors = {name: file.get_tensor(name).float() * file.get_tensor(_scale(name)) for name in names}
            return cls(
                model_fingerprint=head["model"],
                plans=tuple(json.loads(head["plans"])),
                rank=int(head["rank"]),
                alpha=float(head["alpha"]),
                tensors=tensors,
                about=json.loads(head["about"]),
            )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise WeightsError(f"{path} is not an adapter ({error}): train it with `shoal gates train`.") from error

    def write(self, path: Path) -> None:
        """Writes int8 values, rounded to the nearest, with one scale for each of the `rank` directions."""
        from safetensors.torch import save_file

        stored: dict[str, Tensor] = {}
        for name, tensor in self.tensors.items():
            scale = tensor.abs().amax(dim=1 if name.endswith(_A) else 0, keepdim=True).clamp(min=1e-12) / 127
            stored[name] = (tensor / scale).round().to(torch.int8)
            stored[_scale(name)] = scale
        head = {
            "form": _FORM,
            "model": self.model_fingerprint,
            "plans": json.dumps(self.plans),
            "rank": str(self.rank),
            "alpha": str(self.alpha),
            "about": json.dumps(dict(self.about)),
        }
        save_file(stored, path, metadata=head)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change with any tensor, the rank or alpha."""
        digest = hashlib.sha256(f"{self.rank}:{self.alpha}".encode())
        for name in sorted(self.tensors):
            digest.update(name.encode())
            digest.update(self.tensors[name].contiguous().numpy().tobytes())
        return digest.hexdigest()[:12]

    @property
    def merged_fingerprint(self) -> str:
        """What a plan for the model with this adapter in it names as its model."""
        return f"{self.model_fingerprint}+{self.fingerprint}"

    def merged(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`weights` with the additions in them, in fp32; tensors without an addition are shared, not copied. Raises
        WeightsError.
        """
        merged = dict(weights)
        for name, a in self.tensors.items():
            if name.endswith(_A):
                base, b = name.removesuffix(_A), self.tensors.get(f"{name.removesuffix(_A)}{_B}")
                weight = weights.get(f"{base}.weight")
                if b is None or weight is None or weight.shape != (b.shape[0], a.shape[1]):
                    raise WeightsError(
                        f"The adapter's addition to {base} does not fit this model: train it again for this one."
                    )
                merged[f"{base}.weight"] = torch.addmm(weight.float(), b, a, alpha=self.alpha / self.rank)
        return merged


def merge(
    weights: Mapping[str, Tensor],
    adapter: Adapter | Path,
    *,
    model_fingerprint: str,
    plan_fingerprint: str | None = None,
) -> dict[str, Tensor]:
    """The model's weights with an adapter in them.

    `plan_fingerprint`: the depth plan that will be served, where there is one. Raises WeightsError, naming both
    fingerprints, when the adapter was made for another model or another plan.
    """
    name = adapter if isinstance(adapter, Path) else "The adapter"
    found = Adapter.read(adapter) if isinstance(adapter, Path) else adapter
    if found.model_fingerprint != model_fingerprint:
        raise WeightsError(
            f"{name} was trained for model {found.model_fingerprint}, this model is {model_fingerprint}: train one for "
            "it with `shoal gates train`."
        )
    if plan_fingerprint is not None and plan_fingerprint not in found.plans:
        raise WeightsError(
            f"{name} was trained for the depth plan {' or '.join(found.plans)}, this one is {plan_fingerprint}: its "
            "additions would land on branches that are left out. Train it again with `shoal gates train`."
        )
    return found.merged(weights)


def find_adapter(folder: Path, name: str) -> tuple[Path, Path | None] | None:
    """The adapter of that name for the model in `folder` and its own depth plan, where it has one: from the folder
    (`NAME.adapter.safetensors`, `NAME.plan.json`), else those that ship.
    """
    for adapter, plan in (
        (folder / f"{name}.adapter.safetensors", folder / f"{name}.plan.json"),
        (_ASSETS / f"{folder.name}.{name}.safetensors", _ASSETS / f"{folder.name}.{name}.plan.json"),
    ):
        if adapter.exists():
            return adapter, plan if plan.exists() else None
    return None


def adapted(
    folder: Path, name: str, weights: Mapping[str, Tensor], plan: Plan, *, model_fingerprint: str
) -> tuple[dict[str, Tensor], Plan, str]:
    """Merged weights, the depth plan to serve them with, and their fingerprint: the adapter's own plan where it has
    one, else the model's `plan`, along which it must have been trained. Raises WeightsError, PlanError.
    """
    found = find_adapter(folder, name)
    if found is None:
        raise WeightsError(f"{folder.name} has no adapter {name[:40]!r}: train one with `shoal gates train`.")
    adapter, own = Adapter.read(found[0]), found[1]
    merged = merge(
        weights,
        adapter,
        model_fingerprint=model_fingerprint,
        plan_fingerprint=None if own else plan.fingerprint,
    )
    plan = Plan.read(own, model_fingerprint=adapter.merged_fingerprint) if own else plan
    return merged, plan, adapter.merged_fingerprint


def _scale(name: str) -> str:
    return f"{name.removesuffix('.weight')}.scale"
