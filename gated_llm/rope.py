"""Rotary position tables, with the linear, Llama 3 and YaRN ways of stretching them over longer contexts.

Formulas as in transformers' `modeling_rope_utils`, so that checkpoints mean the same here.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .config import DecoderConfig


def rope_tables(config: DecoderConfig, rope: Mapping[str, Any] | None = None) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines, fp32 [context, head_dim]: turned = x * cos + roll(x, head_dim / 2) * sin.

    `rope` is the config's own unless given.
    """
    rope = rope or config.rope
    half = config.head_dim // 2
    frequency = 1.0 / rope["rope_theta"] ** (torch.arange(half, dtype=torch.float32) / half)
    length = 1.0
    if rope["rope_type"] == "linear":
        frequency = frequency / rope["factor"]
    elif rope["rope_type"] == "llama3":
        frequency = _llama3(frequency, rope)
    elif rope["rope_type"] == "yarn":
        frequency, length = _yarn(frequency, rope, config)
    angle = torch.outer(torch.arange(config.context, dtype=torch.float32), frequency)
    cos, sin = angle.cos() * length, angle.sin() * length
    return torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)


def _llama3(frequency: Tensor, rope: Mapping[str, Any]) -> Tensor:
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    length = rope["original_max_position_embeddings"] / (2 * math.pi / frequency)
    smooth = ((length - low) / (high - low)).clamp(0, 1)
    scaled: Tensor = (1 - smooth) * frequency / factor + smooth * frequency
    return scaled


def _yarn(frequency: Tensor, rope: Mapping[str, Any], config: DecoderConfig) -> tuple[Tensor, float]:
    """Frequencies, and the length that turned vectors are scaled to."""
    size, theta = config.head_dim, rope["rope_theta"]
    trained = rope.get("original_max_position_embeddings") or config.context
    factor = rope.get("factor") or config.context / trained

    def turns(count: float) -> float:
        """The dimension that turns `count` times over the trained context."""
        return float(size * math.log(trained / (count * 2 * math.pi)) / (2 * math.log(theta)))

    low, high = turns(rope.get("beta_fast") or 32), turns(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / (high - low or 0.001)).clamp(0, 1)
    scaled: Tensor = frequency / factor * ramp + frequency * (1 - ramp)
    return scaled, _yarn_length(rope, factor)


def _yarn_length(rope: Mapping[str, Any], factor: float) -> float:
    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return grown(rope["mscale"]) / grown(rope["mscale_all_dim"])
    return grown(1.0)
