"""Vectors of single words from the embedder, remembered (C4): what tells a synonym from another thing.

Knows nothing of texts or pairs.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from .semantic import Embed

FloatArray = NDArray[np.float32]


class Words:
    """Words to unit vectors. Thread-safe; the last `size` words are kept, in half precision (1 KB each at 512)."""

    def __init__(self, embed: Embed, size: int = 8192) -> None:
        self._embed, self._size = embed, size
        self._known: OrderedDict[str, NDArray[np.float16]] = OrderedDict()
        self._lock = Lock()

    def __call__(self, words: Sequence[str]) -> FloatArray:
        """Unit vectors [n, dim] of n > 0 words."""
        with self._lock:
            found = {w: self._known[w] for w in words if w in self._known}
        new = [w for w in dict.fromkeys(words) if w not in found]
        if new:
            found.update(zip(new, self._embed(new).astype(np.float16), strict=True))
        with self._lock:
            for word in words:
                self._known[word] = found[word]
                self._known.move_to_end(word)
            while len(self._known) > self._size:
                self._known.popitem(last=False)
        return np.stack([found[w] for w in words]).astype(np.float32)
