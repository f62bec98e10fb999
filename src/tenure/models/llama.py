"""The Llama family: Llama, SmolLM, Mistral, Qwen2 and Qwen3, told apart by configuration alone.

Legend: T rows, D hidden size, M heads (queries, keys and values), H head size, R rows of which
something is wanted, V vocabulary (or classes), P pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tenure.checkpoints.model_config import ModelConfig
from tenure.layers.attention import AttentionBackend, StepAttention
from tenure.layers.batch import PackedBatch
from tenure.layers.linear import Linear
from tenure.layers.mlp import GatedMLP
from tenure.layers.norm import HeadNorms, RMSNorm
from tenure.layers.rope import rotations
from tenure.models.base import PagedCache


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """One decoder layer. `qkv` gives the query heads, then the key heads, then the value heads."""

    attention_norm: RMSNorm
    qkv: Linear
    output: Linear
    mlp_norm: RMSNorm
    mlp: GatedMLP
    head_dim: int
    window: int | None
    head_norms: HeadNorms | None = None

    def __call__(self, x_TD: torch.Tensor, attention: StepAttention, cache: torch.Tensor) -> torch.Tensor:
        heads_TMH = self.qkv(self.attention_norm(x_TD)).view(len(x_TD), -1, self.head_dim)
        if self.head_norms is not None:
            self.head_norms.apply_(heads_TMH)
        x_TD = self.output.add(attention.attend(self.window, heads_TMH, cache), x_TD)
        return self.mlp(self.mlp_norm(x_TD), x_TD)


class LlamaModel:
    """A decoder of the family; implements `LoadedModel`."""

    def __init__(
        self,
        config: ModelConfig,
        embedding_VD: torch.Tensor,
        layers: Sequence[LlamaLayer],
        final_norm: RMSNorm,
        head: Linear | None,
        inverse_P: torch.Tensor,
        attention: AttentionBackend,
    ) -> None:
        self._config = config
        self._embedding_VD = embedding_VD
        self.layers = tuple(layers)
        self._final_norm = final_norm
        self.head = head
        self._inverse_P = inverse_P
        self._attention = attention
        self._windows = tuple(dict.fromkeys(layer.window for layer in self.layers))

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding_VD.dtype

    def forward(self, batch: PackedBatch, cache: PagedCache) -> torch.Tensor:
        x_TD = F.embedding(batch.token_ids_T, self._embedding_VD)
        attention = self._attention.begin(batch, rotations(batch.positions_T, self._inverse_P), self._windows)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x_TD = layer(x_TD, attention, layer_cache)
        return x_TD

    def states(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        return self._final_norm(hidden_RD).float()

    def logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        assert self.head is not None
        return self.head(self._final_norm(hidden_RD)).float()
