"""The protocols of loaded models, as the model runner uses them.

Legend: T rows of a batch, R selected rows, D hidden size, V vocabulary (or classes).
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from tenure.checkpoints.model_config import ModelConfig
from tenure.layers.batch import PackedBatch
from tenure.layers.texts import TextBatch
from tenure.pooling import PoolingParams


class PagedCache(Protocol):
    """One tensor per layer, (num_blocks, 2, num_kv_heads, block_size, head_dim): keys, then values."""

    @property
    def layers(self) -> Sequence[torch.Tensor]: ...


class LoadedModel(Protocol):
    """A decoder, ready to run. Call it inside `torch.inference_mode()`; it keeps no state between calls."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def forward(self, batch: PackedBatch, cache: PagedCache) -> torch.Tensor:
        """Compute a batch, writing its keys and values to the cache; hidden states (T, D) for the methods below."""
        ...

    def states(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Some rows of what `forward` returned, after the final norm: (R, D), float32."""
        ...

    def logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """The head's logits for some rows of what `forward` returned: (R, V), float32.

        Of the next token, unless the model was loaded with another head. Not for a model without a head.
        """
        ...


class EncoderModel(Protocol):
    """A model that reads whole texts, ready to run. Call it inside `torch.inference_mode()`; it keeps no state."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def window(self) -> int:
        """The most tokens of a text, special ones included."""
        ...

    def pool(self, batch: TextBatch, params: Sequence[PoolingParams]) -> list[torch.Tensor]:
        """The answer to each text: float32 on the CPU, (1, width), or (tokens, width) for a task on tokens.

        The answer to a text does not depend on the others. It is not finite (all NaN) when the model's own numbers for
        that text are not. CallerError for a task that this model does not do.
        """
        ...
