"""The blocks of an engine that tickets hold or may come to hold: how many there are, and who may read which.

A request that hands over is promised room before it is admitted; what it hands over counts for its tickets from then
on, until the loop has freed them. Owned by the I/O thread; threads that send blocks look up which, and no more.
"""

from collections.abc import Sequence


class BlockOffers:
    """See the module's docstring. Tickets hold `most` blocks together at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._promised: dict[int, int] = {}  # by the number of the request
        self._blocks: dict[int, list[int]] = {}  # by ticket
        self._readers: dict[tuple[str, int], int] = {}  # tickets, by the engine that has claimed them and its claim

    def promise(self, request: int, blocks: int) -> bool:
        """Whether so many blocks of a request may pass to tickets; they count until it, or its tickets, are over."""
        held = sum(self._promised.values()) + sum(map(len, self._blocks.values()))
        if held + blocks > self._most:
            return False
        self._promised[request] = blocks
        return True

    def forget(self, request: int) -> None:
        """A request is over: no more of its blocks will pass to tickets."""
        self._promised.pop(request, None)

    def add(self, request: int, ticket: int, blocks: list[int]) -> None:
        """Blocks of a request have passed to a ticket."""
        self._promised[request] = max(0, self._promised.get(request, 0) - len(blocks))
        self._blocks[ticket] = blocks

    def let_read(self, engine: str, claim: int, ticket: int) -> None:
        """An engine has claimed a ticket."""
        self._readers[engine, claim] = ticket

    def end(self, ticket: int) -> None:
        """A ticket has ended: nobody reads its blocks with any use."""
        self._readers = {reader: read for reader, read in self._readers.items() if read != ticket}

    def free(self, ticket: int) -> None:
        """The loop has let go of a ticket's blocks."""
        del self._blocks[ticket]

    def readable(self, engine: str, claim: int) -> Sequence[int]:
        """The blocks that an engine may read under a claim; none for one that is not known."""
        ticket = self._readers.get((engine, claim))
        return () if ticket is None else self._blocks.get(ticket, ())
