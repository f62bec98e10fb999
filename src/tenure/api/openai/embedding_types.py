"""The bodies of `/v1/embeddings`, `/pooling` and `/classify`."""

from typing import Any, Literal

import msgspec

from tenure.api.common.fields import Integer
from tenure.api.common.pooling_fields import PoolingFields
from tenure.api.common.reply import ListReply
from tenure.api.openai.request_types import ChatMessage, Prompt


class InputFields(PoolingFields, frozen=True, kw_only=True):
    """The inputs of these routes: texts, token ids, or one conversation."""

    input: Prompt | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    """Default true; false for a conversation, whose template writes special tokens itself."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None


class EncodedFields(InputFields, frozen=True, kw_only=True):
    """Adds the fields for the encoding of vectors."""

    encoding_format: str | None = None
    embed_dtype: str | None = None
    endianness: str | None = None
    dimensions: Integer | None = None
    prompt_name: str | None = None
    """The model's prompt before texts that are embedded, by its name in sentence-transformers."""


class EmbeddingRequest(EncodedFields, frozen=True, kw_only=True):
    pass


class EmbeddingData(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str


class Embeddings(ListReply, frozen=True, kw_only=True):
    data: list[EmbeddingData]


class PoolingRequest(EncodedFields, frozen=True, kw_only=True):
    task: str | None = None
    data: Any = None


class PooledData(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    object: Literal["pooling"] = "pooling"
    data: list[float | list[float]] | str


class PooledReply(ListReply, frozen=True, kw_only=True):
    data: list[PooledData]


class ClassifyRequest(InputFields, frozen=True, kw_only=True):
    pass


class ClassData(msgspec.Struct, frozen=True, kw_only=True):
    """`probs` has a number for each class; `label` is that of the largest."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classification(ListReply, frozen=True, kw_only=True):
    data: list[ClassData]
