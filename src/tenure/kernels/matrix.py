"""Weights in the layout of `product.c` and `after_attention.c`.

Legend: I inputs, O outputs, G panels, D hidden size.
"""

import ctypes
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

PANEL = 32
"""Outputs of which the weights lie together, input by input; a constant of the library."""
BLOCK_ROWS = 48
"""At most so many rows go through a layer at once, on one thread; another one."""

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class _Matrix(ctypes.Structure):
    """`matrix` of the library."""

    _fields_ = (("panels", _POINTER), ("bias", _POINTER), ("inputs", _SIZE), ("outputs", _SIZE))


class _LayerNorm(ctypes.Structure):
    """`layer_norm` of the library."""

    _fields_ = (("weight", _POINTER), ("bias", _POINTER), ("eps", ctypes.c_float))


class _AfterAttention(ctypes.Structure):
    """`after_attention` of the library."""

    _fields_ = (
        ("output", _Matrix),
        ("up", _Matrix),
        ("down", _Matrix),
        ("attention_norm", _LayerNorm),
        ("mlp_norm", _LayerNorm),
        ("activation", _SIZE),
    )


LAYER_LAYOUT = (BLOCK_ROWS, PANEL, *map(ctypes.sizeof, (_Matrix, _LayerNorm, _AfterAttention)))
"""What `tenure_has_layer_layout` must agree with."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights packed into panels, and a bias; it keeps the memory alive that `struct` points to."""

    inputs: int
    outputs: int
    struct: _Matrix
    _kept: tuple[torch.Tensor, ...]

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)

    @classmethod
    def of(cls, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> "Matrix":
        """Copies the weights into panels; the last one is filled up with zeros."""
        outputs, inputs = weight_OI.shape
        if missing := -outputs % PANEL:
            weight_OI = F.pad(weight_OI, (0, 0, 0, missing))
        panels_GIO = weight_OI.view(-1, PANEL, inputs).transpose(1, 2).contiguous()
        if bias_O is None:
            return cls(inputs, outputs, _Matrix(panels_GIO.data_ptr(), None, inputs, outputs), (panels_GIO,))
        bias_O = bias_O.contiguous()
        struct = _Matrix(panels_GIO.data_ptr(), bias_O.data_ptr(), inputs, outputs)
        return cls(inputs, outputs, struct, (panels_GIO, bias_O))


class NormWeights(Protocol):
    """The contiguous weights of a layer normalisation."""

    @property
    def weight_D(self) -> torch.Tensor: ...

    @property
    def bias_D(self) -> torch.Tensor: ...

    @property
    def eps(self) -> float: ...


def _norm_struct(norm: NormWeights) -> _LayerNorm:
    return _LayerNorm(norm.weight_D.data_ptr(), norm.bias_D.data_ptr(), norm.eps)


@dataclass(frozen=True, slots=True)
class LayerMatrices:
    """The weights of an encoder layer after its attention; it keeps the memory alive that `struct` points to."""

    hidden: int
    inner: int
    """The intermediate size, between `up` and `down`."""
    struct: _AfterAttention
    _kept: tuple[object, ...]

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)

    @classmethod
    def of(
        cls,
        output: Matrix,
        attention_norm: NormWeights,
        up: Matrix,
        activation: int,
        down: Matrix,
        mlp_norm: NormWeights,
    ) -> "LayerMatrices":
        """`activation` is a `function` of the library."""
        struct = _AfterAttention(
            output.struct,
            up.struct,
            down.struct,
            _norm_struct(attention_norm),
            _norm_struct(mlp_norm),
            activation,
        )
        return cls(output.outputs, up.outputs, struct, (output, attention_norm, up, down, mlp_norm))
