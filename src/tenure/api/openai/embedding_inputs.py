"""The inputs (texts, token ids, conversations) and the `encoding_format` of the routes for vectors."""

from enum import StrEnum

from tenure.api.common.pooling_fields import Shared
from tenure.api.common.reading import SelectedModel
from tenure.api.openai.conversation import check_conversation, render
from tenure.api.openai.embedding_types import EncodedFields, InputFields
from tenure.api.openai.request_types import ChatRequest
from tenure.config import ApiSettings
from tenure.http.errors import echo, invalid_request
from tenure.prompts.text_inputs import TextRules, TokenizedInput, tokenise_inputs
from tenure.prompts.token_prompts import split_prompts


class Encoding(StrEnum):
    FLOAT = "float"
    BASE64 = "base64"


def check_encoding(request: EncodedFields) -> Encoding:
    """Return the encoding. `embed_dtype` and `endianness` may only name what base64 uses: float32, little-endian."""
    if request.embed_dtype not in (None, "float32"):
        raise invalid_request("`embed_dtype` other than `float32` is not supported yet.", "embed_dtype")
    if request.endianness not in (None, "native", "little"):
        raise invalid_request("`endianness` other than `little` is not supported yet.", "endianness")
    try:
        return Encoding.FLOAT if request.encoding_format is None else Encoding(request.encoding_format)
    except ValueError:
        message = f"`encoding_format` must be `float` or `base64`, not {echo(request.encoding_format)}."
        raise invalid_request(message, "encoding_format") from None


def read_inputs(
    request: InputFields,
    selected: SelectedModel,
    settings: ApiSettings,
    shared: Shared,
    *,
    longest: int,
    prompt: str = "",
) -> list[TokenizedInput]:
    """Return the tokenized inputs of `input` or `messages`. `prompt` is put before texts. Raises a 400."""
    if request.messages is not None:
        return _conversation(request, selected, shared, longest)
    rules = TextRules(
        model=selected.text,
        vocabulary_size=selected.window.vocabulary_size,
        longest=longest,
        truncation=shared.truncation,
        add_special_tokens=request.add_special_tokens is not False,
        prompt=prompt,
    )
    return tokenise_inputs(split_prompts(request.input, settings.max_inputs, "input"), rules, "input")


def _conversation(request: InputFields, selected: SelectedModel, shared: Shared, longest: int) -> list[TokenizedInput]:
    if request.input is not None:
        raise invalid_request("Only one of `input` and `messages` may be given.", "messages")
    conversation = ChatRequest(
        messages=request.messages or [],
        add_generation_prompt=bool(request.add_generation_prompt),
        continue_final_message=request.continue_final_message,
        chat_template=request.chat_template,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    check_conversation(conversation)
    rules = TextRules(
        model=selected.text,
        vocabulary_size=selected.window.vocabulary_size,
        longest=longest,
        truncation=shared.truncation,
        add_special_tokens=bool(request.add_special_tokens),
    )
    text = render(conversation, selected.text, "give texts as `input`")
    return tokenise_inputs([text], rules, "messages")
