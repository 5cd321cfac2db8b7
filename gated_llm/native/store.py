"""Keys and values of one request as the native kernel reads and writes them (G4).

Per layer only what ran. Keys lie in blocks of 16 positions with the position last, so that a vector lane is a position;
values lie as they come. Knows no weights.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config import DecoderConfig
from . import abi

KvType = Literal["fp32", "fp16", "bf16"]
KV_TYPES: dict[KvType, tuple[int, torch.dtype]] = {
    "fp32": (0, torch.float32),
    "fp16": (1, torch.float16),
    "bf16": (2, torch.bfloat16),
}
_BLOCK = 16  # positions of a key block; the kernel's BLOCK


class NativeKV:
    """One request's keys and values, layer by layer: only what ran. Grows by itself."""

    __slots__ = ("_capacity", "_data", "_dtype", "_pointers", "_positions", "_shape", "lengths", "struct")

    def __init__(self, config: DecoderConfig, capacity: int | Sequence[int], kind: KvType) -> None:
        self._shape, self._dtype = (config.kv_heads, config.head_dim), KV_TYPES[kind][1]
        self._capacity = np.zeros(config.layers, np.int32)
        self._capacity[:] = capacity
        self._capacity[:] = -(-self._capacity // _BLOCK) * _BLOCK
        self._data = [self._buffer(n) for n in self._capacity.tolist()]
        self._positions = [np.empty(n, np.int32) for n in self._capacity.tolist()]
        self._pointers = np.empty((2, config.layers), np.uintp)
        self.lengths = np.zeros(config.layers, np.int32)
        self._describe()

    def reserve(self, more: int) -> None:
        """Makes room for `more` tokens in every layer."""
        for layer in np.flatnonzero(self.lengths + more > self._capacity).tolist():
            held, room = int(self.lengths[layer]), int(self.lengths[layer]) + more
            room = -(-(room + max(64, room // 2)) // _BLOCK) * _BLOCK
            data, positions, blocks = self._data[layer], self._positions[layer], -(-held // _BLOCK) * _BLOCK
            self._data[layer] = self._buffer(room)
            self._data[layer][:, :, :blocks] = data[:, :, :blocks]
            self._positions[layer] = np.empty(room, np.int32)
            self._positions[layer][:held] = positions[:held]
            self._capacity[layer] = room
            self._point(layer)

    def append(self, layer: int, kv: Tensor, positions: Sequence[int] | NDArray[np.int32]) -> None:
        """Stores `kv` [n, 2 * kv_heads, head_dim] (keys after the rotary turn, then values) computed elsewhere."""
        self.reserve(len(positions))
        (heads, dim), old = self._shape, int(self.lengths[layer])
        slots = torch.arange(old, old + len(positions))
        same = kv.to(self._dtype)
        self._data[layer][0].view(heads, -1, dim, _BLOCK)[:, slots // _BLOCK, :, slots % _BLOCK] = same[:, :heads]
        self._data[layer][1, :, slots] = same[:, heads:].transpose(0, 1)
        self._positions[layer][old : old + len(positions)] = positions
        self.lengths[layer] += len(positions)

    def view(self, layer: int) -> tuple[Tensor, Tensor, NDArray[np.int32]]:
        """What `layer` holds: keys and values [kv_heads, n, head_dim] (copies) and positions [n]."""
        n, (heads, dim) = int(self.lengths[layer]), self._shape
        keys = self._data[layer][0].view(heads, -1, dim, _BLOCK).transpose(2, 3).reshape(heads, -1, dim)
        return keys[:, :n].clone(), self._data[layer][1, :, :n].clone(), self._positions[layer][:n].copy()

    def truncate(self, lengths: NDArray[np.int32]) -> None:
        """Forgets all but the first `lengths[layer]` tokens of each layer, as after a rejected draft."""
        if (lengths > self.lengths).any() or (lengths < 0).any():
            raise ValueError("truncate() can only shorten a key/value store.")
        self.lengths[:] = lengths

    def copy(self) -> "NativeKV":
        """An independent copy, as for a prefix that several requests share."""
        twin = object.__new__(NativeKV)
        twin._shape, twin._dtype = self._shape, self._dtype
        twin._capacity, twin.lengths, twin._pointers = self._capacity.copy(), self.lengths.copy(), self._pointers.copy()
        twin._data = [data.clone() for data in self._data]
        twin._positions = [positions.copy() for positions in self._positions]
        twin._describe()
        return twin

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in one layer."""
        return 2 * self._shape[0] * self._shape[1] * self._dtype.itemsize

    @property
    def bytes_used(self) -> int:
        """Bytes of keys and values stored, without free room."""
        return int(self.lengths.sum()) * self.bytes_per_token

    @property
    def bytes_held(self) -> int:
        """Bytes allocated."""
        return sum(data.nbytes for data in self._data)

    def _buffer(self, capacity: int) -> Tensor:
        # zeros: a block's free lanes are multiplied, though never used
        return torch.zeros(2, self._shape[0], capacity, self._shape[1], dtype=self._dtype)

    def _describe(self) -> None:
        for layer in range(len(self._data)):
            self._point(layer)
        arrays = *self._pointers, self.lengths, self._capacity
        self.struct = abi.Kv(*(array.ctypes.data for array in arrays))

    def _point(self, layer: int) -> None:
        self._pointers[:, layer] = self._data[layer].data_ptr(), self._positions[layer].ctypes.data
