"""`POST /v2/embed` and `POST /v1/embed`: Cohere's bodies, and their plans.

The two take the same fields. They differ in `meta.api_version`, and in what a v1 body without `embedding_types` gets: a
plain list of vectors.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tenure.api.common.body_reading import BodyReading, SelectedModel
from tenure.api.common.fields import Integer
from tenure.api.common.json_parts import ENCODER, Part
from tenure.api.common.pooling_fields import PoolingFields, Shared, check_shared
from tenure.api.common.pooling_job import Vectors
from tenure.api.common.pooling_plan import (
    PoolingHandler,
    PoolingPlan,
    check_dimensions,
    default_prompt,
    embeds,
    longest_input,
    pooled_plan,
)
from tenure.api.common.reply import ReplyHead
from tenure.api.common.vector_json import vector_base64, vector_bits, vector_numbers
from tenure.checkpoints.profile import DOCUMENT_PROMPTS, QUERY_PROMPTS, ModelProfile
from tenure.http.errors import echo, invalid_request
from tenure.http.routes import Description, Route, work_route
from tenure.pooling import PoolingParams, PoolingTask
from tenure.prompts.ranges import RANGES, check_number
from tenure.prompts.text_inputs import TextRules, tokenise_inputs
from tenure.prompts.token_prompts import Truncation


class EmbedPart(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    text: str | None = None


class EmbedInput(msgspec.Struct, frozen=True, kw_only=True):
    content: list[EmbedPart]


class EmbedRequest(PoolingFields, frozen=True, kw_only=True):
    """One of `texts` and `inputs`; images are refused."""

    texts: list[str] | None = None
    inputs: list[EmbedInput] | None = None
    images: list[Any] | None = None
    input_type: str | None = None
    embedding_types: list[str] | None = None
    output_dimension: Integer | None = None
    truncate: str | None = None
    max_tokens: Integer | None = None


class ApiVersion(msgspec.Struct, frozen=True):
    version: str


class BilledUnits(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    image_tokens: int = 0


class EmbedMeta(msgspec.Struct, frozen=True, kw_only=True):
    api_version: ApiVersion
    billed_units: BilledUnits


class EmbeddingsByType(msgspec.Struct, frozen=True, kw_only=True):
    """One list for each type that was asked for."""

    floats: list[list[float]] | UnsetType = msgspec.field(name="float", default=UNSET)
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET


class EmbedReply(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    embeddings: EmbeddingsByType
    texts: list[str]
    meta: EmbedMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


class EmbedV1Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of `/v1/embed`: by type when the request names types, else a plain list of vectors."""

    id: str
    embeddings: list[list[float]] | EmbeddingsByType
    texts: list[str]
    meta: EmbedMeta
    response_type: Literal["embeddings_floats", "embeddings_by_type"]


class EmbeddingType(StrEnum):
    FLOAT = "float"
    BINARY = "binary"
    UBINARY = "ubinary"
    BASE64 = "base64"

    @property
    def field(self) -> str:
        """The field of `EmbeddingsByType` for this type."""
        return "floats" if self is EmbeddingType.FLOAT else self.value

    @property
    def packed(self) -> bool:
        return self in (EmbeddingType.BINARY, EmbeddingType.UBINARY)


_STANDARD_TYPES = ("search_document", "search_query", "classification", "clustering", "image")
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"search_query": QUERY_PROMPTS, "search_document": DOCUMENT_PROMPTS}
)
"""How sentence-transformers' models call the prompts for these uses."""


class EmbedForm(msgspec.Struct, frozen=True):
    """How these routes answer. The texts are attached, as JSON."""

    version: str
    types: tuple[EmbeddingType, ...]
    plain: bool
    """A list of vectors, and not one for each type."""

    def reply(self, head: ReplyHead, vectors: Sequence[Vectors], tokens: int, attached: Sequence[Part]) -> object:
        meta = EmbedMeta(api_version=ApiVersion(self.version), billed_units=BilledUnits(input_tokens=tokens))
        texts: Any = [iter([text]) for text in attached]
        if self.plain:
            floats = _written(vectors, EmbeddingType.FLOAT)
            return EmbedV1Reply(
                id=head.id, embeddings=floats, texts=texts, meta=meta, response_type="embeddings_floats"
            )
        found = EmbeddingsByType(**{kind.field: _written(vectors, kind) for kind in self.types})
        return EmbedReply(id=head.id, embeddings=found, texts=texts, meta=meta)


def _plan(
    request: EmbedRequest, selected: SelectedModel, reading: BodyReading, *, version: str
) -> PoolingPlan[EmbedForm]:
    model, profile = selected.text, selected.text.profile
    shared = check_shared(request, selected, reading)
    param, texts = _texts(request, reading.settings.max_inputs)
    types = _embedding_types(request.embedding_types)
    dimensions = check_dimensions(request.output_dimension, profile, "output_dimension")
    if any(kind.packed for kind in types) and (dimensions or profile.embedding_size) % 8:
        raise invalid_request("`binary` and `ubinary` need a size that is a multiple of 8.", "embedding_types")
    truncation, longest = _length(request, shared, selected.text_window, longest_input(selected, reading.settings))
    rules = TextRules(
        model=model,
        vocabulary_size=selected.window.vocabulary_size,
        longest=longest,
        truncation=truncation,
        prompt=_prompt(request.input_type, profile),
    )
    inputs = tokenise_inputs(texts, rules, param)
    form = EmbedForm(version, types, plain=version == "1" and request.embedding_types is None)
    reading.attached += map(ENCODER.encode, texts)
    params = PoolingParams(task=PoolingTask.EMBED, activation=shared.activation, dimensions=dimensions)
    return pooled_plan(inputs, params, selected, shared, form, param)


def _texts(request: EmbedRequest, most: int) -> tuple[str, list[str]]:
    """The field that holds the texts, and the texts."""
    if request.images:
        raise invalid_request("`images` are not supported: the models read text alone.", "images")
    if (request.texts is None) == (request.inputs is None):
        raise invalid_request("One of `texts` and `inputs` is required, and only one.", "texts")
    if request.texts is not None:
        param, given = "texts", request.texts
    else:
        param, given = "inputs", [_joined(*entry) for entry in enumerate(request.inputs or ())]
    if not given:
        raise invalid_request(f"`{param}` must not be empty.", param)
    if len(given) > most:
        raise invalid_request(f"`{param}` takes at most {most} entries.", param)
    return param, given


def _joined(position: int, entry: EmbedInput) -> str:
    for number, part in enumerate(entry.content):
        if part.type != "text" or part.text is None:
            place = f"inputs[{position}].content[{number}]"
            raise invalid_request(f"`{place}` is no text, and the models read text alone.", "inputs")
    return "".join(part.text or "" for part in entry.content)


def _embedding_types(names: Sequence[str] | None) -> tuple[EmbeddingType, ...]:
    if names is None:
        return (EmbeddingType.FLOAT,)
    if not names:
        raise invalid_request("`embedding_types` must not be empty.", "embedding_types")
    known = {kind.value: kind for kind in EmbeddingType}
    for name in names:
        if name not in known:
            message = f"`embedding_types` has {echo(name)}, but may have: {', '.join(known)}."
            raise invalid_request(message, "embedding_types")
    return tuple(known[name] for name in dict.fromkeys(names))


def _length(request: EmbedRequest, shared: Shared, window: int, longest: int) -> tuple[Truncation | None, int]:
    """How texts are cut, and how long they may be then. `truncate_prompt_tokens` wins over Cohere's fields."""
    truncate = "END" if request.truncate is None else request.truncate
    if truncate not in ("END", "START", "NONE"):
        raise invalid_request(f"`truncate` must be END, START or NONE, not {echo(truncate)}.", "truncate")
    limit = window
    if request.max_tokens is not None:
        wanted = check_number("max_tokens", request.max_tokens, RANGES["max_tokens"])
        limit = min(window, int(wanted))
    if request.truncate_prompt_tokens is not None:
        return shared.truncation, longest
    if truncate == "NONE":
        return None, longest if request.max_tokens is None else limit
    field = None if request.max_tokens is None else "max_tokens"
    return Truncation(limit, "right" if truncate == "END" else "left", field), longest


def _prompt(input_type: str | None, profile: ModelProfile) -> str:
    """Return the prompt before texts of this type: the model's prompt of that name or of one of its other names.

    The default prompt for a Cohere type that a model without prompts does not name, and for documents. Else a 400.
    """
    if input_type is None:
        return default_prompt(profile)
    for name in (input_type, *_OTHER_NAMES.get(input_type, ())):
        if name in profile.prompts:
            return profile.prompts[name]
    if input_type in _STANDARD_TYPES and (not profile.prompts or input_type == "search_document"):
        return default_prompt(profile)
    allowed = ", ".join(profile.prompts or _STANDARD_TYPES)
    raise invalid_request(f"`input_type` is {echo(input_type)}, but may be one of: {allowed}.", "input_type")


def _written(vectors: Sequence[Vectors], kind: EmbeddingType) -> Any:
    match kind:
        case EmbeddingType.FLOAT:
            return [vector_numbers(vector) for vector in vectors]
        case EmbeddingType.BASE64:
            return [vector_base64(vector) for vector in vectors]
        case EmbeddingType.BINARY | EmbeddingType.UBINARY:
            return [vector_bits(vector, signed=kind is EmbeddingType.BINARY) for vector in vectors]


def _route(version: str, summary: str, reply: type) -> Route:
    plan = partial(_plan, version=version)
    handler = PoolingHandler(msgspec.json.Decoder(EmbedRequest), embeds, plan, EmbedForm)
    return work_route(f"/v{version}/embed", handler, "embd-", Description(summary, EmbedRequest, reply))


ROUTES = (
    _route("1", "Embed texts, as Cohere's first API does.", EmbedV1Reply),
    _route("2", "Embed texts, as Cohere's API does.", EmbedReply),
)
