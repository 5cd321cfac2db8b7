"""A model in memory with the plan it is served by, from a folder of weights (G13, G18).

Knows which of torch and the kernel should run it here, and where plans and adapters lie. Knows no requests.
"""

import ctypes
import gc
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .config import DecoderConfig
from .errors import PlanError
from .gates import Gates
from .policy import Plan
from .rules import Rules

if TYPE_CHECKING:
    from torch import Tensor

    from .draft import TrainedDraft
    from .passes import Model

ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """`fingerprint` is that of the weights, with what was merged into them.

    `rules`: its calibrated thresholds; `gates`: learned ones; `draft`: a network in its folder that guesses its next
    tokens; None without.
    """

    model: "Model"
    plan: Plan
    fingerprint: str
    draft: "TrainedDraft | None" = None
    rules: Rules | None = None
    gates: Gates | None = None

    @property
    def gate_fingerprint(self) -> str:
        """Changes with the plan, the thresholds and the learned gates."""
        known = "" if self.rules is None else hashlib.sha256(repr(self.rules.points).encode()).hexdigest()[:8]
        return f"{self.plan.fingerprint}{known}{'' if self.gates is None else self.gates.fingerprint}"


class Folder:
    """Makes `Served` models of a folder. `dtype` as `GatedLLM.load` takes it; `reader`: torch reads long prompts."""

    def __init__(self, path: Path, *, dtype: str, reader: bool) -> None:
        self.path, self._dtype, self._reader = path, dtype, reader
        self.config = DecoderConfig.from_folder(path)

    @property
    def adapters(self) -> dict[str, str]:
        """Fingerprints of the adapters that there are for this model, with their gates, by name; the folder's own come
        first.
        """
        head, tail, own = f"{self.path.name}.", ".safetensors", ".adapter.safetensors"
        found = {path.name.removeprefix(head).removesuffix(tail): path for path in ASSETS.glob(f"{head}*{tail}")}
        for other in [name for name in found if name.split(".")[-1] in ("draft", "gates")]:
            found.pop(other)
        found |= {path.name.removesuffix(own): path for path in self.path.glob(f"*{own}")}
        return {
            name: hashlib.sha256(b"".join(p.read_bytes() for p in parts if p.exists())).hexdigest()[:8]
            for name in sorted(found)
            for parts in [(found[name], gates_file(self.path, name))]
        }

    def serve(self, adapter: str | None = None) -> Served:
        """Reads the weights, with an adapter merged into them where one is named. Raises WeightsError, PlanError."""
        from .checkpoint import fingerprint, read_tensors
        from .draft import TrainedDraft

        weights: Mapping[str, Tensor] = read_tensors(self.path)
        known = fingerprint(weights)
        plan = find_plan(self.path, self.config, known)
        if adapter is not None:
            from .lora import adapted

            weights, plan, known = adapted(self.path, adapter, weights, plan, model_fingerprint=known)
        made = Served(
            model=self._place(weights, merged=adapter is not None),
            plan=plan,
            fingerprint=known,
            rules=find_rules(self.path, self.config, known),
            gates=self.gates(adapter, known),
            draft=TrainedDraft.load(self.path / "draft.safetensors", weights["model.embed_tokens.weight"], known),
        )
        del weights
        _give_back()
        return made

    def gates(self, adapter: str | None, model_fingerprint: str) -> Gates | None:
        """The learned gates that there are now. Raises PlanError."""
        return find_gates(self.path, self.config, model_fingerprint, adapter)

    def _place(self, weights: "Mapping[str, Tensor]", *, merged: bool) -> "Model":
        """The model in memory: on a GPU by torch, on a CPU by the native kernel where there is one for it.

        A checkpoint may fit 4 bits because it was made so; weights that were `merged` with others lose too much there.
        """
        import torch

        from .model import Decoder
        from .passes import KernelModel, TorchModel

        dtype, cuda = self._dtype, torch.cuda.is_available()
        if dtype in ("int4", "int8") or (dtype == "auto" and not cuda):
            bits = {"int4": 8 if merged else 4, "int8": 8}.get(dtype)
            model = KernelModel.load(self.config, weights, bits=bits, reader=self._reader)
            if model is not None:
                return model
        chosen = ("bf16" if cuda else "exact") if dtype == "auto" else dtype
        device = "cuda" if cuda and chosen in ("bf16", "fp32") else "cpu"
        return TorchModel(Decoder(self.config, weights, dtype=chosen, device=device))


def find_plan(folder: Path, config: DecoderConfig, model_fingerprint: str) -> Plan:
    """The plan in the model's folder, else the one that ships under its name, else none: full depth only.

    Raises PlanError.
    """
    for path in (folder / "plan.json", ASSETS / f"{folder.name}.plan.json"):
        if path.exists():
            plan = Plan.read(path, model_fingerprint=model_fingerprint)
            if plan.total != config.layers:
                raise PlanError(
                    f"{path} is a plan for {plan.total} layers, this model has {config.layers}: calibrate again with "
                    "`shoal gates calibrate`."
                )
            return plan
    return Plan(total=config.layers, attention_share=config.attention_share, model_fingerprint=model_fingerprint)


def find_rules(folder: Path, config: DecoderConfig, model_fingerprint: str) -> Rules | None:
    """The thresholds in the model's folder, else those that ship for this very model, else none. Raises PlanError."""
    if (path := folder / "signals.json").exists():
        rules = Rules.read(path, model_fingerprint=model_fingerprint)
        rules.check(config.layers, config.hidden)
        return rules
    shipped = Rules.shipped(folder.name)
    return shipped if shipped is not None and shipped.model_fingerprint == model_fingerprint else None


def gates_name(adapter: str | None = None) -> str:
    """What the file of a model's learned gates, or of an adapter's, is called."""
    return "gates.safetensors" if adapter is None else f"{adapter}.gates.safetensors"


def gates_file(folder: Path, adapter: str | None = None) -> Path:
    """Where learned gates are read from: the model's folder, `NAME.gates.safetensors` for those of an adapter, else
    what ships under the model's name. There need be none.
    """
    own = folder / gates_name(adapter)
    return own if own.exists() else ASSETS / f"{folder.name}.{own.name}"


def find_gates(folder: Path, config: DecoderConfig, model_fingerprint: str, adapter: str | None = None) -> Gates | None:
    """Learned gates in the model's folder, else those that ship for this very model, else none. Raises PlanError."""
    path = gates_file(folder, adapter)
    if not path.exists():
        return None
    gates = Gates.read(path)
    if path.parent == ASSETS and gates.model_fingerprint != model_fingerprint:
        return None
    gates.check(config.layers, config.hidden, model_fingerprint, path)
    return gates


def _give_back() -> None:
    """Hands what loading needed back to the system, where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
