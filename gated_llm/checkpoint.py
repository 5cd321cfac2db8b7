"""A model folder's tensors and their fingerprint. Reads safetensors only."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import WeightsError

_READS = 32  # tensors mapped before a file's pages are let go
_SAMPLE = 1024  # elements at either end of a tensor
# Where models that see pictures keep the decoder, and where other models have it.
_LANGUAGE_PARTS = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}


class Tensors(Mapping[str, Tensor]):
    """A folder's tensors by name, each mapped from disk when it is asked for: memory holds those in use, not all."""

    def __init__(self, folder: Path, places: Mapping[str, tuple[Path, str]]) -> None:
        """`places`: the file of each tensor and its name there."""
        self._folder, self._places = folder, places
        self._held: tuple[Path, Any] | None = None
        self._left = 0  # reads until the file is opened anew, which lets go of the pages that were read

    def __getitem__(self, name: str) -> Tensor:
        file, there = self._places[name]
        with _explained(self._folder):
            if self._held is None or self._held[0] != file or not self._left:
                self._held, self._left = (file, _opened(file)), _READS
            self._left -= 1
            tensor: Tensor = self._held[1].get_tensor(there)
            return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places


def read_tensors(folder: Path) -> Tensors:
    """Every tensor in the folder's safetensors files; of a model that sees pictures only the decoder's, named as if it
    were alone. Raises WeightsError.
    """
    index = folder / "model.safetensors.index.json"
    places: dict[str, tuple[Path, str]] = {}
    with _explained(folder):
        files = {"model.safetensors"}
        if index.exists():
            files = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        for file in sorted(folder / name for name in files):
            places |= {name: (file, name) for name in _opened(file).keys()}  # noqa: SIM118 (no mapping)
    own = {
        ours + name.removeprefix(theirs): place
        for name, place in places.items()
        for theirs, ours in _LANGUAGE_PARTS.items()
        if name.startswith(theirs)
    }
    return Tensors(folder, own or places)


def _opened(file: Path) -> Any:
    from safetensors import safe_open

    return safe_open(str(file), framework="pt")


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Failures to read become WeightsError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise WeightsError(
            f"The weights in {folder} cannot be read ({error}): remove the folder and pull again."
        ) from error


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Twelve hex digits from every tensor's name, shape, type and both ends: cheap; another training run changes it."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name]
        flat = tensor.reshape(-1)
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        for end in (flat[:_SAMPLE], flat[-_SAMPLE:]):
            digest.update(end.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
