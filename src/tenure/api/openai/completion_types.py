"""The request body of `POST /v1/completions`."""

from typing import Annotated, Any

from msgspec import Meta

from tenure.api.common.fields import Integer, SamplingFields

_TOKEN_IDS = {"type": "array", "items": {"type": "integer"}}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_PROMPT_SCHEMA = {
    "anyOf": [{"type": "string"}, _TEXTS, _TOKEN_IDS, {"type": "array", "items": _TOKEN_IDS}],
    "description": "A text, texts, token ids, or lists of token ids.",
}

# Wider than what is served, since msgspec allows one array type in a union: `api.prompts` checks the mixture.
Prompt = Annotated[str | list[str | Integer | list[Integer]], Meta(extra_json_schema={"x-replace": _PROMPT_SCHEMA})]


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    prompt: Prompt | None = None
    logprobs: Integer | None = None

    # Refused unless they ask for nothing.
    suffix: str | None = None
    prompt_embeds: Any = None
