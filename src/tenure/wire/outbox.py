"""Frames on their way to a peer: handed over without waiting, sent in order, bounded in bytes."""

from collections.abc import Callable
from typing import Any

import anyio
import msgspec

from tenure.errors import ResourceError
from tenure.wire.framing import Channel, PeerGone


class OutboxFull(ResourceError):
    """More bytes wait than the limit: the peer does not read and is taken for dead."""


class Outbox:
    """`put` never waits; `run` sends what is queued. After the peer is gone, or taken for dead, `put` drops messages.

    `send_now` sends what it can without waiting and returns the number of bytes sent. With it, `put` sends a message
    itself when nothing is queued, instead of waiting until the event loop runs `run`.
    """

    def __init__(
        self, channel: Channel[Any], limit: int = 256 * 1024 * 1024, send_now: Callable[[bytes], int] = lambda _frame: 0
    ) -> None:
        self._channel = channel
        self._limit = limit
        self._send_now = send_now
        self._frames: list[bytes] = []
        self._bytes = 0
        self._filled = anyio.Event()
        self._sending = anyio.CancelScope()
        self._closed = False

    def put(self, message: msgspec.Struct) -> None:
        """Send or queue a message; raises OutboxFull beyond the limit."""
        if self._closed:
            return
        frame = self._channel.encode(message)
        if not self._bytes:
            frame = frame[self._send_now(frame) :]
        if not frame:
            return
        if self._bytes + len(frame) > self._limit:
            self.give_up()
            raise OutboxFull(f"{self._bytes} bytes wait for a peer that does not read")
        self._frames.append(frame)
        self._bytes += len(frame)
        self._filled.set()

    def give_up(self) -> None:
        """Take the peer for dead: `run` raises PeerGone."""
        self._closed = True
        self._sending.cancel()  # it most likely waits for the very peer that does not read

    async def run(self) -> None:
        """Send until the peer is gone or the outbox ran full; raises PeerGone."""
        try:
            with self._sending:
                while True:
                    await self._filled.wait()
                    self._filled = anyio.Event()
                    frames, self._frames = self._frames, []
                    await self._channel.send_frames(b"".join(frames))
                    self._bytes -= sum(map(len, frames))
            raise PeerGone("the other side does not read")
        finally:
            self._closed = True
