"""A model folder's tensors and their fingerprint. Reads safetensors only."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .errors import WeightsError

_SAMPLE = 1024  # elements at either end of a tensor
# Where models that see pictures keep the decoder, and where other models have it.
_LANGUAGE_PARTS = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor in the folder's safetensors files, mapped from disk, by name; of a model that sees pictures only the
    decoder's, named as if it were alone. Raises WeightsError.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    try:
        if index.exists():
            files = [folder / name for name in sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))]
        else:
            files = [folder / "model.safetensors"]
        return _decoder_only({name: tensor for file in files for name, tensor in load_file(file).items()})
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise WeightsError(
            f"The weights in {folder} cannot be read ({error}): remove the folder and pull again."
        ) from error


def _decoder_only(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    own = {
        ours + name.removeprefix(theirs): tensor
        for name, tensor in tensors.items()
        for theirs, ours in _LANGUAGE_PARTS.items()
        if name.startswith(theirs)
    }
    return own or tensors


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
