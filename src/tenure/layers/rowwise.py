"""The row-wise operations of a decoder between its linear layers (norm, activation), behind a seam.

Legend: T rows, D hidden size, F intermediate size.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import torch
import torch.nn.functional as F

from tenure.kernels import native
from tenure.layers.backends import choose


class RowKernels(Protocol):
    """Norm and activation."""

    def rms_norm(self, x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
        """x / sqrt(mean(x^2) + eps) * weight, row by row."""
        ...

    def silu_mul(self, gate_up_T2F: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, shape (T, F); gate is the first half of each row."""
        ...


class TorchRowKernels:
    """Torch's own operations, on any device."""

    def rms_norm(self, x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x_TD, weight_D.shape, weight_D, eps)

    def silu_mul(self, gate_up_T2F: torch.Tensor) -> torch.Tensor:
        gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
        return F.silu(gate_TF).mul_(up_TF)


ROW_BACKENDS: Mapping[str, Callable[[], RowKernels]] = MappingProxyType(
    {"torch": TorchRowKernels, "native": native.NativeKernels.load}
)


def row_kernels(dtype: torch.dtype, device: torch.device, backend: str | None = None) -> RowKernels:
    """The back end named, else the fastest that works for this element type and device."""
    return choose("row", ROW_BACKENDS, backend, native.can_run(dtype, device))()
