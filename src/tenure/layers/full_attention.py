"""Attention of encoders: every token sees its whole text, and no other.

Legend: T rows, N heads, H head size, G texts of one length, L their length.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from tenure.layers.texts import AlikeTexts


def attend_texts(heads_T3NH: torch.Tensor, texts: Sequence[AlikeTexts]) -> torch.Tensor:
    """Attention over queries, keys and values of packed texts, shape (T, N * H). Texts of one length go together."""
    outputs = [_attend(heads_T3NH[alike.rows], alike) for alike in texts]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend(heads_T3NH: torch.Tensor, alike: AlikeTexts) -> torch.Tensor:
    heads_GL3NH = heads_T3NH.view(alike.num_texts, alike.length, *heads_T3NH.shape[1:])
    q_GNLH, k_GNLH, v_GNLH = heads_GL3NH.permute(2, 0, 3, 1, 4).unbind(0)
    out_GNLH = F.scaled_dot_product_attention(q_GNLH, k_GNLH, v_GNLH)
    return out_GNLH.transpose(1, 2).reshape(len(heads_T3NH), -1)
