"""Split a long text into pieces whose token ids, concatenated, are those of the whole text.

Tokenising takes many times a text's size in memory and cannot be interrupted, so a long text is not given to the
tokenizer at once. It is cut at white space between words, where no token of the vocabulary reaches across it, and only
where the tokenizer itself shows that the cut changes nothing: the surroundings have the same tokens in one piece as in
two. Some tokenizers want a space to stay in front of the second piece, others put one there themselves.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from tenure.errors import CallerError

PIECE_CHARACTERS = 32768
LONGEST_PIECE = 1 << 20
"""Characters that are tokenised at once where there is no place to cut."""
_AROUND = 128
_TRIES = 8
_PLACE = re.compile(r"(?<=\S)\s{1,16}(?=\S)")
_SPACES = r"\s▁ĠĊĉč"
"""As they are, and as vocabularies write them."""
_ACROSS = re.compile(f"[^{_SPACES}][{_SPACES}]+[^{_SPACES}]")

Encode = Callable[[str], list[int]]


def has_tokens_across_spaces(vocabulary: Iterable[str]) -> bool:
    """Whether a token has white space in its middle, so that a text cannot be cut there."""
    return any(map(_ACROSS.search, vocabulary))


def split_text(text: str, encode: Encode, *, may_cut: bool = True) -> Iterator[str]:
    """Yield pieces of about `PIECE_CHARACTERS`. Raises CallerError where one would exceed `LONGEST_PIECE`.

    `encode` returns the token ids of a text, without special ones.
    """
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        end, following = _next_cut(text, start, encode, may_cut)
        yield text[start:end]
        start = following
    yield text[start:]


def _next_cut(text: str, start: int, encode: Encode, may_cut: bool) -> tuple[int, int]:
    """The end of the piece that begins at `start`, and the begin of the next one."""
    end = start + PIECE_CHARACTERS
    while end - start <= LONGEST_PIECE:
        places = list(_PLACE.finditer(text, end - PIECE_CHARACTERS // 2, end)) if may_cut else []
        for place in reversed(places[-_TRIES:]):
            first, last = place.span()
            for cut in ((first, first), (last - 1, last - 1), (last, last), (last - 1, last)):
                if _same(text, *cut, encode):
                    return cut
        if end >= len(text):
            return len(text), len(text)
        end += PIECE_CHARACTERS // 2
    raise CallerError(f"a text of more than {LONGEST_PIECE} characters without a space between words cannot be read")


def _same(text: str, end: int, following: int, encode: Encode) -> bool:
    before, after = text[max(0, end - _AROUND) : end], text[following : following + _AROUND]
    return encode(before) + encode(after) == encode(before + text[end:following] + after)
