"""The request bodies of `POST /v1/chat/completions` and `POST /v1/completions`."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tenure.api.common.fields import Integer, SamplingFields

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a message; only parts that hold text are served."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of the conversation, of any role."""

    role: str
    content: str | list[str | ContentPart] | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: Integer | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    return_prompt_text: bool | None = None
    parallel_tool_calls: bool | None = None

    # Refused unless they ask for nothing.
    tools: list[Any] | None = None
    tool_choice: Any = None
    chat_template: str | None = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None


_TOKEN_IDS = {"type": "array", "items": {"type": "integer"}}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_PROMPT_SCHEMA = {
    "anyOf": [{"type": "string"}, _TEXTS, _TOKEN_IDS, {"type": "array", "items": _TOKEN_IDS}],
    "description": "A text, texts, token ids, or lists of token ids.",
}

# Wider than what is served, since msgspec allows one array type in a union: `token_prompts` checks the mixture.
Prompt = Annotated[str | list[str | Integer | list[Integer]], Meta(extra_json_schema={"x-replace": _PROMPT_SCHEMA})]


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    prompt: Prompt | None = None
    logprobs: Integer | None = None

    # Refused unless they ask for nothing.
    suffix: str | None = None
    prompt_embeds: Any = None
