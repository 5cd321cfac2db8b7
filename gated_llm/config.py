"""Shape of a decoder, read from a Hugging Face `config.json` (G18).

One frozen record with a switch for each way in which Llama, Mistral, Qwen2 and Qwen3 differ. Knows no
weights and no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import WeightsError

_SHAPES = ("llama", "mistral", "qwen2", "qwen3")
_ROPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes in elements, `context` in tokens. `windows` holds a sliding window per layer, None for global attention."""

    kind: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    norm_eps: float
    rope_theta: float
    rope: Mapping[str, Any]
    tied: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    eos: frozenset[int]

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise WeightsError(f"{self.heads} attention heads cannot share {self.kv_heads} key/value heads evenly.")
        if len(self.windows) != self.layers:
            raise WeightsError(f"The config lists {len(self.windows)} layer types for {self.layers} layers.")

    @property
    def attention_share(self) -> float:
        """The attention branch's share of a layer's parameters: its depth cost; the MLP branch costs the rest."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention / (attention + 3 * self.hidden * self.inner)

    @classmethod
    def from_folder(cls, folder: Path) -> "DecoderConfig":
        """Reads `config.json` and, where there is one, `generation_config.json`. Raises WeightsError."""
        try:
            raw = json.loads((folder / "config.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise WeightsError(f"{folder} holds no readable config.json: {error}") from error
        extra = folder / "generation_config.json"
        generation = json.loads(extra.read_text("utf-8")) if extra.exists() else {}
        return cls.from_hf(raw, eos=_ids(generation.get("eos_token_id")))

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, eos: frozenset[int] = frozenset()) -> "DecoderConfig":
        """`raw` is the parsed config.json; `eos` adds end tokens to those it names. Raises WeightsError."""
        kind = raw.get("model_type")
        if kind not in _SHAPES:
            raise WeightsError(f"Model type {kind!r} is not supported; supported are {', '.join(_SHAPES)}.")
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) not in _ROPES:
            raise WeightsError(f"Rotary scaling {rope} is not supported; supported are {', '.join(_ROPES)}.")
        if raw.get("hidden_act", "silu") != "silu":
            raise WeightsError(f"Activation {raw['hidden_act']!r} is not supported; supported is silu.")
        if raw.get("mlp_bias"):
            raise WeightsError("MLP layers with a bias are not supported.")
        layers, heads = raw["num_hidden_layers"], raw["num_attention_heads"]
        return cls(
            kind=kind,
            layers=layers,
            hidden=raw["hidden_size"],
            inner=raw["intermediate_size"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            vocab=raw["vocab_size"],
            context=raw.get("max_position_embeddings", 2048),
            norm_eps=raw.get("rms_norm_eps", 1e-6),
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
            rope=dict(rope),
            tied=bool(raw.get("tie_word_embeddings", False)),
            qk_norm=kind == "qwen3",
            windows=_windows(raw, layers),
            eos=_ids(raw.get("eos_token_id")) | eos,
        )


def _ids(value: int | list[int] | None) -> frozenset[int]:
    return frozenset() if value is None else frozenset([value] if isinstance(value, int) else value)


def _windows(raw: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    window = raw.get("sliding_window")
    if raw["model_type"] == "llama" or window is None or raw.get("use_sliding_window") is False:
        return (None,) * layers
    types = raw.get("layer_types") or ["sliding_attention"] * layers
    return tuple(window if kind == "sliding_attention" else None for kind in types)
