"""Matrix products by oneDNN with weights in its own packed layout (CPU only).

Against `F.linear` on two AVX-512 cores, float32: 1.1 to 2 times as fast for one row, 2 times for 16, 1.2 for 256.

Legend: T rows, K inputs, N outputs.
"""

import torch

# oneDNN picks the layout for a number of rows; the one for 16 is as good as any other from 1 to 2048.
ROWS_HINT = 16


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether packed products work for this element type on this machine."""
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def pack_weight(weight_NK: torch.Tensor) -> torch.Tensor:
    """An opaque packed copy, for `linear` only."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_NK, ROWS_HINT)
    return packed


def linear(
    x_TK: torch.Tensor, packed: torch.Tensor, bias_N: torch.Tensor | None, then: str = "none", algorithm: str = ""
) -> torch.Tensor:
    """x W^T + b, shape (T, N), with a function of each number in the same pass: `gelu`, `relu` or `tanh`.

    `algorithm` is for gelu: `none` by the error function, `tanh` by its approximation.
    """
    out_TN: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x_TK, packed, bias_N, then, [], algorithm)
    return out_TN
