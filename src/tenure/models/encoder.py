"""An encoder with its heads, one for each task.

Legend: T rows, S texts, D hidden size, E size of an embedding, C classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch

from tenure.checkpoints.sentence_modules import PoolingMode
from tenure.errors import CallerError
from tenure.layers import pooling
from tenure.layers.linear import Activation, Linear
from tenure.layers.text_batch import TextBatch
from tenure.models.bert import BertLayers
from tenure.pooling import PoolingParams, PoolingTask


class TextHead(Protocol):
    """Computes the answers to one task from float32 hidden states."""

    def __call__(self, hidden_TD: torch.Tensor, batch: TextBatch, params: PoolingParams) -> list[torch.Tensor]:
        """The answer to each text of the batch, on the CPU."""
        ...


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer and its activation."""

    linear: Linear
    activation: Activation

    def __call__(self, x_TK: torch.Tensor) -> torch.Tensor:
        return self.linear.activated(x_TK, self.activation)


PoolRows = Callable[[torch.Tensor, TextBatch], torch.Tensor]

POOLINGS: Mapping[PoolingMode, PoolRows] = MappingProxyType(
    {
        PoolingMode.CLS: pooling.first_rows,
        PoolingMode.MEAN: pooling.mean_rows,
        PoolingMode.MAX: pooling.max_rows,
        PoolingMode.LAST: pooling.last_rows,
    }
)


@dataclass(frozen=True, slots=True)
class EmbeddingHead:
    """One vector for a text, or for each token when there is no pooling: projected, cut, scaled, in this order."""

    pool: PoolRows | None
    projections: Sequence[Projection]
    normalize: bool

    def __call__(self, hidden_TD: torch.Tensor, batch: TextBatch, params: PoolingParams) -> list[torch.Tensor]:
        x_RE = hidden_TD if self.pool is None else self.pool(hidden_TD, batch)
        for projection in self.projections:
            x_RE = projection(x_RE)
        x_RE = x_RE[:, : params.dimensions]
        if self.normalize and params.activation:
            x_RE = pooling.unit_rows(x_RE)
        return _answers(x_RE, batch, every_token=self.pool is None)


@dataclass(frozen=True, slots=True)
class ClassHead:
    """Class scores for a text, from its first token, or for each token: as they are, or as probabilities."""

    pool: PoolRows | None
    layers: Sequence[Projection]
    independent: bool
    """Multi-label: probabilities by sigmoid, else by softmax over the classes."""

    def __call__(self, hidden_TD: torch.Tensor, batch: TextBatch, params: PoolingParams) -> list[torch.Tensor]:
        x_RC = hidden_TD if self.pool is None else self.pool(hidden_TD, batch)
        for layer in self.layers:
            x_RC = layer(x_RC)
        if params.activation:
            scores_RC = x_RC.sigmoid() if self.independent else x_RC.softmax(dim=-1)
            # The sigmoid of infinity is 1, which would hide the fault.
            x_RC = scores_RC.masked_fill(~torch.isfinite(x_RC), torch.nan)
        return _answers(x_RC, batch, every_token=self.pool is None)


def _answers(x_RE: torch.Tensor, batch: TextBatch, *, every_token: bool) -> list[torch.Tensor]:
    x_RE = x_RE.float().cpu()
    return pooling.split_rows(x_RE, batch) if every_token else [x_RE[text : text + 1] for text in range(len(x_RE))]


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder of the BERT family. Call it inside `torch.inference_mode()`; it keeps no state between calls."""

    layers: BertLayers
    heads: Mapping[PoolingTask, TextHead]
    window: int
    """The most tokens of a text, special ones included."""

    @property
    def dtype(self) -> torch.dtype:
        return self.layers.embedding.words_VD.dtype

    @property
    def device(self) -> torch.device:
        return self.layers.embedding.words_VD.device

    @property
    def vocab_size(self) -> int:
        return len(self.layers.embedding.words_VD)

    def pool(self, batch: TextBatch, params: Sequence[PoolingParams]) -> list[torch.Tensor]:
        """The answer to each text: float32 on the CPU, (1, width), or (tokens, width) for a task on tokens.

        The answer to a text does not depend on the others. It is not finite (all NaN) when the model's own numbers for
        that text are not. CallerError for a task that this model does not do.
        """
        wanted = {one: self._head(one) for one in dict.fromkeys(params)}
        hidden_TD = self.layers(batch)
        finite_S = pooling.finite_texts(hidden_TD, batch)
        hidden_TD = hidden_TD.float()
        answers = {one: head(hidden_TD, batch, one) for one, head in wanted.items()}
        return [
            answers[one][text] if finite else torch.full_like(answers[one][text], torch.nan)
            for text, (one, finite) in enumerate(zip(params, finite_S, strict=True))
        ]

    def _head(self, params: PoolingParams) -> TextHead:
        head = self.heads.get(params.task)
        if head is None:
            raise CallerError(f"the model does not do {params.task!r}; it does {', '.join(self.heads)}")
        return head
