"""From the body of a request to a plan: what the engine is asked for, and how its answer is written.

Reading a body takes as long as the body is, and holds the interpreter's lock for long stretches. So a route's reader is
a function that needs nothing but a `Reading`, and a plan is a value that can be sent: a small body is read in the event
loop, a larger one in a thread, and a large one in a process that is forked for it. All three give the same plan, or
raise the same error.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from tenure.api.common.json_parts import Part
from tenure.client import GenerationFailed, ModelNotFound, ModelNotSupported
from tenure.client.served_models import find_model
from tenure.config import ApiSettings, HttpLimits
from tenure.errors import CallerError, Refusal
from tenure.http import errors
from tenure.http.decoding import decode_body
from tenure.http.errors import ApiError, engine_unavailable, internal_error, invalid_request
from tenure.http.intake import Body
from tenure.http.routes import RouteTable
from tenure.process.compute_threads import Workers
from tenure.process.fork_server import Buffer, ForkServer, Work, WorkFailed
from tenure.prompts.text_model import TextModel
from tenure.prompts.token_prompts import Window

T = TypeVar("T")
logger = logging.getLogger("tenure.api")

_TURNS_OF_LARGE = 2


@dataclass(frozen=True)
class SelectedModel:
    text: TextModel
    window: Window

    @property
    def text_window(self) -> int:
        """Most tokens, special ones included, of one text or pair that the model pools."""
        recommended = self.text.profile.max_length
        return self.window.capacity if recommended is None else min(self.window.capacity, recommended)


class Offer(msgspec.Struct, frozen=True):
    """A served model. `windows` are its engines', None for one that is not ready."""

    names: tuple[str, ...]
    tasks: tuple[str, ...]
    windows: tuple[Window | None, ...]

    @property
    def name(self) -> str:
        return self.names[0]


class Circumstances(msgspec.Struct, frozen=True):
    """What the plan depends on besides the body."""

    path: str
    """Of the route."""
    offers: tuple[Offer, ...]
    rank: int | None = None
    """Which engine of the model is demanded."""
    priority: str | None = None
    """The header `X-Vllm-Priority`, unchecked."""


class Reading:
    """One body that is read. `decoded` is called once the body itself is needed no longer."""

    def __init__(
        self,
        texts: Mapping[str, TextModel],
        settings: ApiSettings,
        limits: HttpLimits,
        circumstances: Circumstances,
        decoded: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.circumstances = circumstances
        self.model = ""
        """The name of the model that was selected, as soon as one was."""
        self.ignored: list[str] = []
        """Fields that are set, and constrain nothing here."""
        self.attached: list[Part] = []
        """Byte strings that belong to the plan, which has only their numbers."""
        self._texts = texts
        self._limits = limits
        self.decoded = decoded

    def decode(self, body: bytes | bytearray, decoder: "msgspec.json.Decoder[T]") -> T:
        """Raises a 400."""
        decoded = decode_body(body, decoder, self._limits)
        self.decoded()
        return decoded

    def choose(self, name: str | None, *tasks: str) -> SelectedModel:
        """The model called `name`, or the first, that can do one of `tasks` (any, if none are given).

        Raises ModelNotFound, ModelNotSupported, a 400 for an engine that is not there, and a 503 for one not ready.
        """
        offer = find_model(self.circumstances.offers, name or None, *tasks)
        self.model = offer.name
        windows, rank = offer.windows, self.circumstances.rank
        if rank is not None:
            if not 0 <= rank < len(windows):
                message = f"The header X-data-parallel-rank must be from 0 to {len(windows) - 1}."
                raise invalid_request(message, "X-data-parallel-rank")
            windows = windows[rank : rank + 1]
        for window in windows:
            if window is not None:
                return SelectedModel(self._texts[offer.name], window)
        raise engine_unavailable(f"The model {offer.name} is not ready; try again shortly.")


Reader = Callable[[bytes | bytearray, Reading], T]
"""Makes the plan. Raises what `api.translate` knows, too."""


class Readers:
    """Where bodies are read. Large ones have few turns, since each takes much memory, and delay none of the others."""

    def __init__(self, fork_server: ForkServer | None = None) -> None:
        """Without a fork server large bodies are read in threads, and hold up others now and then."""
        self.workers = Workers()
        self._fork_server = fork_server
        self._turns = anyio.CapacityLimiter(_TURNS_OF_LARGE)

    async def read(self, reader: Reader[T], body: Body, reading: Reading, kind: type[T]) -> tuple[T, Sequence[Part]]:
        """What `reader` makes of a body, and what is attached to that."""
        if body.size <= reading.settings.process_above:
            return await self._read_here(reader, body, reading)
        async with self._turns:
            if self._fork_server is None or not self._fork_server.alive:
                return await self._read_here(reader, body, reading)
            head = msgspec.msgpack.encode(reading.circumstances)
            plan = _take(*await self._fork_server.run(head, body.size, body.hand_out(), reading.decoded), reading, kind)
            await anyio.lowlevel.checkpoint()  # what is done with a large plan takes a while, too
            return plan

    async def _read_here(self, reader: Reader[T], body: Body, reading: Reading) -> tuple[T, Sequence[Part]]:
        threshold = reading.settings.thread_above
        plan = await self.workers.run_if_long(lambda: reader(body.data, reading), body.size, threshold)
        return plan, reading.attached


class _Answer(msgspec.Struct, frozen=True):
    """What a worker says of a reading."""

    model: str
    ignored: list[str]
    sizes: list[int]
    plan: msgspec.Raw = msgspec.Raw()
    error: dict[str, Any] | None = None


def worker(routes: RouteTable, texts: Mapping[str, TextModel], settings: ApiSettings, limits: HttpLimits) -> Work:
    """What a forked process does with a body: read it as its route does."""

    def work(head: bytearray, body: bytearray, taken: Callable[[], None]) -> tuple[bytes, Sequence[Part]]:
        circumstances = msgspec.msgpack.decode(head, type=Circumstances)
        reading = Reading(texts, settings, limits, circumstances, taken)
        plan, error = None, None
        try:
            match = routes.match("POST", circumstances.path)
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
        return msgspec.msgpack.encode(_Answer(reading.model, reading.ignored, sizes, raw, error)), reading.attached

    return work


def _take(data: Buffer, attached: Buffer, reading: Reading, kind: type[T]) -> tuple[T, Sequence[Part]]:
    """What a worker made of the body of `reading`, as if it had been read here."""
    answer = msgspec.msgpack.decode(data, type=_Answer)
    reading.model, reading.ignored = answer.model, answer.ignored
    if answer.error is not None:
        raise ApiError.of(answer.error)
    whole = memoryview(attached)
    bounds = pairwise(accumulate(answer.sizes, initial=0))
    return msgspec.msgpack.decode(answer.plan, type=kind), [whole[start:end] for start, end in bounds]


def translate(exc: Exception) -> ApiError | None:
    """Return the caller's view of `exc`; None for what is our bug."""
    match exc:
        case Refusal():
            return errors.from_outcome(exc.outcome, exc.message, code=exc.code, retry_after=exc.retry_after)
        case GenerationFailed():
            return errors.from_outcome(exc.outcome, exc.message)
        case ModelNotFound():
            return errors.model_not_found(exc.name, exc.names)
        case ModelNotSupported():
            return errors.model_not_supported(exc.name, exc.tasks)
        case WorkFailed():
            return errors.engine_unavailable("A process that read the request has ended; try again.")
        case CallerError():
            return errors.invalid_request(str(exc))
        case _:
            return None
