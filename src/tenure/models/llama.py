"""The Llama family: Llama, SmolLM, Mistral, Qwen2 and Qwen3, told apart by configuration alone.

Legend: T rows, D hidden size, M heads (queries, keys and values), H head size, R rows of which
something is wanted, V vocabulary (or classes), P pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tenure.checkpoints.model_config import ModelConfig
from tenure.kv.cache import CacheShape, KVCache
from tenure.layers.attention import AttentionBackend, StepAttention
from tenure.layers.batch import PackedBatch
from tenure.layers.linear import Linear
from tenure.layers.mlp import GatedMLP
from tenure.layers.norm import HeadNorms, RMSNorm
from tenure.layers.rope import rotations


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


@dataclass(frozen=True, slots=True)
class LlamaModel:
    """A decoder of the family. Call it inside `torch.inference_mode()`; it keeps no state between calls."""

    config: ModelConfig
    embedding_VD: torch.Tensor
    layers: Sequence[LlamaLayer]
    final_norm: RMSNorm
    head: Linear | None
    """What gives the logits; None for a model that only embeds."""
    inverse_P: torch.Tensor
    attention: AttentionBackend

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding_VD.dtype

    @property
    def cache_shape(self) -> CacheShape:
        windows = tuple(layer.window for layer in self.layers)
        return CacheShape(windows, self.config.num_kv_heads, self.config.head_dim, self.dtype)

    def forward(self, batch: PackedBatch, cache: KVCache) -> torch.Tensor:
        """Compute a batch, writing its keys and values to the cache; hidden states (T, D) for the methods below."""
        x_TD = F.embedding(batch.token_ids_T, self.embedding_VD)
        attention = self.attention.begin(batch, rotations(batch.positions_T, self.inverse_P), cache.shape.groups)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x_TD = layer(x_TD, attention, layer_cache)
        return x_TD

    def states(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Some rows of what `forward` returned, after the final norm: (R, D), float32."""
        return self.final_norm(hidden_RD).float()

    def logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """The head's logits for some rows of what `forward` returned: (R, V), float32.

        Of the next token, unless the model was loaded with another head. Not for a model without a head.
        """
        assert self.head is not None
        return self.head(self.final_norm(hidden_RD)).float()
