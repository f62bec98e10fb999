"""Layer normalisation (Ba et al., 2016) and root-mean-square normalisation (Zhang and Sennrich, 2019).

Legend: T rows, D hidden size, M heads (queries, keys and values), H head size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tenure.layers.rowwise import RowKernels


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight, row by row."""

    weight_D: torch.Tensor
    eps: float
    kernels: RowKernels

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x_TD, self.weight_D, self.eps)


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """One norm for all query heads and one for all key heads; values stay as they are."""

    query: RMSNorm
    key: RMSNorm
    num_heads: int
    num_kv_heads: int

    def apply_(self, heads_TMH: torch.Tensor) -> None:
        """Normalise heads in place."""
        first_key, first_value = self.num_heads, self.num_heads + self.num_kv_heads
        for norm, part_TNH in ((self.query, heads_TMH[:, :first_key]), (self.key, heads_TMH[:, first_key:first_value])):
            part_TNH.copy_(norm(part_TNH.reshape(-1, part_TNH.shape[-1])).view(part_TNH.shape))


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias, row by row."""

    weight_D: torch.Tensor
    bias_D: torch.Tensor
    eps: float

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x_TD, self.weight_D.shape, self.weight_D, self.bias_D, self.eps)
