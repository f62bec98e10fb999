"""Lists of token ids, packed: to send, receive and check them takes no Python object for each token."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

_SIZE = array("i").itemsize


class TokenLists(msgspec.Struct, frozen=True, eq=False, array_like=True, gc=False):
    """A sequence of lists of ids. `ids` are those of all lists, one after the other, as the machine's 32-bit ints."""

    ends: list[int] = []
    """Of each list, how many ids there are up to its end."""
    ids: bytes = b""

    @classmethod
    def of(cls, lists: Iterable[Sequence[int]]) -> "TokenLists":
        """Pack lists of ids, each within 32 bits."""
        ends, ids = [], array("i")
        for one in lists:
            ids.extend(one)
            ends.append(len(ids))
        return cls(ends, ids.tobytes())

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> list[int]:
        end = self.ends[index]
        start = self.ends[index - 1] if index % len(self) else 0
        with memoryview(self.ids) as ids:
            return ids[start * _SIZE : end * _SIZE].cast("i").tolist()

    def __iter__(self) -> Iterator[list[int]]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence | TokenLists) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def total(self) -> int:
        """How many tokens there are, over all lists."""
        return len(self.ids) // _SIZE

    def lengths(self) -> list[int]:
        """Of each list; some are negative, or do not add up to the total, where the packing is wrong."""
        return [end - start for start, end in pairwise([0, *self.ends])]

    def all_below(self, limit: int) -> bool:
        """Whether all ids are from 0 to below `limit`."""
        import numpy as np  # noqa: PLC0415 -- takes time to import, and commands of the terminal do without

        ids = np.frombuffer(self.ids, np.int32)
        return not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) < limit)
