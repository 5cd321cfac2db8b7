"""Passes of one request over a model, by torch or by torch and the native kernel together (G4, G17).

Long stretches of a prompt are bound by arithmetic: torch reads them in bf16. Single tokens and short stretches are
bound by weight traffic: where there is a kernel it runs them, over the keys and values that torch left. Knows no text.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from .config import DecoderConfig
from .matrix import is_4bit
from .model import Decoder, RunMask
from .native import NativeDecoder, NativeKV, available, supports

MANY = 96  # tokens from which torch reads faster than the kernel


class Passes(Protocol):
    """One request's keys and values. Called with tokens in order, gives fp32 logits [vocab] after the last of them."""

    tokens: int  # passed so far

    def __call__(self, ids: list[int], mask: RunMask | None, /) -> Tensor: ...


class Model(Protocol):
    """What makes passes."""

    config: DecoderConfig

    def passes(self, capacity: Sequence[int]) -> Passes:
        """Passes of a new request, with room for `capacity` tokens in each layer."""
        ...

    def close(self) -> None: ...


class TorchModel:
    """Every pass by torch, on a GPU or a CPU."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.config = decoder, decoder.config

    def passes(self, capacity: Sequence[int]) -> "TorchPasses":
        return TorchPasses(self.decoder, capacity)

    def close(self) -> None:
        """Nothing but memory is held."""


class TorchPasses:
    def __init__(self, decoder: Decoder, capacity: Sequence[int]) -> None:
        self._decoder, self.cache, self.tokens = decoder, decoder.cache(capacity), 0

    @torch.inference_mode()
    def __call__(self, ids: list[int], mask: RunMask | None, /) -> Tensor:
        device = self._decoder.device
        positions = torch.arange(self.tokens, self.tokens + len(ids), device=device)[None]
        self.tokens += len(ids)
        hidden = self._decoder.forward(torch.tensor([ids], device=device), positions, self.cache, mask)
        return self._decoder.logits(hidden[0, -1:])[0]


class KernelModel:
    """Long stretches by torch, the rest by the kernel."""

    def __init__(self, reader: Decoder, kernel: NativeDecoder) -> None:
        self.reader, self.kernel, self.config = reader, kernel, reader.config

    @classmethod
    def load(cls, config: DecoderConfig, weights: Mapping[str, Tensor], *, bits: int | None = None) -> Self | None:
        """The model where the kernel can run it here, else None. `bits` 4 or 8; None is 4 where that loses nothing."""
        if not (supports(config) and available()):
            return None
        if bits is None:
            bits = (
                4
                if all(
                    is_4bit(weights[name]) for name in weights if "layers." in name and name.endswith("_proj.weight")
                )
                else 8
            )
        kernel = NativeDecoder(config, weights, bits=bits, threads=torch.get_num_threads(), kv="bf16")
        return cls(Decoder(config, weights, dtype="bf16"), kernel)

    def passes(self, capacity: Sequence[int]) -> "KernelPasses":
        return KernelPasses(self.reader, self.kernel, capacity)

    def close(self) -> None:
        self.kernel.close()


class KernelPasses:
    def __init__(self, reader: Decoder, kernel: NativeDecoder, capacity: Sequence[int]) -> None:
        self._reader, self._kernel, self._capacity, self.tokens = reader, kernel, capacity, 0
        self._long: TorchPasses | None = None
        self._kv: NativeKV | None = None
        self._masks: dict[int, tuple[RunMask, np.ndarray]] = {}

    def __call__(self, ids: list[int], mask: RunMask | None, /) -> Tensor:
        if self._kv is None and len(ids) >= MANY:
            self._long = self._long or TorchPasses(self._reader, self._capacity)
            self.tokens += len(ids)
            return self._long(ids, mask)
        kv = self._kv = self._kv or self._moved()
        places = range(self.tokens, self.tokens + len(ids))
        self.tokens += len(ids)
        return self._kernel.forward(ids, [kv] * len(ids), list(places), self._array(mask), wanted=[len(ids) - 1])[0]

    def _array(self, mask: RunMask | None) -> np.ndarray | None:
        if mask is None:
            return None
        if id(mask) not in self._masks:
            self._masks[id(mask)] = mask, np.array(mask, np.uint8)  # the mask is kept, so that its id stays its own
        return self._masks[id(mask)][1]

    @torch.inference_mode()
    def _moved(self) -> NativeKV:
        """The kernel's store, with what torch has read in it."""
        kv = self._kernel.new_kv(self._capacity)
        if self._long is not None:
            cache = self._long.cache
            for layer, length in enumerate(cache.lengths):
                if length:
                    kv.append(layer, cache.stored(layer)[0], cache.positions(layer)[0].tolist())
            self._long = None
        return kv
