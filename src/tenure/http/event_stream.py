"""The writer of server-sent events. One per response; nothing else may send body bytes of that response."""

from collections.abc import Callable

import anyio
from starlette.types import Send

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """Writes events in order; status 200 and the headers are sent with the first bytes.

    `check` raises the ApiError with which the request has failed meanwhile, if it has.
    """

    def __init__(self, send: Send, check: Callable[[], None]) -> None:
        self.started = False
        self.ended = False
        self._send = send
        self._check = check
        self.writing = anyio.Lock(fast_acquire=True)
        """Held while bytes are handed over."""
        self._last_sent = anyio.current_time()

    async def send(self, data: bytes) -> None:
        """Send one event; `data` is a single line."""
        await self._write(b"data: " + data + b"\n\n")

    async def done(self) -> None:
        """End the stream as a success, with `data: [DONE]`; raises what `check` does."""
        self._check()
        await self._write(b"data: [DONE]\n\n", last=True)

    async def end_with(self, block: bytes) -> None:
        """End the stream with `block`: a complete event, blank line included."""
        await self._write(block, last=True)

    async def keep_alive(self, interval: float) -> None:
        """Send a comment after every `interval` seconds of silence, until cancelled or the stream ends."""
        while not self.ended:
            due = self._last_sent + interval
            if anyio.current_time() < due:
                await anyio.sleep_until(due)
            else:
                await self._write(b": keep-alive\n\n", optional=True)

    async def _write(self, block: bytes, *, last: bool = False, optional: bool = False) -> None:
        async with self.writing:
            if self.ended:
                if optional:
                    return
                raise RuntimeError("the event stream has ended")
            if not self.started:
                self.started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            self.ended = last
            self._last_sent = anyio.current_time()
            await self._send({"type": "http.response.body", "body": block, "more_body": not last})
