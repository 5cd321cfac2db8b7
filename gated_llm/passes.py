"""Passes over a model, by torch or by torch and the native kernel together (G4, G17).

A pass takes stretches of several requests at once. Long stretches of a prompt are bound by arithmetic: torch reads them
in bf16, each by itself. Single tokens, drafts and short stretches are bound by weight traffic: where there is a kernel
it runs all of them together, over the keys and values that torch left. Knows no text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .config import DecoderConfig
from .gated_pass import GatedPass, TorchGates
from .gates import WHOLE_PROMPT, Gates, Thrift
from .gating import Gating
from .matrix import is_4bit
from .model import Decoder, RunMask
from .native import Gated, NativeDecoder, NativeKV, Watch, available, supports
from .signals import Reading

MANY = 96  # tokens from which torch reads faster than the kernel
Run = NDArray[np.uint8]  # [layers, 2]: attention and MLP; 0 skips, 1 runs, 2 (attention) only stores keys and values


class Store(Protocol):
    """One request's keys and values, and how many tokens were passed."""

    tokens: int

    @property
    def bytes_used(self) -> int: ...

    @property
    def bytes_held(self) -> int: ...

    def rewind(self, tokens: int) -> None:
        """Forgets the last pass but for its first `tokens` tokens."""
        ...

    def block(self, start: int, stop: int) -> Tensor | None:
        """A copy of what layers hold of tokens start to stop, [layers, n, 2 * kv_heads, head_dim], where torch read
        them in every layer; else None."""
        ...

    def preload(self, block: Tensor) -> None:
        """Takes over a block of the prompt's beginning, right after those before it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Tokens of one request to pass in order. Logits are given after the last one, or after `every` one.

    `run`: branches to run, None for all; or `gating` decides between two blocks of the pass, for one token. With
    `thrift`, tokens of a prompt whose branches gates may leave out of `run`.
    """

    store: Store
    ids: Sequence[int]
    run: Run | None = None
    every: bool = False
    gating: Gating | None = None
    thrift: Thrift | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """fp32 logits [1 or n, vocab] of a stretch, and its residual stream [n, hidden] where it is at hand.

    `branch_runs` [layers, 2]: tokens of a prompt for which each branch ran, where gates decided.
    """

    logits: Tensor
    states: NDArray[np.float32] | None
    branch_runs: NDArray[np.int64] | None = None


class Model(Protocol):
    """What makes passes; one thread may. `token_bytes`: of one token's keys and values in one layer.

    `exact_rows`: a token's result is the same to the bit alone or beside others, so that drafts can be verified.
    """

    config: DecoderConfig
    token_bytes: int
    exact_rows: bool

    def store(self, capacity: Sequence[int]) -> Store:
        """An empty store with room for `capacity` tokens in each layer."""
        ...

    def run(self, stretches: Sequence[Stretch]) -> list[Passed]:
        """One pass over stretches of different requests; each result is what it would be alone, to the bit."""
        ...

    def set_gates(self, gates: Gates) -> None:
        """The learned gates that `thrift` is for from the next pass on; those it has already cost nothing. Raises
        PlanError where their shape is another model's.
        """
        ...

    def set_threads(self, threads: int) -> None: ...

    def close(self) -> None: ...


def _mask(run: Run | None) -> RunMask | None:
    return None if run is None else [(attention == 1, bool(mlp)) for attention, mlp in run.tolist()]


def _runs(gated: GatedPass | None) -> NDArray[np.int64] | None:
    return None if gated is None else gated.ran.sum(0, dtype=torch.int64).numpy()


class TorchStore:
    """Keys and values in torch's own layout."""

    def __init__(self, decoder: Decoder, capacity: Sequence[int]) -> None:
        self._decoder, self.cache, self.tokens = decoder, decoder.cache(capacity), 0
        self._mark = self.cache.mark()
        self._run: Run | None = None

    @property
    def bytes_used(self) -> int:
        return self.cache.bytes_used

    @property
    def bytes_held(self) -> int:
        return self.cache.bytes_held

    @torch.inference_mode()
    def read(
        self,
        ids: Sequence[int],
        run: Run | None,
        *,
        every: bool = False,
        thrift: Thrift | None = None,
        prompt: bool = True,
    ) -> tuple[Tensor, GatedPass | None]:
        """fp32 logits [1 or n, vocab] after the last or every token, and what gates did with a `thrift`."""
        self._mark, self._run = self.cache.mark(), run
        places, gated = self._places(len(ids)), None
        if thrift is not None:
            assert self._decoder.gates is not None
            gated = self._decoder.gates.begin(thrift, places, prompt=prompt)
        hidden = self._forward(ids, places, run, gated)
        return self._decoder.logits(hidden[0] if every else hidden[0, -1:]), gated

    def rewind(self, tokens: int) -> None:
        passed, lengths = self._mark
        if self.tokens - passed != tokens:
            kept = [n + tokens * (self._run is None or bool(self._run[i, 0])) for i, n in enumerate(lengths)]
            self.cache.rewind((passed + tokens, tuple(kept)))
            self.tokens = passed + tokens

    def block(self, start: int, stop: int) -> Tensor | None:
        if any(n < stop for n in self.cache.lengths):
            return None
        return torch.stack([self.cache.stored(i)[0, start:stop] for i in range(self._decoder.config.layers)])

    def preload(self, block: Tensor) -> None:
        self.cache.advance(self._places(block.shape[1]))
        for layer, kv in enumerate(block):
            self.cache.append(layer, kv[None])

    def _forward(self, ids: Sequence[int], places: Tensor, run: Run | None, gated: GatedPass | None) -> Tensor:
        keep = run is not None and bool((run[:, 0] == 2).any())
        tokens = torch.tensor([list(ids)], device=self._decoder.device)
        return self._decoder.forward(tokens, places, self.cache, _mask(run), keep_skipped=keep, gates=gated)

    def _places(self, more: int) -> Tensor:
        start, self.tokens = self.tokens, self.tokens + more
        return torch.arange(start, start + more, device=self._decoder.device)[None]


class TorchModel:
    """Every pass by torch, on a GPU or a CPU."""

    exact_rows = False

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.config = decoder, decoder.config
        self._gates: Gates | None = None
        self.token_bytes = 2 * self.config.kv_heads * self.config.head_dim * decoder.dtype.itemsize

    def store(self, capacity: Sequence[int]) -> TorchStore:
        return TorchStore(self.decoder, capacity)

    def run(self, stretches: Sequence[Stretch]) -> list[Passed]:
        return [self._one(stretch) for stretch in stretches]

    @staticmethod
    def _one(stretch: Stretch) -> Passed:
        assert isinstance(stretch.store, TorchStore)
        gating, run, thrift = stretch.gating, stretch.run, stretch.thrift
        if gating is not None:
            run, thrift = gating.begin(), gating.thrift
        logits, gated = stretch.store.read(stretch.ids, run, every=stretch.every, thrift=thrift, prompt=gating is None)
        if gating is not None and gated is not None:
            gating.gated(gated.ran[0].numpy(), gated.alpha[0].numpy())
        return Passed(logits=logits, states=None, branch_runs=_runs(gated))

    def set_gates(self, gates: Gates) -> None:
        if gates is not self._gates:
            gates.check(self.config.layers, self.config.hidden, gates.model_fingerprint)
            self.decoder.gates, self._gates = TorchGates(gates, self.decoder.device), gates

    def set_threads(self, threads: int) -> None:
        """torch's own setting is all there is."""

    def close(self) -> None:
        """Nothing but memory is held."""


class KernelStore:
    """Keys and values in torch's layout while torch reads the prompt, then in the kernel's."""

    def __init__(self, reader: Decoder | None, kernel: NativeDecoder, capacity: Sequence[int]) -> None:
        self._reader, self._kernel, self._capacity, self.tokens = reader, kernel, capacity, 0
        self._long: TorchStore | None = None
        self._kv: NativeKV | None = None
        self._before: tuple[int, NDArray[np.int32]] = (0, np.zeros(kernel.config.layers, np.int32))

    @property
    def bytes_used(self) -> int:
        held = self._kv or self._long
        return held.bytes_used if held else 0

    @property
    def bytes_held(self) -> int:
        held = self._kv or self._long
        return held.bytes_held if held else 0

    def is_long(self, ids: Sequence[int]) -> bool:
        """Whether torch should read these tokens next."""
        return self._reader is not None and self._kv is None and len(ids) >= MANY

    def read(self, stretch: "Stretch") -> Passed:
        """A long stretch, by torch."""
        logits, gated = self._torch().read(stretch.ids, stretch.run, every=stretch.every, thrift=stretch.thrift)
        self.tokens += len(stretch.ids)
        return Passed(logits=logits, states=None, branch_runs=_runs(gated))

    def kv(self) -> NativeKV:
        """The kernel's store, about to grow; from the first call on torch reads no more."""
        kv = self._kv = self._kv or self._moved()
        self._before = self.tokens, kv.lengths.copy()
        return kv

    def rewind(self, tokens: int) -> None:
        before, lengths = self._before
        passed = self.tokens - before
        if self._kv is not None and tokens < passed:
            grown = (self._kv.lengths - lengths) // passed  # 0 or 1 for each token, as one mask holds for all
            self._kv.truncate((lengths + grown * tokens).astype(np.int32))
            self.tokens = before + tokens

    def block(self, start: int, stop: int) -> Tensor | None:
        return None if self._long is None else self._long.block(start, stop)

    def preload(self, block: Tensor) -> None:
        self._torch().preload(block)
        self.tokens += block.shape[1]

    def _torch(self) -> TorchStore:
        assert self._reader is not None
        self._long = self._long or TorchStore(self._reader, self._capacity)
        return self._long

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


class KernelModel:
    """Long stretches by torch, the rest by the kernel. Without a `reader` the kernel reads everything."""

    exact_rows = True

    def __init__(self, reader: Decoder | None, kernel: NativeDecoder) -> None:
        self.reader, self.kernel, self.config = reader, kernel, kernel.config
        self._gates: Gates | None = None
        self.token_bytes = kernel.new_kv(0).bytes_per_token

    @classmethod
    def load(
        cls, config: DecoderConfig, weights: Mapping[str, Tensor], *, bits: int | None = None, reader: bool = True
    ) -> Self | None:
        """The model where the kernel can run it here, else None. `bits` 4 or 8; None is 4 where that loses nothing."""
        if not (supports(config) and available()):
            return None
        if bits is None:
            inner = [name for name in weights if "layers." in name and name.endswith("_proj.weight")]
            bits = 4 if all(is_4bit(weights[name]) for name in inner) else 8
        kernel = NativeDecoder(config, weights, bits=bits, threads=torch.get_num_threads(), kv="bf16")
        return cls(Decoder(config, weights, dtype="bf16") if reader else None, kernel)

    def store(self, capacity: Sequence[int]) -> KernelStore:
        return KernelStore(self.reader, self.kernel, capacity)

    def run(self, stretches: Sequence[Stretch]) -> list[Passed]:
        passed: list[Passed | None] = [None] * len(stretches)
        short = []
        for i, stretch in enumerate(stretches):
            assert isinstance(stretch.store, KernelStore)
            if stretch.store.is_long(stretch.ids):
                passed[i] = stretch.store.read(stretch)
            else:
                short.append(i)
        for i, result in zip(short, self._together([stretches[i] for i in short]) if short else (), strict=True):
            passed[i] = result
        return [result for result in passed if result is not None]

    def _together(self, stretches: Sequence[Stretch]) -> list[Passed]:
        """One pass of the kernel over all rows of the stretches."""
        rows = _Rows(self.config.layers)
        for stretch in stretches:
            assert isinstance(stretch.store, KernelStore)
            rows.add(stretch, stretch.store)
        run = rows.masks()
        gated = Gated.of(self.config, rows.thrifts, run) if any(rows.thrifts) else None
        if gated is not None:
            run = gated.run
        states = np.empty((len(rows.ids), self.config.hidden), np.float32)
        probes = {stretch.gating.probe for stretch in stretches if stretch.gating is not None}
        first = 0
        for probe in sorted(probe for probe in probes if probe is not None):
            watch = Watch.of(self.config, len(rows.ids), probe - 1)
            self.kernel.forward(
                rows.ids, rows.kvs, rows.places, run, layers=(first, probe), states=states, watch=watch, gated=gated
            )
            rows.decide(probe, run, states, watch)
            first = probe
        last = self.config.layers
        logits = self.kernel.forward(
            rows.ids, rows.kvs, rows.places, run, wanted=rows.wanted, layers=(first, last), states=states, gated=gated
        )
        passed, at = [], 0
        for stretch, (start, stop) in zip(stretches, rows.spans, strict=True):
            stretch.store.tokens += stop - start
            n = stop - start if stretch.every else 1
            runs = None
            if gated is not None and stretch.gating is not None and stretch.gating.thrift is not None:
                stretch.gating.gated(run[start], gated.alpha[start])
            elif stretch.thrift is not None:
                runs = (run[start:stop] == 1).sum(0, dtype=np.int64)
            passed.append(Passed(logits=logits[at : at + n], states=states[start:stop], branch_runs=runs))
            at += n
        return passed

    def set_gates(self, gates: Gates) -> None:
        if gates is self._gates:
            return
        self.kernel.set_gates(gates)
        if self.reader is not None:
            self.reader.gates = TorchGates(gates, self.reader.device)
        self._gates = gates

    def set_threads(self, threads: int) -> None:
        self.kernel.set_threads(threads)

    def close(self) -> None:
        self.kernel.close()


class _Rows:
    """The rows of one kernel pass, stretch after stretch."""

    def __init__(self, layers: int) -> None:
        self.ids: list[int] = []
        self.kvs: list[NativeKV] = []
        self.places: list[int] = []
        self.wanted: list[int] = []
        self.spans: list[tuple[int, int]] = []
        self._masks: list[Run] = []
        self._probed: list[tuple[int, Gating]] = []
        self.thrifts: list[Thrift | None] = []  # of rows that gates decide on
        self._all = np.ones((layers, 2), np.uint8)

    def add(self, stretch: Stretch, store: KernelStore) -> None:
        start, n, kv = len(self.ids), len(stretch.ids), store.kv()
        self.ids += stretch.ids
        self.kvs += [kv] * n
        self.places += range(store.tokens, store.tokens + n)
        self.wanted += range(start, start + n) if stretch.every else [start + n - 1]
        self.spans.append((start, start + n))
        run = self._all if stretch.run is None else stretch.run
        if stretch.gating is not None:
            run = stretch.gating.begin()
            if stretch.gating.probe is not None:
                self._probed.append((start, stretch.gating))
            self.thrifts.append(stretch.gating.thrift)
        else:
            self.thrifts += [stretch.thrift if at >= WHOLE_PROMPT else None for at in self.places[start:]]
        self._masks += [run] * n

    def masks(self) -> Run:
        """What every row runs, [rows, layers, 2]."""
        return np.stack(self._masks)

    def decide(self, probe: int, run: Run, states: NDArray[np.float32], watch: Watch) -> None:
        """Lets every request that decides after `probe` blocks choose the rest of its mask in `run`."""
        for row, gating in self._probed:
            if gating.probe == probe:
                reading = Reading(state=states[row], middle=watch.middle[row], gaps=watch.gaps[row])
                run[row, probe:] = gating.decide(reading)[probe:]
