"""The bodies and stream chunks of the generation routes.

Whole bodies carry every key, null where there is nothing to say. Chunks leave out what is UNSET. Logprobs are
finite numbers always: minus infinity is -9999.0.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tenure.api.common.reply import StopReason, Usage

FinishName = Literal["stop", "length", "repetition", "tool_calls", "abort"]


class TopLogprob(msgspec.Struct, frozen=True):
    """`bytes` are the token's exact bytes, also where it holds part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, frozen=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenLogprob]


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Four lists of one length; the entries of the first prompt token are null."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct, frozen=True):
    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class _Generation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    service_tier: str | None = None
    system_fingerprint: str | None
    usage: Usage
    kv_transfer_params: dict[str, Any] | None = None


class _Chunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET


# POST /v1/chat/completions


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    content: str | None
    refusal: str | None = None
    annotations: list[str] | None = None
    audio: dict[str, str] | None = None
    function_call: dict[str, str] | None = None
    reasoning: str | None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishName
    stop_reason: StopReason
    token_ids: list[int] | None = None


class ChatCompletion(_Generation, frozen=True, kw_only=True):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishName | None = None
    stop_reason: StopReason | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(_Chunk, frozen=True, kw_only=True):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


# POST /v1/completions


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishName
    stop_reason: StopReason
    token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class Completion(_Generation, frozen=True, kw_only=True):
    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class CompletionChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishName | None = None
    stop_reason: StopReason = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChunk(_Chunk, frozen=True, kw_only=True):
    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChunkChoice]
