"""The inputs (texts, token ids, conversations) and the `encoding_format` of the routes for vectors."""

from enum import StrEnum

from tenure.api.common.body_reading import SelectedModel
from tenure.api.common.pooling_fields import Shared
from tenure.api.openai.conversation import refuse_conversation_fields, render_messages
from tenure.api.openai.embedding_types import EncodedFields, InputFields
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
    if request.messages is None:
        texts, name = split_prompts(request.input, settings.max_inputs, "input"), "input"
        special = request.add_special_tokens is not False
        refuse_conversation_fields(request)
    elif request.input is not None:
        raise invalid_request("Only one of `input` and `messages` may be given.", "messages")
    else:
        generates = bool(request.add_generation_prompt)
        texts, name = [render_messages(request, selected.text, "give texts as `input`", generates)], "messages"
        special, prompt = bool(request.add_special_tokens), ""
    rules = TextRules(
        model=selected.text,
        vocabulary_size=selected.window.vocabulary_size,
        longest=longest,
        truncation=shared.truncation,
        add_special_tokens=special,
        prompt=prompt,
    )
    return tokenise_inputs(texts, rules, name)
