"""The gated feed-forward block of the Llama family.

Legend: T rows, D hidden size.
"""

from dataclasses import dataclass

import torch

from tenure.layers.linear import Linear
from tenure.layers.rowwise import RowKernels


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """residual + down(silu(gate(x)) * up(x)); gate and up are one product, gate's outputs first."""

    gate_up: Linear
    down: Linear
    kernels: RowKernels

    def __call__(self, x_TD: torch.Tensor, residual_TD: torch.Tensor) -> torch.Tensor:
        return self.down.add(self.kernels.silu_mul(self.gate_up(x_TD)), residual_TD)
