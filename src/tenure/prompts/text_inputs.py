"""From the texts or token ids of a body to what a model reads: cut, framed by special tokens, short enough; or a 400.

A text is cut by its own tokens, as Hugging Face's tokenizers do, so that the special tokens around it are always whole.
Pure, and as slow as the texts are long: call `Workers.run_if_long` where they may be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tenure.http.errors import ApiError, context_length_exceeded, invalid_request
from tenure.process.compute_threads import stop_if_cancelled
from tenure.prompts.ranges import check_ids
from tenure.prompts.text_model import TextModel
from tenure.prompts.token_prompts import TextOrIds, Truncation
from tenure.text.pairs import cut
from tenure.text.special_tokens import Frame
from tenure.text.tokenizer import Tokenizer

_CHARACTERS_AT_A_TIME = 32768
"""Of the texts that are tokenised between two looks at whether somebody still waits for them."""
_SAMPLE_CHARACTERS = 16
"""Of a text, for each token that it may have: more than most texts need, so that most of the overlong are found."""
_SAMPLE_SLACK = 16
"""How many tokens a sample may have at its end that the whole text has not."""


@dataclass(frozen=True)
class Framed:
    """A text by its own tokens, and what belongs around it: special tokens, and the model's prompt."""

    frame: Frame
    own: list[int]

    @property
    def size(self) -> int:
        return self.frame.size + len(self.own)

    @property
    def ids(self) -> list[int]:
        return self.frame.around(self.own)


@dataclass(frozen=True)
class TextRules:
    """How the inputs of one request become what the model reads."""

    model: TextModel
    vocabulary_size: int
    longest: int
    """Most tokens of an input, with all that is around it, after it was cut."""
    truncation: Truncation | None = None
    own: Truncation | None = None
    """How much is kept of what is an input's own; it is cut to `longest`, too, then."""
    add_special_tokens: bool = True
    prompt: str = ""
    """Goes in front of every text, and not of token ids."""


def tokenise_inputs(inputs: Sequence[TextOrIds], rules: TextRules, param: str) -> list[Framed]:
    """Return the inputs as the model reads them, in order. `param` is the field that they stand in.

    Raises a 400 that names the position of an input without tokens, with ids that are none, or too long.
    """
    tokenizer = rules.model.tokenizer
    frame = tokenizer.frame if rules.add_special_tokens else Frame()
    prompt = tokenizer.encode_plain([rules.prompt])[0] if rules.prompt else []
    texts = [rules.prompt + given for given in inputs if isinstance(given, str)]
    if rules.truncation is None and rules.own is None:
        _refuse_hopeless(inputs, rules, param)
    encoded = iter(encode_texts(tokenizer, texts))
    framed = []
    for position, given in enumerate(inputs):
        name = _name(param, position, inputs)
        if isinstance(given, str):
            whole = _behind(prompt, frame, next(encoded))
        else:
            whole = _of_ids(check_ids(name, given, rules.vocabulary_size, tokenizer.without_token), tokenizer.frame)
        short = _cut(whole, rules)
        _check(short, rules, name, param)
        framed.append(short)
    return framed


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of each text without special ones. In a worker thread it ends early when the request is cancelled."""
    found: list[list[int]] = []
    start = size = 0
    for position, text in enumerate(texts, 1):
        size += len(text)
        if size >= _CHARACTERS_AT_A_TIME or position == len(texts):
            stop_if_cancelled()
            found += tokenizer.encode_plain(texts[start:position], stop_if_cancelled)
            start, size = position, 0
    return found


def _behind(prompt: Sequence[int], frame: Frame, ids: list[int]) -> Framed:
    """A text with the prompt before it, whose tokens are the frame's: neither cut nor left out of a chunk.

    The last ones may have become one with the text's first.
    """
    same = 0
    while same < min(len(prompt), len(ids)) and prompt[same] == ids[same]:
        same += 1
    return Framed(Frame((*frame.before, *ids[:same]), frame.after), ids[same:])


def _cut(whole: Framed, rules: TextRules) -> Framed:
    """Cut a text to its limits. Raises a 400 when what is around it leaves no room for the text."""
    truncation = rules.truncation
    if rules.own is not None:
        most = rules.longest if truncation is None else truncation.limit
        truncation = Truncation(min(rules.own.limit + whole.frame.size, most), rules.own.side, rules.own.field)
    if truncation is None or whole.size <= truncation.limit:
        return whole
    room = truncation.limit - whole.frame.size
    if room < 1:
        message = (
            f"The limit of {truncation.limit} tokens leaves no room beside the {whole.frame.size} tokens that stand "
            "around a text."
        )
        raise invalid_request(message, truncation.field)
    return Framed(whole.frame, cut(whole.own, room, truncation.side))


def _refuse_hopeless(inputs: Sequence[TextOrIds], rules: TextRules, param: str) -> None:
    """Refuse the first text whose start alone is too long, before time is spent on the rest of it."""
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


def _of_ids(ids: list[int], frame: Frame) -> Framed:
    """Token ids as they are; special tokens at their ends are known for such."""
    inside = frame.inside(ids)
    return Framed(Frame(), ids) if inside is None else Framed(frame, inside)


def _check(framed: Framed, rules: TextRules, name: str, param: str) -> None:
    if framed.size == 0:
        raise invalid_request(f"`{name}` has no tokens.", param)
    if framed.size > rules.longest:
        raise _too_long(name, str(framed.size), rules.longest, param)
