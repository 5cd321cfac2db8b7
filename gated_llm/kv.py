"""Keys and values of the tokens that ran, layer by layer (G4).

Append-only: a layer whose attention branch was skipped for a token stores nothing for it. Keys are stored after the
rotary turn, so position lives in the key and holes need no re-indexing. Knows nothing of plans or budgets.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .config import DecoderConfig

_GROW = 256


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers in order as stretches from up to before."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and found[-1][1] == row:
            found[-1] = (found[-1][0], row + 1)
        else:
            found.append((row, row + 1))
    return found


class KVCache:
    """Buffers of one batch of sequences that advance together.

    `capacity` tokens per layer are allocated at once; a layer that outgrows its buffer gets a larger one.
    """

    def __init__(
        self,
        config: DecoderConfig,
        capacity: Sequence[int],
        *,
        batch: int = 1,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        slots = 2 * config.kv_heads
        self._kv = [torch.empty(batch, n, slots, config.head_dim, dtype=dtype, device=device) for n in capacity]
        self._kv_heads = config.kv_heads
        self._spans: list[list[tuple[int, int]]] = [[] for _ in capacity]
        self._steps: list[Tensor] = []
        self._visible: dict[tuple[object, ...], Tensor] = {}
        self.lengths = [0] * len(capacity)
        self.tokens = 0

    def advance(self, positions: Tensor) -> None:
        """Begins a pass over tokens at `positions` [batch, seq]; -1 marks padding."""
        self._visible.clear()
        self._steps.append(positions)
        self.tokens += positions.shape[1]

    def append(self, layer: int, kv: Tensor, rows: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Stores `kv` [batch, seq, 2 * kv_heads, head_dim] of the pass; returns all keys and values that there are.

        Each is [batch, kv_heads, n, head_dim]. `rows`: which of the tokens so far they are, in order; else the last.
        """
        old, seq = self.lengths[layer], kv.shape[1]
        new = old + seq
        if new > self._kv[layer].shape[1]:
            self._grow(layer, new)
        buffer = self._kv[layer]
        buffer[:, old:new] = kv
        self.lengths[layer] = new
        spans = self._spans[layer]
        for start, stop in [(self.tokens - seq, self.tokens)] if rows is None else _runs(rows):
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], stop)
            else:
                spans.append((start, stop))
        held = buffer[:, :new].transpose(1, 2)
        return held[:, : self._kv_heads], held[:, self._kv_heads :]

    def stored(self, layer: int) -> Tensor:
        """Keys, then values, that this layer holds, [batch, n, 2 * kv_heads, head_dim]; shares memory."""
        return self._kv[layer][:, : self.lengths[layer]]

    def positions(self, layer: int) -> Tensor:
        """Positions [batch, n] of the keys that this layer holds, in order."""
        if len(self._steps) > 1:
            self._steps = [torch.cat(self._steps, dim=1)]
        return torch.cat([self._steps[0][:, start:stop] for start, stop in self._spans[layer]], dim=1)

    def visible(self, layer: int, queries: Tensor, window: int | None) -> Tensor:
        """What the pass's tokens, at `queries` [batch, seq], may see of the layer's keys: 0, else minus infinity, added
        to attention's scores [batch, heads, seq, n]. Padding sees padding.
        """
        q, k = queries[:, None, :, None], self.positions(layer)[:, None, None, :]
        seen = (k <= q) & (k >= 0)
        if window is not None:
            seen &= k > q - window
        seen |= (q < 0) & (k < 0)
        mask = torch.zeros(seen.shape, dtype=self._kv[layer].dtype, device=seen.device)
        return mask.masked_fill_(~seen, -torch.inf)

    def shared_visible(self, layer: int, queries: Tensor, window: int | None) -> Tensor:
        """The same for all tokens of the pass, made once for all layers that hold the same."""
        key = (window, id(queries), *self._spans[layer])
        if key not in self._visible:
            self._visible[key] = self.visible(layer, queries, window)
        return self._visible[key]

    def mark(self) -> tuple[int, tuple[int, ...]]:
        """Where the cache stands now, for `rewind`."""
        return self.tokens, tuple(self.lengths)

    def rewind(self, mark: tuple[int, tuple[int, ...]]) -> None:
        """Forgets every pass since `mark`."""
        self._visible.clear()
        self.tokens, lengths = mark
        self.lengths = list(lengths)
        if self._steps:
            self._steps = [torch.cat(self._steps, dim=1)[:, : self.tokens]]
        for index, spans in enumerate(self._spans):
            self._spans[index] = [(start, min(stop, self.tokens)) for start, stop in spans if start < self.tokens]

    @property
    def bytes_used(self) -> int:
        """Bytes of keys and values stored, without free room."""
        return sum(
            n * buffer[:, :1].numel() * buffer.element_size() for n, buffer in zip(self.lengths, self._kv, strict=True)
        )

    @property
    def bytes_held(self) -> int:
        """Bytes allocated."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._kv)

    def _grow(self, layer: int, needed: int) -> None:
        old = self._kv[layer]
        room = needed + max(_GROW, needed // 2)
        new = torch.empty(old.shape[0], room, *old.shape[2:], dtype=old.dtype, device=old.device)
        new[:, : self.lengths[layer]] = old[:, : self.lengths[layer]]
        self._kv[layer] = new
