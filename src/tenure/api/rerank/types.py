"""The bodies of the score and rerank routes.

Null and absence are the same thing. Unknown fields are ignored, and so are `max_chunks_per_doc` and `relevant_spans`.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tenure.api.common.fields import Integer
from tenure.api.common.pooling_fields import PoolingFields
from tenure.api.common.reply import ListReply

Entry = str | dict[str, Any]
"""A text, or an object that holds one."""
Side = str | dict[str, Any] | list[str | dict[str, Any]]


class PairFields(PoolingFields, frozen=True, kw_only=True):
    """Fields with the same meaning on score and rerank; ranges are in `api.ranges.RANGES`."""

    max_tokens_per_query: Integer | None = None
    """0 = off."""
    max_tokens_per_doc: Integer | None = None
    """0 = off; a document is cut further where query and special tokens leave less room."""
    instruction: str | None = None
    """Defines relevance; for models whose prompt holds an instruction."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the reranker's chat template; `instruction` among them counts as the field."""


class ScoreRequest(PairFields, frozen=True, kw_only=True):
    """Exactly one of the four spellings of a pair: one to one, one to many, or n to n."""

    queries: Side | None = None
    documents: Side | None = None
    items: Side | None = None
    data_1: Side | None = None
    data_2: Side | None = None
    text_1: Side | None = None
    text_2: Side | None = None


class RerankRequest(PairFields, frozen=True, kw_only=True):
    query: Entry | None = None
    documents: Side | None = None
    """Texts, and objects with a `text` or with fields that `rank_fields` names, mixed freely."""
    top_n: Integer | None = None
    return_documents: bool | None = None
    """Default true."""
    rank_fields: list[str] | None = None

    max_chunks_per_doc: Any = None
    relevant_spans: Any = None

    texts: Any = None
    """The documents in another API's form; refused."""


class ScoreEntry(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreReply(ListReply, frozen=True, kw_only=True):
    """Scores in the order of the pairs."""

    data: list[ScoreEntry]


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    """`index` is the document's position in the request. `document` holds its `text`, and the keys it came with."""

    index: int
    document: dict[str, Any] | UnsetType = UNSET
    relevance_score: float


class RerankUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class ApiVersion(msgspec.Struct, frozen=True):
    version: Literal["2"] = "2"


class BilledUnits(msgspec.Struct, frozen=True, kw_only=True):
    """A search unit is a hundred documents, or the last part of a hundred."""

    search_units: int
    input_tokens: int


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int


class RerankMeta(msgspec.Struct, frozen=True, kw_only=True):
    api_version: ApiVersion = ApiVersion()
    billed_units: BilledUnits
    tokens: InputTokens


class RerankReply(msgspec.Struct, frozen=True, kw_only=True):
    """The best documents first, equal ones in the order of the request. `meta` is for `/v2/rerank` alone."""

    id: str
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    meta: RerankMeta | UnsetType = UNSET
