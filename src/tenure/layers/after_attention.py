"""The part of an encoder layer after attention (output projection, norms, feed-forward), behind a seam.

Legend: T rows, D hidden size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import torch

from tenure.kernels.matrix import LayerMatrices, NormWeights
from tenure.kernels.native import NativeKernels
from tenure.layers.linear import Activation, Linear, NativeLinear
from tenure.layers.norm import LayerNorm


class AfterAttention(Protocol):
    """x = norm(x + output(attended)), then norm(x + down(activation(up(x))))."""

    def __call__(self, attended_TD: torch.Tensor, x_TD: torch.Tensor) -> torch.Tensor:
        """The new x, shape (T, D); neither argument is changed."""
        ...


@dataclass(frozen=True, slots=True)
class StepByStep:
    """The default: one operation after the other on all rows, with any linear layers, on any device."""

    output: Linear
    attention_norm: LayerNorm
    up: Linear
    activation: Activation
    down: Linear
    mlp_norm: LayerNorm

    def __call__(self, attended_TD: torch.Tensor, x_TD: torch.Tensor) -> torch.Tensor:
        x_TD = self.attention_norm(self.output.add(attended_TD, x_TD))
        return self.mlp_norm(self.down.add(self.up.activated(x_TD, self.activation), x_TD))


_FUNCTIONS: Mapping[Activation, int] = MappingProxyType(
    {Activation.GELU: 1, Activation.GELU_TANH: 2, Activation.RELU: 3}
)
"""The library's `function`s."""


@dataclass(frozen=True, slots=True)
class CompiledSteps:
    """The native kernel: all operations on a few rows at a time, so that intermediate results stay in the caches."""

    layer: LayerMatrices
    kernels: NativeKernels = field(default_factory=NativeKernels.load)

    def __call__(self, attended_TD: torch.Tensor, x_TD: torch.Tensor) -> torch.Tensor:
        return self.kernels.after_attention(self.layer, attended_TD, x_TD)


def after_attention(steps: StepByStep) -> AfterAttention:
    """The native kernel if all linear layers are native, else `steps` itself."""
    output, up, down = steps.output, steps.up, steps.down
    if not (isinstance(output, NativeLinear) and isinstance(up, NativeLinear) and isinstance(down, NativeLinear)):
        return steps
    if (function := _FUNCTIONS.get(steps.activation)) is None:
        return steps
    attention_norm, mlp_norm = (
        NormWeights.of(norm.weight_D, norm.bias_D, norm.eps) for norm in (steps.attention_norm, steps.mlp_norm)
    )
    matrices = output.matrix, up.matrix, down.matrix
    return CompiledSteps(LayerMatrices.of(matrices, (attention_norm, mlp_norm), function))
