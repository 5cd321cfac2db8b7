"""Shape of a decoder, read from a Hugging Face `config.json` (G18).

One frozen record with a switch for each way in which Llama, Mistral, Qwen2, Qwen3, Gemma 2 and Gemma 3 (text) differ.
Knows no weights and no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import WeightsError

_SHAPES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")
_ROPES = ("default", "linear", "llama3", "yarn")
_SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "vocab_size")
_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
# What Gemma's published configs leave out because it is the default in transformers.
_GEMMA = {
    "vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
    "max_position_embeddings": 8192, "sliding_window": 4096, "sliding_window_pattern": 2,
    "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "eos_token_id": 1,
}  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {
        **_GEMMA, "vocab_size": 262_208, "max_position_embeddings": 131_072, "sliding_window_pattern": 6,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes in elements, `context` in tokens. `windows` holds a sliding window per layer, None for global attention.

    `rope` has `rope_theta`, `rope_type` and what that type takes; `local_rope` is that of layers with a window where
    theirs is another. `norm_offset` is added to the weights of all norms; with `post_norms` a branch's output is normed
    before it is added. `attention_cap` and `logit_cap` bound scores and logits by `cap * tanh(x / cap)`.
    """

    kind: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    activation: str
    norm_eps: float
    norm_offset: float
    post_norms: bool
    qk_norm: bool
    output_bias: bool
    embed_scale: float
    attention_scale: float
    attention_cap: float | None
    logit_cap: float | None
    rope: Mapping[str, Any]
    local_rope: Mapping[str, Any] | None
    windows: tuple[int | None, ...]
    tied: bool
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

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Shape of the checkpoint's tensor of that Hugging Face name."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        sizes = {
            "q_proj": (queries, self.hidden), "k_proj": (keys, self.hidden), "v_proj": (keys, self.hidden),
            "o_proj": (self.hidden, queries), "q_norm": (self.head_dim,), "k_norm": (self.head_dim,),
            "gate_proj": (self.inner, self.hidden), "up_proj": (self.inner, self.hidden),
            "down_proj": (self.hidden, self.inner), "embed_tokens": (self.vocab, self.hidden),
            "lm_head": (self.vocab, self.hidden),
        }  # fmt: skip
        part, kind = name.split(".")[-2:]
        size = sizes.get(part, (self.hidden,))
        return size if kind == "weight" else size[:1]

    @property
    def plain(self) -> bool:
        """Whether it is Llama's block, with or without QK norm and biases of q, k and v: what the kernel runs."""
        return not (self.post_norms or self.output_bias or self.local_rope) and self.activation == "silu"

    @classmethod
    def from_folder(cls, folder: Path) -> "DecoderConfig":
        """Reads `config.json` and, where there is one, `generation_config.json`. Raises WeightsError."""
        try:
            raw = json.loads((folder / "config.json").read_text("utf-8"))
            extra = folder / "generation_config.json"
            generation = json.loads(extra.read_text("utf-8")) if extra.exists() else {}
        except (OSError, ValueError) as error:
            raise WeightsError(f"{folder} holds no readable config.json: {error}") from error
        if not isinstance(raw, dict):
            raise WeightsError(f"{folder / 'config.json'} is not a model's config: fetch the model again.")
        return cls.from_hf(raw, eos=_ids(generation.get("eos_token_id")))

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, eos: frozenset[int] = frozenset()) -> "DecoderConfig":
        """`raw` is the parsed config.json; `eos` adds end tokens to those it names. Raises WeightsError."""
        eos = eos | _ids(raw.get("eos_token_id"))
        if raw.get("model_type") == "gemma3":  # with a vision tower, which is left out
            outer = {key: raw[key] for key in ("tie_word_embeddings",) if key in raw}
            raw = {**outer, **(raw.get("text_config") or {}), "model_type": "gemma3_text"}
        kind = raw.get("model_type")
        if kind not in _SHAPES:
            raise WeightsError(f"Model type {kind!r} is not supported; supported are {', '.join(_SHAPES)}.")
        raw = {**_DEFAULTS.get(kind, {}), **raw}
        gemma = kind in _DEFAULTS
        for key in _SIZES:
            if type(raw.get(key)) is not int or raw[key] < 1:
                raise WeightsError(f"config.json does not say {key}, a whole number from 1, but {raw.get(key)!r:.24}.")
        layers, heads = raw["num_hidden_layers"], raw["num_attention_heads"]
        head_dim = raw.get("head_dim") or raw["hidden_size"] // heads
        rope, local_rope = _ropes(raw)
        return cls(
            kind=kind,
            layers=layers,
            hidden=raw["hidden_size"],
            inner=raw["intermediate_size"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            vocab=raw["vocab_size"],
            context=raw.get("max_position_embeddings", 2048),
            activation=_activation(raw),
            norm_eps=raw.get("rms_norm_eps", 1e-6),
            norm_offset=float(gemma),
            post_norms=gemma,
            qk_norm=kind in ("qwen3", "gemma3_text"),
            output_bias=bool(raw.get("mlp_bias") or raw.get("attention_bias")),
            embed_scale=raw["hidden_size"] ** 0.5 if gemma else 1.0,
            attention_scale=(raw["query_pre_attn_scalar"] if gemma else head_dim) ** -0.5,
            # Gemma 3's code in transformers never reads it, whatever the config says
            attention_cap=raw.get("attn_logit_softcapping") if kind == "gemma2" else None,
            logit_cap=raw.get("final_logit_softcapping") if gemma else None,
            rope=rope,
            local_rope=local_rope,
            windows=_windows(raw, layers),
            tied=bool(raw.get("tie_word_embeddings", False)),
            eos=_ids(raw.get("eos_token_id")) | eos,
        )


def _ids(value: int | list[int] | None) -> frozenset[int]:
    return frozenset() if value is None else frozenset([value] if isinstance(value, int) else value)


def _activation(raw: Mapping[str, Any]) -> str:
    name = raw.get("hidden_activation") or raw.get("hidden_act") or "silu"
    if name not in _ACTIVATIONS:
        raise WeightsError(f"Activation {name!r} is not supported; supported are {', '.join(_ACTIVATIONS)}.")
    return str(name)


def _ropes(raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The rotary settings of all layers and, where theirs are others, those of layers with a window."""
    given = raw.get("rope_parameters") or {}
    if raw["model_type"] != "gemma3_text":
        return _rope(given or raw.get("rope_scaling") or {}, raw.get("rope_theta", 1e4), raw), None
    whole = given.get("full_attention") or raw.get("rope_scaling") or {}
    local = given.get("sliding_attention") or {}
    return _rope(whole, raw["rope_theta"], raw), _rope(local, raw["rope_local_base_freq"], raw)


def _rope(given: Mapping[str, Any], theta: float, raw: Mapping[str, Any]) -> dict[str, Any]:
    rope = {"rope_theta": theta, **given, "rope_type": given.get("rope_type", given.get("type", "default"))}
    if rope["rope_type"] not in _ROPES:
        raise WeightsError(f"Rotary scaling {given} is not supported; supported are {', '.join(_ROPES)}.")
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1)) != 1:
        raise WeightsError("Heads that are turned in part (partial_rotary_factor) are not supported.")
    return rope


def _windows(raw: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    window = raw.get("sliding_window")
    if raw.get("use_bidirectional_attention"):
        raise WeightsError("Models that attend to later tokens (use_bidirectional_attention) do not generate text.")
    unused = raw["model_type"] in ("qwen2", "qwen3") and not raw.get("use_sliding_window")
    if raw["model_type"] == "llama" or window is None or unused:
        return (None,) * layers
    types = raw.get("layer_types")
    if types is None:  # as configs said it before transformers 4.53
        every, first = raw.get("sliding_window_pattern"), raw.get("max_window_layers", 0)
        local = [bool((i + 1) % every) if every else i >= first for i in range(layers)]
    else:
        local = [kind == "sliding_attention" for kind in types]
    return tuple(window if at else None for at in local)
