"""Weights in the layout of `product.c` and `after_attention.c`.

Legend: I inputs, O outputs, G panels, D hidden size.
"""

import ctypes

import torch
import torch.nn.functional as F

PANEL = 32
"""Outputs of which the weights lie together, input by input; a constant of the library."""
BLOCK_ROWS = 48
"""At most so many rows go through a layer at once, on one thread; another one."""

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class Matrix(ctypes.Structure):
    """Weights packed into panels, and a bias: `matrix` of the library."""

    _fields_ = (("panels", _POINTER), ("bias", _POINTER), ("inputs", _SIZE), ("outputs", _SIZE))
    kept: tuple[object, ...]
    """The memory that it points to."""

    @classmethod
    def of(cls, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> "Matrix":
        """Copies the weights into panels; the last one is filled up with zeros."""
        outputs, inputs = weight_OI.shape
        if missing := -outputs % PANEL:
            weight_OI = F.pad(weight_OI, (0, 0, 0, missing))
        panels_GIO = weight_OI.view(-1, PANEL, inputs).transpose(1, 2).contiguous()
        bias_O = None if bias_O is None else bias_O.contiguous()
        matrix = cls(panels_GIO.data_ptr(), None if bias_O is None else bias_O.data_ptr(), inputs, outputs)
        matrix.kept = panels_GIO, bias_O
        return matrix


class NormWeights(ctypes.Structure):
    """The weights of a layer normalisation: `layer_norm` of the library."""

    _fields_ = (("weight", _POINTER), ("bias", _POINTER), ("eps", ctypes.c_float))
    kept: tuple[object, ...]

    @classmethod
    def of(cls, weight_D: torch.Tensor, bias_D: torch.Tensor, eps: float) -> "NormWeights":
        """Both contiguous."""
        norm = cls(weight_D.data_ptr(), bias_D.data_ptr(), eps)
        norm.kept = weight_D, bias_D
        return norm


class LayerMatrices(ctypes.Structure):
    """The weights of an encoder layer after its attention: `after_attention` of the library."""

    _fields_ = (
        ("output", Matrix),
        ("up", Matrix),
        ("down", Matrix),
        ("attention_norm", NormWeights),
        ("mlp_norm", NormWeights),
        ("activation", _SIZE),
    )
    kept: tuple[object, ...]

    @classmethod
    def of(
        cls, matrices: tuple[Matrix, Matrix, Matrix], norms: tuple[NormWeights, NormWeights], activation: int
    ) -> "LayerMatrices":
        """All in the order of the fields; `activation` is a `function` of the library."""
        layer = cls(*matrices, *norms, activation)
        layer.kept = matrices, norms
        return layer


LAYER_LAYOUT = (BLOCK_ROWS, PANEL, *map(ctypes.sizeof, (Matrix, NormWeights, LayerMatrices)))
"""What `tenure_has_layer_layout` must agree with."""
