"""What the engine sees of a loaded model.

Legend: T rows of a batch, R rows of which something is wanted, D hidden size, V vocabulary (or classes).
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
        """What the model's head makes of some rows of what `forward` returned: (R, V), float32.

        Logits of the next token, unless the model was loaded with another head; not for a model without one.
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
        """For each text what `params` ask of it: float32 on the CPU, one row, or one for each of its tokens.

        The answer to a text does not depend on the others. It is not finite (all NaN) when the model's own numbers for
        that text are not. CallerError for a task that this model does not do.
        """
        ...
