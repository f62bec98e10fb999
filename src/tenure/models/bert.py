"""The BERT family: BERT, RoBERTa and XLM-R, told apart by configuration alone. Normalisation comes after each block.

Legend: T rows, P rows of a piece of the batch, D hidden size, N heads, H head size, V vocabulary, A positions of each
token type, Y token types.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tenure.layers.after_attention import AfterAttention
from tenure.layers.full_attention import Attend, TextAttention
from tenure.layers.linear import Linear
from tenure.layers.norm import LayerNorm
from tenure.layers.text_batch import AlikeTexts, TextBatch, split_alike

ROWS_AT_ONCE = 1024
"""Of a batch on a CPU: more do not make products faster, and no longer fit into the caches."""


@dataclass(frozen=True, slots=True)
class BertEmbedding:
    """The sum of the embeddings of a token, its position and its type (text of a pair), normalised."""

    words_VD: torch.Tensor
    places_YAD: torch.Tensor
    """For each token type and position the sum of both; positions count from 0 here."""
    norm: LayerNorm

    def __call__(self, batch: TextBatch) -> torch.Tensor:
        num_types, num_positions, _ = self.places_YAD.shape
        places_T = batch.positions_T
        if num_types > 1:
            places_T = torch.add(places_T, batch.token_types_T, alpha=num_positions)
        x_TD = F.embedding(batch.token_ids_T, self.words_VD)
        return self.norm(x_TD.add_(F.embedding(places_T, self.places_YAD.flatten(0, 1))))


@dataclass(frozen=True, slots=True)
class BertLayer:
    """One encoder layer. `qkv` gives all query heads, then all key heads, then all value heads."""

    qkv: Linear
    num_heads: int
    after_attention: AfterAttention

    def __call__(self, x_TD: torch.Tensor, attend: Attend) -> torch.Tensor:
        heads_T3NH = self.qkv(x_TD).view(len(x_TD), 3, self.num_heads, -1)
        return self.after_attention(attend(heads_T3NH), x_TD)


@dataclass(frozen=True, slots=True)
class BertLayers:
    """From token ids to hidden states: all of an encoder but its head."""

    embedding: BertEmbedding
    layers: Sequence[BertLayer]
    attention: TextAttention

    def __call__(self, batch: TextBatch) -> torch.Tensor:
        """Hidden states of all rows, (T, D)."""
        x_TD = self.embedding(batch)
        # Texts are independent, so each piece goes through all layers while it is in the processor's caches.
        most_rows = ROWS_AT_ONCE if x_TD.device.type == "cpu" else len(x_TD)
        pieces = split_alike(batch.alike, most_rows)
        rows = torch.split(x_TD, [piece[-1].rows.stop for piece in pieces])
        outputs = [self._run(x_PD, piece) for x_PD, piece in zip(rows, pieces, strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _run(self, x_PD: torch.Tensor, texts: Sequence[AlikeTexts]) -> torch.Tensor:
        attend = self.attention(texts)
        for layer in self.layers:
            x_PD = layer(x_PD, attend)
        return x_PD
