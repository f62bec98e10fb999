"""The BERT family: BERT, RoBERTa and XLM-R, told apart by configuration alone. Normalisation comes after each block.

Legend: T rows, D hidden size, N heads, H head size, V vocabulary, A positions of each token type, Y token types.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tenure.layers.full_attention import attend_texts
from tenure.layers.layer_norm import LayerNorm
from tenure.layers.linear import Activation, Linear
from tenure.layers.texts import TextBatch


@dataclass(frozen=True, slots=True)
class BertEmbedding:
    """What a token, its position and its type (which text of a pair) bring along, summed and normalised."""

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

    @property
    def nbytes(self) -> int:
        return self.words_VD.nbytes + self.places_YAD.nbytes + self.norm.nbytes


@dataclass(frozen=True, slots=True)
class BertLayer:
    """One encoder layer. `qkv` gives all query heads, then all key heads, then all value heads."""

    qkv: Linear
    output: Linear
    attention_norm: LayerNorm
    up: Linear
    down: Linear
    mlp_norm: LayerNorm
    num_heads: int
    activation: Activation

    def __call__(self, x_TD: torch.Tensor, batch: TextBatch) -> torch.Tensor:
        heads_T3NH = self.qkv(x_TD).view(len(x_TD), 3, self.num_heads, -1)
        x_TD = self.attention_norm(self.output.add(attend_texts(heads_T3NH, batch), x_TD))
        return self.mlp_norm(self.down.add(self.up.activated(x_TD, self.activation), x_TD))

    @property
    def nbytes(self) -> int:
        products = sum(linear.nbytes for linear in (self.qkv, self.output, self.up, self.down))
        return products + self.attention_norm.nbytes + self.mlp_norm.nbytes


@dataclass(frozen=True, slots=True)
class BertLayers:
    """From token ids to hidden states: all of an encoder but its head."""

    embedding: BertEmbedding
    layers: Sequence[BertLayer]

    def __call__(self, batch: TextBatch) -> torch.Tensor:
        """Hidden states of all rows, (T, D)."""
        x_TD = self.embedding(batch)
        for layer in self.layers:
            x_TD = layer(x_TD, batch)
        return x_TD

    @property
    def nbytes(self) -> int:
        return self.embedding.nbytes + sum(layer.nbytes for layer in self.layers)
