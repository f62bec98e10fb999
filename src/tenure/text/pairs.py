"""Pairs of texts as one sequence: the tokenizer's pair template, and the truncation of pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The special tokens around a first and a second text, such as [CLS] first [SEP] second [SEP]."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    typed_between: int
    """How many of `between` have the token type of the first text."""
    typed: bool
    """The second text has a token type of its own; else all tokens have the first one's."""

    @property
    def special_tokens(self) -> int:
        """The number of special tokens in a pair."""
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], int]:
        """The ids of a pair, and how many of its first tokens have token type 0; 0 when all have."""
        ids = [*self.before, *first, *self.between, *second, *self.after]
        return ids, len(self.before) + len(first) + self.typed_between if self.typed else 0


def read_pair_template(backend: Backend) -> PairTemplate:
    """The pair template of a tokenizer; without special tokens for one that has no rule for pairs."""
    probe = backend.encode("a", "a", add_special_tokens=True)
    sequences = probe.sequence_ids
    first = [place for place, sequence in enumerate(sequences) if sequence == 0]
    second = [place for place, sequence in enumerate(sequences) if sequence == 1]
    if not first or not second:  # it makes no token of the letter
        return PairTemplate((), (), (), 0, typed=False)
    start, end = first[-1] + 1, second[0]
    return PairTemplate(
        before=tuple(probe.ids[: first[0]]),
        between=tuple(probe.ids[start:end]),
        after=tuple(probe.ids[second[-1] + 1 :]),
        typed_between=sum(kind == 0 for kind in probe.type_ids[start:end]),
        typed=probe.type_ids[end] != 0,
    )


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """The lengths to which two texts of `first` and `second` tokens are truncated so that both fit `room`.

    The strategy `longest_first`: the longer text down to the length of the other, then both alike.
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)


def cut(ids: list[int], limit: int, side: str) -> list[int]:
    """At most `limit` of the ids: `left` cuts at the start and keeps the end, `right` the reverse."""
    if len(ids) <= limit:
        return ids
    return ids[len(ids) - limit :] if side == "left" else ids[:limit]
