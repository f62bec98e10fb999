"""The gated feed-forward block of the Llama family.

Legend: T rows, D hidden size, F intermediate size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tenure.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """residual + down(silu(gate(x)) * up(x)); gate and up are one product, gate's outputs first."""

    gate_up: Linear
    down: Linear

    def __call__(self, x_TD: torch.Tensor, residual_TD: torch.Tensor) -> torch.Tensor:
        gate_TF, up_TF = self.gate_up(x_TD).chunk(2, dim=-1)
        return self.down.add(F.silu(gate_TF).mul_(up_TF), residual_TD)
