"""The special tokens that a tokenizer puts around a text, such as [CLS] and [SEP].

They are found once by a probe of the tokenizer, so that the tokens of a text can be truncated or chunked without them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

_SAMPLES = ("a", "0", ".")
_PIECES_TRIED = 100


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The ids before and after the tokens of one text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, own: Sequence[int]) -> list[int]:
        """`own` with the special tokens before and after it."""
        return [*self.before, *own, *self.after]

    def inside(self, ids: Sequence[int]) -> list[int] | None:
        """`ids` without the special tokens around them; None when they do not begin and end with these."""
        begin, end = len(self.before), len(ids) - len(self.after)
        if begin > end or tuple(ids[:begin]) != self.before or tuple(ids[end:]) != self.after:
            return None
        return list(ids[begin:end])


def read_special_tokens(backend: Backend) -> SpecialTokens:
    """The special tokens around a text; all in `before` for a tokenizer that makes no tokens of any sample."""
    sample = _sample(backend)
    processed = backend.post_process(sample, None, True)
    begin = 0
    while begin < len(processed.ids) and processed.special_tokens_mask[begin]:
        begin += 1
    return SpecialTokens(tuple(processed.ids[:begin]), tuple(processed.ids[begin + len(sample.ids) :]))


def set_special_tokens(backend: Backend, tokens: SpecialTokens) -> None:
    """Make `encode` put these tokens around each text, and around each of a pair."""
    pieces = [*map(str, tokens.before), "$A", *map(str, tokens.after)]
    second = [f"{'$B' if piece == '$A' else piece}:1" for piece in pieces]
    special = {(str(token), token) for token in (*tokens.before, *tokens.after)}
    backend.post_processor = TemplateProcessing(single=pieces, pair=[*pieces, *second], special_tokens=sorted(special))


def _sample(backend: Backend) -> Encoding:
    """The encoding, without special tokens, of the first sample that has tokens; else that of an empty text."""
    encodings = (backend.encode(text, add_special_tokens=False) for text in _samples(backend))
    return next((encoding for encoding in encodings if encoding.ids), backend.encode("", add_special_tokens=False))


def _samples(backend: Backend) -> Iterator[str]:
    yield from _SAMPLES
    yield from islice(backend.get_vocab(), _PIECES_TRIED)  # copied only where it is needed: that takes long
