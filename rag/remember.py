"""Vectors of texts met lately: one that comes again, or in another part of the same request, is embedded once.

Knows no embedder and keeps no text, only its hash. Bulk loads pass by.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from threading import Lock

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

_BULK = 64  # texts at once from which they are a load rather than a request


def digest(text: str) -> bytes:
    """What stands for a text here."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Remembered:
    """The vectors of the last `size` texts (2 KB each at 512 dimensions). Safe to use from many threads."""

    def __init__(self, size: int = 8192) -> None:
        self._size, self._lock = size, Lock()
        self._known: OrderedDict[bytes, FloatArray] = OrderedDict()

    def __call__(self, texts: Sequence[str], encode: Callable[[list[str]], FloatArray]) -> FloatArray:
        """Vectors [n, dim] of n texts; `encode` makes those that are not known, in one call."""
        if not texts or len(texts) > _BULK:
            return encode(list(texts))
        keys = [digest(text) for text in texts]
        with self._lock:
            found = {key: self._known[key] for key in keys if key in self._known}
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if new:
            found.update((key, row.copy()) for key, row in zip(new, encode(list(new.values())), strict=True))
        with self._lock:
            for key in keys:
                self._known[key] = found[key]
                self._known.move_to_end(key)
            while len(self._known) > self._size:
                self._known.popitem(last=False)
        return np.stack([found[key] for key in keys])
