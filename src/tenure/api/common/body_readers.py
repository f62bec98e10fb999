"""Where bodies are read: a small one in the event loop, a larger one in a thread, a large one in a forked process.

Reading a body takes as long as the body is, and holds the interpreter's lock for long stretches. So a route's reader is
a function that needs nothing but a `BodyReading`, and the plan that it makes, of what the engine is asked for and how
its answer is written, is a value that can be sent. All three places give the same plan, or raise the same error.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from tenure.api.common.body_reading import BodyReading, RoutedRequest
from tenure.api.common.error_translation import translate
from tenure.api.common.json_parts import Part
from tenure.config import ApiSettings, HttpLimits
from tenure.http.errors import ApiError, internal_error
from tenure.http.intake import Body
from tenure.http.routes import RouteTable
from tenure.process.compute_threads import Workers
from tenure.process.fork_server import Buffer, ForkServer, Work
from tenure.prompts.text_model import TextModel

T = TypeVar("T")
logger = logging.getLogger("tenure.api")

_LARGE_AT_ONCE = 2
"""Large bodies: each takes much memory."""

Reader = Callable[[bytes | bytearray, BodyReading], T]
"""Makes the plan. Raises what `translate` knows, too."""


class BodyReaders:
    """Where bodies are read. Large ones have few turns, since each takes much memory, and delay none of the others."""

    def __init__(self, fork_server: ForkServer | None = None) -> None:
        """Without a fork server large bodies are read in threads, and hold up others now and then."""
        self.workers = Workers()
        self._fork_server = fork_server
        self._turns = anyio.CapacityLimiter(_LARGE_AT_ONCE)

    async def read(
        self, reader: Reader[T], body: Body, reading: BodyReading, kind: type[T]
    ) -> tuple[T, Sequence[Part]]:
        """What `reader` makes of a body, and what is attached to that."""
        if body.size <= reading.settings.process_above:
            return await self._read_here(reader, body, reading)
        async with self._turns:
            if self._fork_server is None or not self._fork_server.alive:
                return await self._read_here(reader, body, reading)
            head = msgspec.msgpack.encode(reading.routed)
            plan = _take(*await self._fork_server.run(head, body.size, body.hand_out(), reading.decoded), reading, kind)
            await anyio.lowlevel.checkpoint()  # what is done with a large plan takes a while, too
            return plan

    async def _read_here(self, reader: Reader[T], body: Body, reading: BodyReading) -> tuple[T, Sequence[Part]]:
        threshold = reading.settings.thread_above
        plan = await self.workers.run_if_long(lambda: reader(body.data, reading), body.size, threshold)
        return plan, reading.attached


class _Answer(msgspec.Struct, frozen=True):
    """What a worker says of a reading."""

    model: str
    ignored: list[str]
    tickets: list[str]
    sizes: list[int]
    plan: msgspec.Raw = msgspec.Raw()
    error: dict[str, Any] | None = None


def worker(routes: RouteTable, texts: Mapping[str, TextModel], settings: ApiSettings, limits: HttpLimits) -> Work:
    """What a forked process does with a body: read it as its route does."""

    def work(head: bytearray, body: bytearray, taken: Callable[[], None]) -> tuple[bytes, Sequence[Part]]:
        routed = msgspec.msgpack.decode(head, type=RoutedRequest)
        reading = BodyReading(texts, settings, limits, routed, taken)
        plan, error = None, None
        try:
            match = routes.match("POST", routed.path)
            assert match is not None
            assert match.route.reader is not None
            plan = match.route.reader(body, reading)
        except Exception as exc:
            known = exc if isinstance(exc, ApiError) else translate(exc)
            if known is None:
                logger.exception("a body could not be read")
            error = (known or internal_error()).fields()
        sizes = list(map(len, reading.attached))
        raw = msgspec.Raw(msgspec.msgpack.encode(plan))
        return msgspec.msgpack.encode(
            _Answer(reading.model, reading.ignored, reading.tickets, sizes, raw, error)
        ), reading.attached

    return work


def _take(data: Buffer, attached: Buffer, reading: BodyReading, kind: type[T]) -> tuple[T, Sequence[Part]]:
    """What a worker made of the body of `reading`, as if it had been read here."""
    answer = msgspec.msgpack.decode(data, type=_Answer)
    reading.model, reading.ignored, reading.tickets = answer.model, answer.ignored, answer.tickets
    if answer.error is not None:
        raise ApiError.of(answer.error)
    whole = memoryview(attached)
    bounds = pairwise(accumulate(answer.sizes, initial=0))
    return msgspec.msgpack.decode(answer.plan, type=kind), [whole[start:end] for start, end in bounds]
