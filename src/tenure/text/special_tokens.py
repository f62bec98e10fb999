"""The special tokens that a tokenizer puts around a text, such as [CLS] and [SEP].

They are learned once from the tokenizer itself, so that a text can be cut or chunked by its own tokens and still stand
as the model expects it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

_SAMPLES = ("a", "0", ".")
_PIECES_TRIED = 100


@dataclass(frozen=True, slots=True)
class Frame:
    """What goes before and after the tokens of one text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, own: Sequence[int]) -> list[int]:
        """The tokens of a text with the special ones."""
        return [*self.before, *own, *self.after]

    def inside(self, ids: Sequence[int]) -> list[int] | None:
        """The tokens of a text without the special ones around them; None when those are not there."""
        begin, end = len(self.before), len(ids) - len(self.after)
        if begin > end or tuple(ids[:begin]) != self.before or tuple(ids[end:]) != self.after:
            return None
        return list(ids[begin:end])


def read_frame(backend: Backend) -> Frame:
    """The frame of a text. A tokenizer that makes no tokens of anything has all its special tokens before."""
    sample = _sample(backend)
    framed = backend.post_process(sample, None, True)
    begin = 0
    while begin < len(framed.ids) and framed.special_tokens_mask[begin]:
        begin += 1
    return Frame(tuple(framed.ids[:begin]), tuple(framed.ids[begin + len(sample.ids) :]))


def set_frame(backend: Backend, frame: Frame) -> None:
    """Have `encode` put these tokens around each text, and around each of a pair."""
    pieces = [*map(str, frame.before), "$A", *map(str, frame.after)]
    second = [f"{'$B' if piece == '$A' else piece}:1" for piece in pieces]
    special = {(str(token), token) for token in (*frame.before, *frame.after)}
    backend.post_processor = TemplateProcessing(single=pieces, pair=[*pieces, *second], special_tokens=sorted(special))


def _sample(backend: Backend) -> Encoding:
    """The encoding of some text that has tokens, without special ones."""
    texts: Iterable[str] = chain(_SAMPLES, islice(backend.get_vocab(), _PIECES_TRIED))
    encodings = (backend.encode(text, add_special_tokens=False) for text in texts)
    return next((encoding for encoding in encodings if encoding.ids), backend.encode("", add_special_tokens=False))
