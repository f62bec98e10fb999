"""Rotary frequencies of a model, with the stretches that its configuration asks for.

Legend: P pairs (half a head).
"""

import math

import torch

from tenure.checkpoints.model_config import ModelConfig, RopeScaling


def inverse_frequencies(config: ModelConfig, factors_P: torch.Tensor | None = None) -> torch.Tensor:
    """Angle per position of each pair, shape (P,), float32. `factors_P` divide the frequencies (GGUF's rope_freqs)."""
    exponents_P = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    inverse_P = 1.0 / config.rope_theta**exponents_P
    if factors_P is not None:
        inverse_P = inverse_P / factors_P.float()
    scaling = config.rope_scaling
    if scaling is None:
        return inverse_P
    if scaling.kind == "linear":
        return inverse_P / scaling.factor
    return _llama3(inverse_P, scaling)


def _llama3(inverse_P: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1: long waves are stretched, short ones kept, those between are blended."""
    wavelengths_P = 2 * math.pi / inverse_P
    original = scaling.original_max_position_embeddings
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth_P = ((original / wavelengths_P - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1 - smooth_P) * inverse_P / scaling.factor + smooth_P * inverse_P
