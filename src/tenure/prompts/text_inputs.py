"""From the texts or token ids of a body to token ids for a pooling model: truncated, with special tokens; or a 400.

Truncation never removes special tokens, as in Hugging Face's tokenizers. Pure; takes time in proportion to the texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tenure.http.errors import ApiError, context_length_exceeded, invalid_request
from tenure.process.compute_threads import stop_if_cancelled
from tenure.prompts.ranges import check_ids
from tenure.prompts.text_model import TextModel
from tenure.prompts.token_prompts import TextOrIds, Truncation
from tenure.text.pairs import cut
from tenure.text.special_tokens import SpecialTokens
from tenure.text.tokenizer import Tokenizer

_CHARACTERS_AT_A_TIME = 32768
"""Of the texts that are tokenised between two looks at whether somebody still waits for them."""
_SAMPLE_CHARACTERS = 16
"""Of a text, for each token that it may have: more than most texts need, so that most of the overlong are found."""
_SAMPLE_SLACK = 16
"""How many tokens a sample may have at its end that the whole text has not."""


@dataclass(frozen=True)
class TokenizedInput:
    """The tokens of one input, apart from the special tokens and the model's prompt around them."""

    special: SpecialTokens
    """The tokens of the prompt are the last ones of `special.before`."""
    tokens: list[int]

    @property
    def size(self) -> int:
        return self.special.size + len(self.tokens)

    @property
    def ids(self) -> list[int]:
        return self.special.around(self.tokens)


@dataclass(frozen=True)
class TextRules:
    """The truncation rules and the model of one request."""

    model: TextModel
    vocabulary_size: int
    longest: int
    """Most tokens of an input, special tokens and prompt included, after truncation."""
    truncation: Truncation | None = None
    own: Truncation | None = None
    """Truncation of an input's own tokens, special tokens and prompt not counted; then to `longest` as well."""
    add_special_tokens: bool = True
    prompt: str = ""
    """Put before every text, not before token ids."""


def tokenise_inputs(inputs: Sequence[TextOrIds], rules: TextRules, param: str) -> list[TokenizedInput]:
    """Return the tokenized inputs, in order. `param` is the name of their field in the request.

    Raises a 400 that names the position of an input without tokens, with invalid ids, or too long.
    """
    tokenizer = rules.model.tokenizer
    special = tokenizer.special_tokens if rules.add_special_tokens else SpecialTokens()
    prompt = tokenizer.encode_plain([rules.prompt])[0] if rules.prompt else []
    texts = [rules.prompt + given for given in inputs if isinstance(given, str)]
    if rules.truncation is None and rules.own is None:
        _refuse_too_long(inputs, rules, param)
    encoded = iter(encode_texts(tokenizer, texts))
    found = []
    for position, given in enumerate(inputs):
        name = _name(param, position, inputs)
        if isinstance(given, str):
            whole = _with_prompt(prompt, special, next(encoded))
        else:
            ids = check_ids(name, given, rules.vocabulary_size, tokenizer.without_token)
            whole = _of_ids(ids, tokenizer.special_tokens)
        short = _cut(whole, rules)
        _check(short, rules, name, param)
        found.append(short)
    return found


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of each text, without special ones. In a worker thread it stops when the request is cancelled."""
    found: list[list[int]] = []
    start = size = 0
    for position, text in enumerate(texts, 1):
        size += len(text)
        if size >= _CHARACTERS_AT_A_TIME or position == len(texts):
            stop_if_cancelled()
            found += tokenizer.encode_plain(texts[start:position], stop_if_cancelled)
            start, size = position, 0
    return found


def _with_prompt(prompt: Sequence[int], special: SpecialTokens, ids: list[int]) -> TokenizedInput:
    """Count the leading tokens of `ids` that are those of `prompt` as special: never truncated, part of every chunk.

    The last tokens of the prompt may have merged with the first of the text.
    """
    same = 0
    while same < min(len(prompt), len(ids)) and prompt[same] == ids[same]:
        same += 1
    return TokenizedInput(SpecialTokens((*special.before, *ids[:same]), special.after), ids[same:])


def _cut(whole: TokenizedInput, rules: TextRules) -> TokenizedInput:
    """Truncate an input. Raises a 400 when special tokens and prompt leave no room for it."""
    truncation = rules.truncation
    if rules.own is not None:
        most = rules.longest if truncation is None else truncation.limit
        truncation = Truncation(min(rules.own.limit + whole.special.size, most), rules.own.side, rules.own.field)
    if truncation is None or whole.size <= truncation.limit:
        return whole
    room = truncation.limit - whole.special.size
    if room < 1:
        message = (
            f"The limit of {truncation.limit} tokens leaves no room beside the {whole.special.size} tokens that stand "
            "around a text."
        )
        raise invalid_request(message, truncation.field)
    return TokenizedInput(whole.special, cut(whole.tokens, room, truncation.side))


def _refuse_too_long(inputs: Sequence[TextOrIds], rules: TextRules, param: str) -> None:
    """Raise a 400 for the first text whose beginning alone has too many tokens, before the rest is tokenized."""
    size = rules.longest * _SAMPLE_CHARACTERS
    for position, given in enumerate(inputs):
        if isinstance(given, str) and len(given) > size:
            (start,) = rules.model.tokenizer.encode_plain([given[:size]])
            least = len(start) - _SAMPLE_SLACK
            if least > rules.longest:
                raise _too_long(_name(param, position, inputs), f"at least {least}", rules.longest, param)


def _name(param: str, position: int, inputs: Sequence[TextOrIds]) -> str:
    return param if len(inputs) == 1 else f"{param}[{position}]"


def _too_long(name: str, tokens: str, longest: int, param: str) -> ApiError:
    message = f"`{name}` has {tokens} tokens, but at most {longest} are read of one input."
    return context_length_exceeded(f"{message} Please reduce the length of the input prompt.", param)


def _of_ids(ids: list[int], special: SpecialTokens) -> TokenizedInput:
    """Split token ids into special tokens and the rest, if they begin and end with the special tokens."""
    inside = special.inside(ids)
    return TokenizedInput(SpecialTokens(), ids) if inside is None else TokenizedInput(special, inside)


def _check(tokenized: TokenizedInput, rules: TextRules, name: str, param: str) -> None:
    if tokenized.size == 0:
        raise invalid_request(f"`{name}` has no tokens.", param)
    if tokenized.size > rules.longest:
        raise _too_long(name, str(tokenized.size), rules.longest, param)
