"""Linear layers behind a seam, so that packed, quantised or device kernels can replace the default.

Legend: T rows, K inputs, N outputs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Protocol

import torch
import torch.nn.functional as F

from tenure.kernels import native, onednn
from tenure.kernels.matrix import Matrix
from tenure.layers.backends import choose


class Activation(StrEnum):
    """An element-wise function after a linear layer."""

    NONE = "none"
    GELU = "gelu"
    """By the error function, exactly."""
    GELU_TANH = "gelu_tanh"
    """By the approximation of Hendrycks and Gimpel (2016)."""
    RELU = "relu"
    TANH = "tanh"


class Linear(Protocol):
    """x W^T + b for rows x, with weights in whatever form suits the back end."""

    def __call__(self, x_TK: torch.Tensor) -> torch.Tensor:
        """The product, shape (T, N)."""
        ...

    def add(self, x_TK: torch.Tensor, residual_TN: torch.Tensor) -> torch.Tensor:
        """residual + product, shape (T, N); `residual_TN` is not changed."""
        ...

    def activated(self, x_TK: torch.Tensor, activation: Activation) -> torch.Tensor:
        """activation(product), shape (T, N)."""
        ...


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """The default on any device: torch's own product on the weights as they are."""

    weight_NK: torch.Tensor
    bias_N: torch.Tensor | None

    def __call__(self, x_TK: torch.Tensor) -> torch.Tensor:
        return F.linear(x_TK, self.weight_NK, self.bias_N)

    def add(self, x_TK: torch.Tensor, residual_TN: torch.Tensor) -> torch.Tensor:
        return self(x_TK).add_(residual_TN)

    def activated(self, x_TK: torch.Tensor, activation: Activation) -> torch.Tensor:
        return _FUNCTIONS[activation](self(x_TK))


_FUNCTIONS: Mapping[Activation, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        Activation.NONE: lambda x: x,
        Activation.GELU: F.gelu,
        Activation.GELU_TANH: partial(F.gelu, approximate="tanh"),
        Activation.RELU: torch.relu_,
        Activation.TANH: torch.tanh_,
    }
)


class PackedLinear:
    """oneDNN's product on packed weights: torch's fastest on a CPU."""

    def __init__(self, weight_NK: torch.Tensor, bias_N: torch.Tensor | None) -> None:
        self._packed = onednn.pack_weight(weight_NK)
        self._bias_N = bias_N

    def __call__(self, x_TK: torch.Tensor) -> torch.Tensor:
        return onednn.linear(x_TK, self._packed, self._bias_N)

    def add(self, x_TK: torch.Tensor, residual_TN: torch.Tensor) -> torch.Tensor:
        # oneDNN's own sum costs more: 17 us more for one row, and with a bias 2 ms, whatever the size.
        return onednn.linear(x_TK, self._packed, self._bias_N).add_(residual_TN)

    def activated(self, x_TK: torch.Tensor, activation: Activation) -> torch.Tensor:
        return onednn.linear(x_TK, self._packed, self._bias_N, *_FUSED[activation])


_FUSED: Mapping[Activation, tuple[str, str]] = MappingProxyType(
    {
        Activation.NONE: ("none", ""),
        Activation.GELU: ("gelu", "none"),
        Activation.GELU_TANH: ("gelu", "tanh"),
        Activation.RELU: ("relu", ""),
        Activation.TANH: ("tanh", ""),
    }
)
"""oneDNN's name for it, and for the way it is computed."""


class NativeLinear:
    """The native kernel: the fastest for float32 with AVX-512; a row's result does not depend on the batch."""

    def __init__(self, weight_NK: torch.Tensor, bias_N: torch.Tensor | None) -> None:
        self.matrix = Matrix.of(weight_NK, bias_N)
        self._kernels = native.NativeKernels.load()

    def __call__(self, x_TK: torch.Tensor) -> torch.Tensor:
        return self._kernels.multiply(self.matrix, x_TK.contiguous(), None)

    def add(self, x_TK: torch.Tensor, residual_TN: torch.Tensor) -> torch.Tensor:
        return self._kernels.multiply(self.matrix, x_TK.contiguous(), residual_TN.contiguous())

    def activated(self, x_TK: torch.Tensor, activation: Activation) -> torch.Tensor:
        return _FUNCTIONS[activation](self(x_TK))


LinearFactory = Callable[[torch.Tensor, torch.Tensor | None], Linear]

LINEAR_BACKENDS: Mapping[str, LinearFactory] = MappingProxyType(
    {"torch": TorchLinear, "onednn": PackedLinear, "native": NativeLinear}
)


def linear_factory(dtype: torch.dtype, device: torch.device, backend: str | None = None) -> LinearFactory:
    """The back end named, else the fastest that works for this element type and device."""
    otherwise = "onednn" if onednn.can_pack(dtype, device) else "torch"
    return choose("linear", LINEAR_BACKENDS, backend, native.can_run_avx512(dtype, device), otherwise)
