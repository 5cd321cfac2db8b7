"""A decoder whose passes run in the native kernel, over weights quantised in its memory (G1, G17).

Rows of one pass may be tokens of one request (prompt, drafts) or of several; each has its own run mask. A row's result
does not depend on the rows beside it nor on the number of threads (G8). Knows no text, budgets or sampling.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config import DecoderConfig
from ..errors import GatedError, WeightsError
from ..gates import Gates, Thrift
from ..policy import SAFE_LAYERS
from ..rope import rope_tables
from . import abi
from .build import library
from .store import KV_TYPES, KvType, NativeKV

# A run mask: uint8 [layers, 2], attention and MLP; 0 skips, 1 runs, 2 (attention) only stores keys and values.
Run = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a pass leaves of one layer (G3): `gaps` [rows, heads], KL(attention row || uniform) in nats, and `middle`
    [rows, hidden], the residual stream between attention and MLP. NaN where the row skipped that branch.
    """

    layer: int
    gaps: NDArray[np.float32]
    middle: NDArray[np.float32]

    @classmethod
    def of(cls, config: DecoderConfig, rows: int, layer: int) -> Self:
        """Room for one pass over `rows` rows."""
        gaps, middle = (np.full((rows, n), np.nan, np.float32) for n in (config.heads, config.hidden))
        return cls(layer=layer, gaps=gaps, middle=middle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """Rows of a pass that gates decide on: `thrift` fp32 [rows], negative where they do not; `instead` uint8 [rows]: 2
    where attention that is left out still stores keys and values. The pass leaves in `run` and `alpha`
    [rows, layers, 2] what ran and what it was scaled by.
    """

    thrift: NDArray[np.float32]
    instead: NDArray[np.uint8]
    run: Run
    alpha: NDArray[np.float32]

    @classmethod
    def of(cls, config: DecoderConfig, thrifts: Sequence[Thrift | None], run: Run) -> Self:
        """For one pass, possibly in parts: None where gates do not decide; `run` [rows, layers, 2] to begin with."""
        return cls(
            thrift=np.array([-1.0 if one is None else one.value for one in thrifts], np.float32),
            instead=np.array([2 if one is not None and one.store else 0 for one in thrifts], np.uint8),
            run=np.array(run, np.uint8, order="C"), alpha=np.ones((len(thrifts), config.layers, 2), np.float32),
        )  # fmt: skip

    def begin(self, known: bool, run: Run) -> tuple[Run, NDArray[np.float32]]:
        """The arrays that the pass changes, `run` as it is asked for. Raises ValueError where they do not fit."""
        if not known or not len(self.thrift) == len(self.instead) or self.run.shape != run.shape:
            raise ValueError("gated: give the decoder gates first, and make this with Gated.of for as many rows.")
        self.run[:] = run
        return self.run, self.alpha


def supports(config: DecoderConfig) -> bool:
    """Whether the kernel can run this shape; torch runs the others."""
    wide = (config.hidden, config.inner, config.heads * config.head_dim)
    return config.plain and config.head_dim in (32, 64, 96, 128, 256) and all(n % 32 == 0 for n in wide)


class NativeDecoder:
    """A model in the kernel's memory. One pass runs at a time; more callers wait. `close` frees it at once.

    `weight_bytes`: packed size; `branch_runs` [layers, 2]: attention and MLP branches run so far, summed over rows.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        *,
        bits: int = 4,
        head_bits: int = 8,
        threads: int = 1,
        kv: KvType = "fp16",
        lib: ctypes.CDLL | None = None,
    ) -> None:
        """Packs `weights` (Hugging Face names) to `bits` 4 or 8; embedding and head to `head_bits`.

        `lib` is the compiled kernel to use instead of this machine's own. Raises WeightsError when the shape or the
        weights do not fit, GatedError when there is no kernel.
        """
        loaded = lib or library()
        if loaded is None:
            raise GatedError("There is no native kernel on this machine; use the torch decoder.")
        if not supports(config):
            raise WeightsError("The native kernel needs sizes that are multiples of 32; use the torch decoder.")
        if not {bits, head_bits} <= {4, 8} or threads < 1:
            raise ValueError(
                f"bits={bits}, head_bits={head_bits}, threads={threads}: give 4 or 8 bits and a thread or more."
            )
        self.config, self.kv_kind = config, kv
        self._lib, self._lock = abi.declare(loaded), threading.Lock()
        shape = abi.Config(
            layers=config.layers, hidden=config.hidden, heads=config.heads, kv_heads=config.kv_heads,
            head_dim=config.head_dim, ffn=config.inner, vocab=config.vocab, kv_type=KV_TYPES[kv][0],
            eps=config.norm_eps,
        )  # fmt: skip
        self._model: int | None = self._lib.shoal_new(ctypes.byref(shape), threads)
        if not self._model:
            raise MemoryError("No memory for the native decoder.")
        self.weight_bytes = 0
        self.branch_runs = np.zeros((config.layers, 2), np.int64)
        self._gated = False
        cos, sin = rope_tables(config)
        half = config.head_dim // 2
        self._tables = cos[:, :half].contiguous(), sin[:, half:].contiguous()
        self._load(weights, bits, head_bits)

    def new_kv(self, capacity: int | Sequence[int]) -> NativeKV:
        """An empty store with room for `capacity` tokens, one number for every layer or one each."""
        return NativeKV(self.config, capacity, self.kv_kind)

    def forward(
        self,
        tokens: Sequence[int],
        kvs: Sequence[NativeKV],
        positions: Sequence[int],
        run: Run | None = None,
        *,
        alpha: NDArray[np.float32] | None = None,
        wanted: Sequence[int] | None = None,
        layers: tuple[int, int] | None = None,
        states: NDArray[np.float32] | None = None,
        watch: Watch | None = None,
        gated: Gated | None = None,
    ) -> Tensor:
        """fp32 logits [len(wanted), vocab] after one pass over all rows; `wanted` rows are all unless given.

        Row i is token `tokens[i]` at `positions[i]` of the request that owns `kvs[i]`; rows of one request come in
        order. `run` [layers, 2] or [rows, layers, 2] and `alpha` (what branches' outputs are scaled by) of the same
        shape default to ones. `layers` (first, last) runs only those from first up to before last; a pass that ends
        early gives no logits. `states` [rows, hidden] is the residual stream: read where first > 0, and left as it is
        after the last layer run. `watch` is filled in, and so is `gated`, whose gates leave out more of what `run` has.
        Raises ValueError for ids, positions, layers, states or a watch that do not fit.
        """
        rows, total = len(tokens), self.config.layers
        first, last = layers or (0, total)
        self._check(rows, first, last, states, watch)
        ids, places = np.asarray(tokens, np.int32), np.asarray(positions, np.int32)
        order: dict[int, int] = {}
        owner = np.asarray([order.setdefault(id(kv), len(order)) for kv in kvs], np.int32)
        stores = [next(kv for kv in kvs if id(kv) == key) for key in order]
        if not rows == len(places) == len(owner):
            raise ValueError(f"{rows} tokens, {len(places)} positions, {len(owner)} stores: give one of each per row.")
        for kv, more in zip(stores, np.bincount(owner).tolist(), strict=True):
            kv.reserve(more)
        mask = np.ascontiguousarray(np.broadcast_to(1 if run is None else run, (rows, total, 2)), np.uint8)
        scale = None if alpha is None else np.ascontiguousarray(np.broadcast_to(alpha, (rows, total, 2)), np.float32)
        if gated is not None:
            mask, scale = gated.begin(self._gated, mask)
        if last < total:
            wanted = ()
        picked = np.arange(rows, dtype=np.int32) if wanted is None else np.asarray(wanted, np.int32)
        logits = torch.empty(len(picked), self.config.vocab)
        batch = abi.Batch(
            rows=rows, tokens=ids.ctypes.data, positions=places.ctypes.data, sequence=owner.ctypes.data,
            kv=(abi.Kv * len(stores))(*(kv.struct for kv in stores)),
            run=mask.ctypes.data, alpha=None if scale is None else scale.ctypes.data,
            counts=self.branch_runs.ctypes.data,
            logit_rows=picked.ctypes.data, wanted=len(picked), logits=logits.data_ptr(),
            first=first, last=last, states=None if states is None else states.ctypes.data,
            watched=-1 if watch is None else watch.layer, gaps=None if watch is None else watch.gaps.ctypes.data,
            middle=None if watch is None else watch.middle.ctypes.data,
            thrift=None if gated is None else gated.thrift.ctypes.data,
            instead=None if gated is None else gated.instead.ctypes.data,
        )  # fmt: skip
        with self._lock:
            failure = self._lib.shoal_forward(self._open(), ctypes.byref(batch))
        if failure == abi.NO_MEMORY:
            raise MemoryError("No memory for a pass of the native decoder: pass fewer rows at once.")
        if failure:
            raise ValueError(f"The pass was not run: {abi.FAILURES[failure]}.")
        return logits

    def _check(self, rows: int, first: int, last: int, states: NDArray[np.float32] | None, watch: Watch | None) -> None:
        """Raises ValueError for layers, states or a watch that do not fit the pass."""
        total, hidden = self.config.layers, self.config.hidden
        if not 0 <= first <= last <= total or (first and states is None):
            raise ValueError(f"layers={(first, last)}: give two of 0 to {total} in order, and states where first > 0.")
        if states is not None and not (
            states.shape == (rows, hidden) and states.dtype == np.float32 and states.flags.c_contiguous
        ):
            raise ValueError(f"states: give contiguous fp32 [{rows}, {hidden}].")
        if watch is not None and not (len(watch.gaps) == len(watch.middle) == rows and 0 <= watch.layer < total):
            raise ValueError(f"watch: make it with Watch.of(config, {rows}, layer) and a layer below {total}.")

    def set_gates(self, gates: Gates) -> None:
        """Takes the gates that `gated` passes use. Raises PlanError where their shape is another model's."""
        gates.check(self.config.layers, self.config.hidden, gates.model_fingerprint)
        parts = [np.ascontiguousarray(part, np.float32) for part in (gates.weight, gates.bias, gates.slope)]
        with self._lock:
            self._lib.shoal_gates(self._open(), *(part.ctypes.data for part in parts), SAFE_LAYERS)
            self._gated = True

    def weight(self, name: str, layer: int = 0) -> Tensor:
        """What the packed matrix `name` (one of `abi.MATRICES`) stands for, fp32 [out, in]."""
        out = torch.empty(self._shapes[name])
        self._lib.shoal_unpack(self._open(), layer, abi.MATRICES.index(name), out.data_ptr())
        return out

    def set_threads(self, threads: int) -> None:
        """Uses `threads` threads from the next pass on; results stay the same to the bit."""
        with self._lock:
            self._lib.shoal_threads(self._open(), threads)

    def close(self) -> None:
        """Frees the weights and ends the threads. A second call does nothing."""
        with self._lock:
            model, self._model = self._model, None
            if model:
                self._lib.shoal_free(model)

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self.close()

    def _open(self) -> int:
        if self._model is None:
            raise GatedError("This decoder was closed; load the model again.")
        return self._model

    def _load(self, weights: Mapping[str, Tensor], bits: int, head_bits: int) -> None:
        config = self.config
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        lengths = {"q_norm": config.head_dim, "k_norm": config.head_dim, "q_bias": q, "k_bias": kv, "v_bias": kv}
        shapes = {
            "q": (q, config.hidden), "k": (kv, config.hidden), "v": (kv, config.hidden), "o": (config.hidden, q),
            "gate": (config.inner, config.hidden), "up": (config.inner, config.hidden),
            "down": (config.hidden, config.inner), "embed": (config.vocab, config.hidden),
            "head": (config.vocab, config.hidden),
        }  # fmt: skip
        self._shapes = shapes

        def get(name: str, shape: tuple[int, ...]) -> Tensor:
            tensor = weights.get(name)
            if tensor is None or tensor.shape != shape:
                raise WeightsError(f"The checkpoint has no tensor {name!r} of {shape}: it is incomplete or damaged.")
            return tensor.detach().to("cpu", torch.float32).contiguous()

        def matrix(kind: str, name: str, layer: int = 0, width: int = bits) -> None:
            full = get(name, shapes[kind])
            at = abi.MATRICES.index(kind)
            size = self._lib.shoal_matrix(self._open(), layer, at, full.data_ptr(), *full.shape, width)
            if not size:
                raise MemoryError(f"No memory for {name} of the native decoder.")
            self.weight_bytes += size

        def vector(kind: str, name: str, layer: int = 0) -> None:
            full = get(name, (lengths.get(kind, config.hidden),))
            self._lib.shoal_vector(self._open(), layer, abi.VECTORS.index(kind), full.data_ptr(), full.numel())

        cos, sin = self._tables
        for layer in range(self.config.layers):
            at = f"model.layers.{layer}"
            for part in "qkvo":
                matrix(part, f"{at}.self_attn.{part}_proj.weight", layer)
                if (name := f"{at}.self_attn.{part}_proj.bias") in weights:
                    vector(f"{part}_bias", name, layer)
            for part in ("gate", "up", "down"):
                matrix(part, f"{at}.mlp.{part}_proj.weight", layer)
            vector("attn_norm", f"{at}.input_layernorm.weight", layer)
            vector("mlp_norm", f"{at}.post_attention_layernorm.weight", layer)
            if self.config.qk_norm:
                vector("q_norm", f"{at}.self_attn.q_norm.weight", layer)
                vector("k_norm", f"{at}.self_attn.k_norm.weight", layer)
            window = self.config.windows[layer] or 0
            self._lib.shoal_rope(self._open(), layer, cos.data_ptr(), sin.data_ptr(), cos.shape[0], window)
        matrix("embed", "model.embed_tokens.weight", width=head_bits)
        if not self.config.tied:
            matrix("head", "lm_head.weight", width=head_bits)
        vector("final_norm", "model.norm.weight")
