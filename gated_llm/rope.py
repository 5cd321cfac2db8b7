"""Rotary position tables, with the linear and Llama 3 ways of stretching them over longer contexts.

Formulas as in transformers' `modeling_rope_utils`, so that checkpoints mean the same here.
"""

import math

import torch
from torch import Tensor

from .config import DecoderConfig


def rope_tables(config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines, fp32 [context, head_dim]: turned = x * cos + roll(x, head_dim / 2) * sin."""
    half = config.head_dim // 2
    frequency = 1.0 / config.rope_theta ** (torch.arange(half, dtype=torch.float32) / half)
    kind = config.rope.get("rope_type", config.rope.get("type", "default"))
    if kind == "linear":
        frequency = frequency / config.rope["factor"]
    elif kind == "llama3":
        frequency = _llama3(frequency, config)
    angle = torch.outer(torch.arange(config.context, dtype=torch.float32), frequency)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)


def _llama3(frequency: Tensor, config: DecoderConfig) -> Tensor:
    rope = config.rope
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    length = rope["original_max_position_embeddings"] / (2 * math.pi / frequency)
    smooth = ((length - low) / (high - low)).clamp(0, 1)
    scaled: Tensor = (1 - smooth) * frequency / factor + smooth * frequency
    return scaled
