"""What is made of the hidden states of a text that is read and not continued: vectors, class scores.

Chosen by the API process, sent to the engine.
"""

from enum import StrEnum

import msgspec


class PoolingTask(StrEnum):
    """What a pooling item asks for."""

    EMBED = "embed"
    """One vector for the whole text."""
    TOKEN_EMBED = "token_embed"
    """One vector for each of its tokens."""
    CLASSIFY = "classify"
    """One score for each class."""
    TOKEN_CLASSIFY = "token_classify"
    """One score for each class, for each of its tokens."""

    @property
    def every_token(self) -> bool:
        """Whether the answer needs the hidden states of all tokens."""
        return self in (PoolingTask.TOKEN_EMBED, PoolingTask.TOKEN_CLASSIFY)


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The pooling fields of one request."""

    task: PoolingTask
    activation: bool = True
    """Embeddings: scale them to length 1 if the model says so. Classes: sigmoid of one, softmax of several."""
    dimensions: int | None = None
    """Keep the first so many numbers of an embedding, before it is scaled; None keeps all."""


class Pooled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer to one item: `rows` vectors of equal length, row after row, as little-endian float32."""

    rows: int
    data: bytes
