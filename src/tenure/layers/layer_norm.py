"""Layer normalisation (Ba et al., 2016).

Legend: T rows, D hidden size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias, row by row."""

    weight_D: torch.Tensor
    bias_D: torch.Tensor
    eps: float

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x_TD, self.weight_D.shape, self.weight_D, self.bias_D, self.eps)
