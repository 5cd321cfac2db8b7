"""The kernel's C structures and functions as ctypes sees them; must mirror `decoder.cpp` field by field."""

import ctypes
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_int64, c_void_p
from typing import ClassVar

MATRICES = ("q", "k", "v", "o", "gate", "up", "down", "embed", "head")
VECTORS = ("attn_norm", "mlp_norm", "q_norm", "k_norm", "q_bias", "k_bias", "v_bias", "final_norm")
FAILURES = {
    1: "a key/value store is too small",
    2: "a token id is not in the vocabulary",
    3: "a position is past the model's context",
}
NO_MEMORY = 4


class Config(Structure):
    """Shape and arithmetic of a model."""

    _fields_: ClassVar = [
        *((name, c_int32) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")),
        ("kv_type", c_int32),
        ("eps", c_float),
    ]


class Kv(Structure):
    """One request's keys and values: arrays over layers."""

    _fields_: ClassVar = [("data", c_void_p), ("positions", c_void_p), ("length", c_void_p), ("capacity", c_void_p)]


class Batch(Structure):
    """One pass over some rows."""

    _fields_: ClassVar = [
        ("rows", c_int32), ("tokens", c_void_p), ("positions", c_void_p), ("sequence", c_void_p),
        ("kv", POINTER(Kv)), ("run", c_void_p), ("alpha", c_void_p), ("counts", c_void_p),
        ("logit_rows", c_void_p), ("wanted", c_int32), ("logits", c_void_p),
        ("first", c_int32), ("last", c_int32), ("states", c_void_p),
        ("watched", c_int32), ("gaps", c_void_p), ("middle", c_void_p), ("thrift", c_void_p), ("instead", c_void_p),
    ]  # fmt: skip


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Gives the functions their types. Raises OSError when the library has other structures."""
    signatures = {
        "shoal_new": (c_void_p, [POINTER(Config), c_int]),
        "shoal_free": (None, [c_void_p]),
        "shoal_threads": (None, [c_void_p, c_int]),
        "shoal_matrix": (c_int64, [c_void_p, c_int, c_int, c_void_p, c_int, c_int, c_int]),
        "shoal_unpack": (None, [c_void_p, c_int, c_int, c_void_p]),
        "shoal_vector": (None, [c_void_p, c_int, c_int, c_void_p, c_int]),
        "shoal_rope": (None, [c_void_p, c_int, c_void_p, c_void_p, c_int, c_int]),
        "shoal_gates": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_int]),
        "shoal_forward": (c_int, [c_void_p, POINTER(Batch)]),
        "shoal_abi": (c_int, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if library.shoal_abi() != sum(map(ctypes.sizeof, (Config, Kv, Batch))):
        raise OSError("The native kernel was built for other structures.")
    return library
