"""Keys and values of whole blocks of prompts, shared by requests that begin alike (G17).

A prompt is always read in blocks that begin and end at the same places, so that what a block holds depends only on the
tokens up to its end, to the bit: an answer is the same whether its prompt's first blocks were read or found here (G8).
The idea is that of automatic prefix caching in vLLM. Knows no weights and no text.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

FIRST, NEXT = (256, 512), 512  # ends of the first blocks, and tokens of each further one


def blocks(tokens: int) -> Iterator[tuple[int, int]]:
    """Where the blocks of a prompt of `tokens` begin and end; the last one may be shorter."""
    start = 0
    while start < tokens:
        end = next((at for at in FIRST if at > start), start + NEXT)
        yield start, min(end, tokens)
        start = end


class PrefixStore:
    """Blocks least recently used leave first. `bytes_held` never exceeds `most_bytes`. Not thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self.bytes_held, self.found = most_bytes, 0, 0
        self._blocks: OrderedDict[bytes, Tensor] = OrderedDict()

    def find(self, ids: Sequence[int], partition: str) -> "list[Tensor]":
        """Keys and values [layers, n, 2 * kv_heads, head_dim] of the leading whole blocks of `ids` that are held.

        The last token is never among them: its pass gives the logits that choose the first new one.
        """
        found = []
        for end, key in self._keys(ids, partition):
            if end >= len(ids) or key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            found.append(self._blocks[key])
        self.found += sum(block.shape[1] for block in found)
        return found

    def keep(self, ids: Sequence[int], partition: str, block: "Tensor") -> None:
        """Keeps the block that ends after `ids`, the prompt's tokens up to there."""
        key = next((key for end, key in self._keys(ids, partition) if end == len(ids)), None)
        size = block.numel() * block.element_size()
        if key is None or key in self._blocks or size > self._most:
            return
        while self.bytes_held + size > self._most:
            _, old = self._blocks.popitem(last=False)
            self.bytes_held -= old.numel() * old.element_size()
        self._blocks[key] = block
        self.bytes_held += size

    def clear(self) -> None:
        """Forgets every block."""
        self._blocks.clear()
        self.bytes_held = 0

    @staticmethod
    def _keys(ids: Sequence[int], partition: str) -> Iterator[tuple[int, bytes]]:
        """End and key of every whole block; a key stands for all tokens up to the block's end."""
        chain = hashlib.blake2b(partition.encode(), digest_size=16)
        for start, end in blocks(len(ids)):
            if end in FIRST or (end > FIRST[-1] and end - start == NEXT):
                chain.update(np.asarray(ids[start:end], np.int32).tobytes())
                yield end, chain.copy().digest()
