"""Bidirectional attention within each text, for encoders, behind a seam: a back end prepares what the layers share,
then attends once per layer. No token attends to the last `unattended` tokens of a text.

Legend: T rows, N heads, H head size, G texts of one length, L their length.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import torch
import torch.nn.functional as F

from tenure.kernels import native
from tenure.kernels.native import NativeKernels
from tenure.kernels.text_attention import MAX_HEAD_DIM, plan_texts
from tenure.layers.backends import choose
from tenure.layers.text_batch import AlikeTexts

Attend = Callable[[torch.Tensor], torch.Tensor]
"""From queries, keys and values of packed texts, (T, 3, N, H), to (T, N * H)."""


@dataclass(frozen=True, slots=True)
class TextShape:
    """The sizes that all attention layers of an encoder share."""

    num_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


TextAttention = Callable[[Sequence[AlikeTexts]], Attend]
"""Prepares for texts, whose rows are all rows, in order."""


def torch_attention(_shape: TextShape) -> TextAttention:
    """Torch's own operation, once for each group of alike texts."""
    return lambda texts: partial(_attend_alike, texts)


def _attend_alike(texts: Sequence[AlikeTexts], heads_T3NH: torch.Tensor) -> torch.Tensor:
    outputs = [_attend(heads_T3NH[alike.rows], alike) for alike in texts]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend(heads_T3NH: torch.Tensor, alike: AlikeTexts) -> torch.Tensor:
    heads_GL3NH = heads_T3NH.view(alike.num_texts, alike.length, *heads_T3NH.shape[1:])
    q_GNLH, k_GNLH, v_GNLH = heads_GL3NH.permute(2, 0, 3, 1, 4).unbind(0)
    seen = alike.length - alike.unattended
    out_GNLH = F.scaled_dot_product_attention(q_GNLH, k_GNLH[:, :, :seen], v_GNLH[:, :, :seen])
    return out_GNLH.transpose(1, 2).reshape(len(heads_T3NH), -1)


def native_attention(shape: TextShape) -> TextAttention:
    """The compiled kernel: all texts at once, whatever their lengths."""
    kernels = NativeKernels.load()

    def begin(texts: Sequence[AlikeTexts]) -> Attend:
        counts = [alike.num_texts for alike in texts]
        lengths_S = np.repeat([alike.length for alike in texts], counts)
        keys_S = lengths_S - np.repeat([alike.unattended for alike in texts], counts)
        return partial(kernels.attend_texts, plan_texts(lengths_S, keys_S, shape.num_heads, shape.head_dim))

    return begin


TEXT_ATTENTION_BACKENDS: Mapping[str, Callable[[TextShape], TextAttention]] = MappingProxyType(
    {"torch": torch_attention, "native": native_attention}
)


def text_attention(shape: TextShape, backend: str | None = None) -> TextAttention:
    """The back end named, else the best for heads of this shape."""
    runs_native = shape.head_dim <= MAX_HEAD_DIM and native.can_run_avx512(shape.dtype, shape.device)
    return choose("attention", TEXT_ATTENTION_BACKENDS, backend, runs_native)(shape)
