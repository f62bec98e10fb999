"""`POST /tokenize` and `POST /detokenize`.

They are no work routes: nothing is asked of an engine, so there is nothing to admit, to count as load or to cancel.
"""

from typing import Any

import msgspec

from tenure.api.common.body_reading import BodyReading, SelectedModel
from tenure.api.common.call import Call
from tenure.api.common.fields import Ids
from tenure.api.common.json_parts import joined, json_parts
from tenure.api.openai.conversation import refuse_conversation_fields, render_messages
from tenure.api.openai.request_types import ChatMessage
from tenure.http.errors import invalid_request
from tenure.process.compute_threads import stop_if_cancelled
from tenure.prompts.ranges import check_ids


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    """Default true; false for a conversation, whose template writes special tokens itself."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    return_token_strs: bool | None = None


class TokenizeReply(msgspec.Struct, frozen=True, kw_only=True):
    """`token_strs` are the entries of the vocabulary as they are written there."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: Ids


class DetokenizeReply(msgspec.Struct, frozen=True):
    prompt: str


_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


async def show_read(call: Call) -> None:
    """What was read of the body is the whole reply."""
    await call.read(type(None))
    await call.respond(200, *call.attached)


def tokenize(body: bytes | bytearray, reading: BodyReading) -> None:
    """Attach the reply to a body for `/tokenize`. Raises a 400."""
    request = reading.decode(body, _TOKENIZE)
    reading.attached += joined(json_parts(_tokenized(request, reading.choose(request.model))))


def detokenize(body: bytes | bytearray, reading: BodyReading) -> None:
    """Attach the reply to a body for `/detokenize`. Raises a 400."""
    request = reading.decode(body, _DETOKENIZE)
    reading.attached += joined(json_parts(_detokenized(request, reading.choose(request.model))))


def _tokenized(request: TokenizeRequest, selected: SelectedModel) -> TokenizeReply:
    if (request.prompt is None) == (request.messages is None):
        raise invalid_request("One of `prompt` and `messages` is required, and only one.", "prompt")
    tokenizer = selected.text.tokenizer
    if request.prompt is not None:
        refuse_conversation_fields(request)
        text, special = request.prompt, request.add_special_tokens is not False
    else:
        generates = request.add_generation_prompt is not False
        text = render_messages(request, selected.text, "give the text as `prompt`", generates)
        special = bool(request.add_special_tokens)
    tokens = tokenizer.encode(text, special, stop_if_cancelled)
    return TokenizeReply(
        count=len(tokens),
        max_model_len=selected.window.max_model_len,
        tokens=tokens,
        token_strs=[tokenizer.token_piece(token) for token in tokens] if request.return_token_strs else None,
    )


def _detokenized(request: DetokenizeRequest, selected: SelectedModel) -> DetokenizeReply:
    tokenizer = selected.text.tokenizer
    ids = check_ids("tokens", request.tokens, selected.window.vocabulary_size, tokenizer.without_token)
    return DetokenizeReply(tokenizer.decode(ids, skip_special_tokens=False))
