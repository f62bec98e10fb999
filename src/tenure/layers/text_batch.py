"""The input of one forward pass of an encoder: whole texts, packed into rows without padding.

Legend: T rows (tokens of all texts), S texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AlikeTexts:
    """Texts of one length whose rows lie side by side, beginning at `first_row`."""

    first_row: int
    num_texts: int
    length: int
    unattended: int = 0
    """The number of last rows of each text to which no row attends; fewer than `length`."""

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.num_texts * self.length)


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Text s has rows starts_S[s] .. starts_S[s] + lengths_S[s]; the shortest texts come first.

    Device tensors are int64. `starts_S` and `lengths_S` are on the host, in the order in which texts were given.
    """

    token_ids_T: torch.Tensor
    positions_T: torch.Tensor
    """From 0 in each text."""
    token_types_T: torch.Tensor
    """1 for the second text of a pair, else 0."""
    starts_S: IntArray
    lengths_S: IntArray
    alike: tuple[AlikeTexts, ...]
    """All rows, in order."""


def pack_texts(
    texts: Sequence[Sequence[int] | IntArray],
    segments: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    unattended: Sequence[int] | None = None,
) -> TextBatch:
    """Pack texts, none of them empty. The first `segments[s]` tokens of text s are the first of a pair; 0: no pair.

    No token attends to the last `unattended[s]` of text s, which attend to the others.
    """
    arrays = [np.asarray(text, dtype=np.int64) for text in texts]
    lengths_S = np.array([len(array) for array in arrays], dtype=np.int64)
    kinds_S = lengths_S << _UNSEEN_BITS
    if unattended is not None:
        kinds_S |= np.asarray(unattended, dtype=np.int64)
    order_S = np.argsort(kinds_S, kind="stable")
    starts_S = np.empty_like(lengths_S)
    starts_S[order_S] = np.cumsum(lengths_S[order_S]) - lengths_S[order_S]
    packed_S = np.repeat(order_S, lengths_S[order_S])
    positions_T = np.arange(len(packed_S)) - starts_S[packed_S]
    types_T = np.zeros_like(positions_T)
    if segments is not None:
        segments_T = np.asarray(segments, dtype=np.int64)[packed_S]
        types_T[(segments_T > 0) & (positions_T >= segments_T)] = 1
    return TextBatch(
        token_ids_T=torch.from_numpy(np.concatenate([arrays[s] for s in order_S])).to(device),
        positions_T=torch.from_numpy(positions_T).to(device),
        token_types_T=torch.from_numpy(types_T).to(device),
        starts_S=starts_S,
        lengths_S=lengths_S,
        alike=_alike(kinds_S),
    )


def split_alike(alike: Sequence[AlikeTexts], most_rows: int) -> list[list[AlikeTexts]]:
    """Split the texts into groups of at most `most_rows` rows, or of one longer text; `first_row` counts from the
    group's first row."""
    pieces: list[list[AlikeTexts]] = []
    rows_left = 0
    for group in alike:
        texts_left = group.num_texts
        while texts_left:
            if rows_left < group.length:
                pieces.append([])
                rows_left = max(most_rows, group.length)
            count = min(texts_left, rows_left // group.length)
            first = pieces[-1][-1].rows.stop if pieces[-1] else 0
            pieces[-1].append(replace(group, first_row=first, num_texts=count))
            texts_left -= count
            rows_left -= count * group.length
    return pieces


_UNSEEN_BITS = 32
"""Of a kind of text: its length stands above them."""


def _alike(kinds_S: IntArray) -> tuple[AlikeTexts, ...]:
    kinds, counts = np.unique(kinds_S, return_counts=True)
    lengths, unattended = kinds >> _UNSEEN_BITS, kinds & ((1 << _UNSEEN_BITS) - 1)
    firsts = np.cumsum(lengths * counts) - lengths * counts
    return tuple(AlikeTexts(*row) for row in np.stack((firsts, counts, lengths, unattended), axis=1).tolist())
