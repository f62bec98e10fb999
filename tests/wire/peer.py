"""One end of a connection, which says what a test has it say."""

from typing import Any, TypeVar

import msgspec
from anyio.abc import ByteStream

from tenure.wire import messages as wire
from tenure.wire.framing import Channel, PeerGone

Said = TypeVar("Said", bound=wire.Message)


class Peer:
    """`kinds` is the union of the messages that it may hear."""

    def __init__(self, stream: ByteStream, kinds: object) -> None:
        self._channel: Channel[Any] = Channel(stream, kinds)
        self._heard: list[Any] = []

    async def hear(self, kind: type[Said]) -> Said:
        """The next message, which must be one of `kind`."""
        message = await self.hear_any()
        assert isinstance(message, kind), message
        return message

    async def hear_any(self) -> Any:
        if not self._heard:
            self._heard += await self._channel.receive()
        return self._heard.pop(0)

    async def say(self, *messages: msgspec.Struct) -> None:
        await self._channel.send_frames(b"".join(map(self._channel.encode, messages)))

    async def say_raw(self, data: bytes) -> None:
        await self._channel.send_frames(data)

    async def hang_up(self) -> None:
        await self._channel.aclose()

    async def wait_gone(self) -> None:
        """Wait until the other side has closed the connection."""
        try:
            while True:
                self._heard += await self._channel.receive()
        except PeerGone:
            return
