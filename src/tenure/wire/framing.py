"""Messages over a byte stream: a four-byte big-endian length, then msgpack.

A stream socket reports its peer's death at once, so a channel ends by `PeerGone` or by `aclose` alone.
"""

import struct
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import msgspec
from anyio.abc import ByteStream

from tenure.errors import ResourceError
from tenure.wire.sockets import READ_BYTES

Received = TypeVar("Received")

MAX_FRAME_BYTES = 256 * 1024 * 1024
_HEADER = struct.Struct(">I")


class PeerGone(ResourceError):
    """The peer closed the connection, died, or sent an invalid message."""


class FrameTooLarge(ResourceError):
    """A message is larger than `MAX_FRAME_BYTES`, which the peer would reject."""


class Channel(Generic[Received]):
    """One side of a connection. `kind` is the union of what may be received.

    One task may send, as a rule an `Outbox`'s, and one receive. `wrap` is done to each payload in the order in which
    they are encoded, `unwrap` to each that arrives; the latter may raise PeerGone.
    """

    def __init__(
        self,
        stream: ByteStream,
        kind: object,
        wrap: Callable[[bytes], bytes] = bytes,
        unwrap: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._stream = stream
        self._wrap, self._unwrap = wrap, unwrap
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(kind)
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()

    def encode(self, message: msgspec.Struct) -> bytes:
        """The frame of a message; raises FrameTooLarge."""
        payload = self._wrap(self._encoder.encode(message))
        if len(payload) > MAX_FRAME_BYTES:
            raise FrameTooLarge(f"a message of {len(payload)} bytes is larger than a frame may be")
        return _HEADER.pack(len(payload)) + payload

    async def send_frames(self, frames: bytes) -> None:
        """Send frames that `encode` made; raises PeerGone."""
        try:
            await self._stream.send(frames)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise PeerGone("the other side is gone") from error

    async def receive(self) -> list[Received]:
        """Wait for one message or more, and return all that have arrived; raises PeerGone."""
        while True:
            messages = self._take()
            if messages:
                return messages
            try:
                self._buffer += await self._stream.receive(READ_BYTES)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise PeerGone("the other side is gone") from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _take(self) -> list[Received]:
        """Decode the complete frames in the buffer."""
        messages: list[Received] = []
        begin = 0
        while len(self._buffer) - begin >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer, begin)
            if length > MAX_FRAME_BYTES:
                raise PeerGone(f"a frame of {length} bytes was announced")
            end = begin + _HEADER.size + length
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                messages.append(self._decode(bytes(view[begin + _HEADER.size : end])))
            begin = end
        del self._buffer[:begin]
        return messages

    def _decode(self, payload: bytes) -> Received:
        try:
            return self._decoder.decode(self._unwrap(payload))
        except (msgspec.MsgspecError, RecursionError) as error:  # the latter: nested too deeply
            raise PeerGone(f"something arrived that is no message: {error}") from error
