"""Hand-made byte streams."""

from collections.abc import Sequence

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream


class ScriptedStream(ByteStream):
    """Gives out `chunks`, one a read, and then says that the peer has left; keeps what is sent."""

    def __init__(self, chunks: Sequence[bytes] = ()) -> None:
        self.sent = bytearray()
        self.closed = False
        self._chunks = list(chunks)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        if not self._chunks:
            raise anyio.EndOfStream
        assert len(self._chunks[0]) <= max_bytes
        return self._chunks.pop(0)

    async def send(self, item: bytes) -> None:
        """One byte at a time, so that it would show if something overtook it."""
        for byte in item:
            await anyio.lowlevel.checkpoint()
            self.sent.append(byte)

    def send_now(self, item: bytes) -> int:
        """Takes half of what it is given, rounded up."""
        taken = (len(item) + 1) // 2
        self.sent += item[:taken]
        return taken

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        self.closed = True


class GatedStream(ScriptedStream):
    """Takes what is sent only while `open` is set: a peer that does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.open = anyio.Event()
        self.sends = 0

    async def send(self, item: bytes) -> None:
        self.sends += 1
        await self.open.wait()
        self.sent += item


class BrokenStream(ScriptedStream):
    """The peer is gone, which only sending shows."""

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        raise anyio.BrokenResourceError
