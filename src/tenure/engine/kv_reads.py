"""The reads of an engine from others' caches into its own: one thread for each, of which only so many run at a time.

    (none) --begin--> reading --the bytes are there, or the socket has ended--> over

A read that nobody waits for any more is ended by its socket. It is over once its thread has returned: then nothing
writes to its blocks any more. Owned by the I/O thread.
"""

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread

from tenure.core.fetches import Fetch
from tenure.kv.cache import KVCache
from tenure.peers.block_stream import ReadBlocks, read_blocks
from tenure.peers.handshake import Greeting
from tenure.peers.secret import Secret
from tenure.wire.framing import PeerGone

logger = logging.getLogger("tenure.engine")

_AT_ONCE = 4


@dataclass(slots=True)
class _Read:
    transfer: int
    connection: socket.socket | None = None
    is_unwanted: bool = False
    is_over: bool = False

    def opened(self, connection: socket.socket) -> None:
        """Called in the thread."""
        self.connection = connection
        if self.is_unwanted:
            self.end()

    def end(self) -> None:
        self.is_unwanted = True
        if self.connection is not None:
            with suppress(OSError):  # it has ended
                self.connection.shutdown(socket.SHUT_RDWR)


class BlockReads:
    """See the module's docstring."""

    def __init__(self, cache: KVCache, greeting: Greeting, secret: Secret) -> None:
        self._cache = cache
        self._greeting = greeting
        self._secret = secret
        self._reads: dict[int, _Read] = {}  # by claim
        self._slots = anyio.CapacityLimiter(_AT_ONCE)

    def note(self, fetch: Fetch) -> None:
        """A fetch is about to be read."""
        self._reads[fetch.claim] = _Read(fetch.transfer)

    def transfer_of(self, claim: int) -> int:
        return self._reads[claim].transfer

    def end(self, claim: int) -> None:
        """Nobody waits for what a claim reads any more."""
        if (read := self._reads.get(claim)) is not None:
            read.end()
            if read.is_over:
                del self._reads[claim]

    async def run(self, fetch: Fetch, address: str, over: Callable[[Fetch, bool], None]) -> None:
        """Read a fetch that was noted, and call `over` with whether all was read."""
        read = self._reads[fetch.claim]
        question = ReadBlocks(fetch.claim, fetch.first, len(fetch.blocks))
        targets = map(self._cache.block, fetch.blocks)
        work = partial(read_blocks, address, self._greeting, self._secret, question, targets, read.opened)
        complete = False
        try:
            if not read.is_unwanted:
                await anyio.to_thread.run_sync(work, limiter=self._slots)
                complete = True
        except (OSError, PeerGone, ValueError) as error:
            logger.info("the prompt of claim %d was not read to the end: %s", fetch.claim, error)
        read.is_over = True
        over(fetch, complete)
        if read.is_unwanted:
            self._reads.pop(fetch.claim, None)
