"""The argument of every handler: one HTTP request, complete and checked, and the methods that answer it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import msgspec
from starlette.datastructures import Headers
from starlette.types import Send

from tenure.api.common.body_reading import BodyReading, ModelWindows, RoutedRequest
from tenure.api.common.context import AppContext
from tenure.api.common.error_translation import translate
from tenure.api.common.json_parts import Part, joined, json_parts
from tenure.api.common.reply import ReplyHead
from tenure.client import EngineClient, EngineTarget, GenerationHandle
from tenure.config import HttpLimits
from tenure.http import errors
from tenure.http.errors import ApiError
from tenure.http.event_stream import EventStream
from tenure.http.exchange import Exchange, Stage
from tenure.http.request_head import RequestOptions
from tenure.observe.journal import Journal
from tenure.prompts.token_prompts import Window, window_of
from tenure.wire.messages import Submit

T = TypeVar("T")


class Call:
    """One HTTP request inside the guard. A handler answers once: `respond`, `respond_json` or `event_stream`.

    To refuse, a handler raises `ApiError`, or an error of a lower layer that `translate` knows.
    """

    def __init__(self, exchange: Exchange, context: AppContext, send: Send, limits: HttpLimits) -> None:
        self.context = context
        self.attached: Sequence[Part] = ()
        """What belongs to the plan that was read."""
        self._exchange = exchange
        self._journal: Journal = exchange.journal
        self._send = send
        self._limits = limits

    @property
    def route(self) -> str:
        """The path of its row in the route table."""
        return self._exchange.head.route.path

    @property
    def path_params(self) -> Mapping[str, str]:
        return self._exchange.head.path_params

    @property
    def headers(self) -> Headers:
        return self._exchange.head.headers

    @property
    def body(self) -> bytes:
        """Complete and bounded; empty on a route that takes none, and once it has been decoded."""
        return self._exchange.body.data

    @property
    def request_id(self) -> str:
        """The id of the response, made by the server."""
        return self._exchange.head.request_id

    def reply_head(self) -> ReplyHead:
        """What a reply that is made now begins with."""
        return ReplyHead(self.request_id, int(time.time()), self.model, f"tenure-{self.context.settings.version}")

    @property
    def label(self) -> str:
        """The caller's `X-Request-Id`: shown in logs and ledgers, never used as an identity."""
        return self._exchange.head.label

    @property
    def options(self) -> RequestOptions:
        """The options for the engine that the request's headers give."""
        return self._exchange.options

    @property
    def model(self) -> str:
        """The served name under which the request is counted; set it as soon as it is known."""
        return self._journal.model

    @model.setter
    def model(self, name: str) -> None:
        self._journal.model = name

    async def read(self, kind: type[T]) -> T:
        """The plan, of this kind, that the route's reader makes of the body; the body is let go of once it is decoded.

        Raises what the reader does, and ApiError when the request's time is up meanwhile.
        """
        context, body, reader = self.context, self._exchange.body, self._exchange.head.route.reader
        assert reader is not None
        loop = asyncio.get_running_loop()

        def decoded() -> None:
            loop.call_soon_threadsafe(body.let_go)

        reading = BodyReading(context.texts, context.settings, self._limits, self._routed(), decoded)
        entered = False
        try:
            with anyio.move_on_after(self._exchange.time_left()):
                plan, self.attached = await context.readers.read(reader, body, reading, kind)
                entered = True
                return plan
        finally:
            if not entered:
                self.turn_back(reading.tickets)
            self.model = reading.model
            for name in reading.ignored:
                context.notices.ignored_field(name)
        raise errors.out_of_time()

    def _routed(self) -> RoutedRequest:
        models = [
            ModelWindows(served.names, served.tasks, tuple(map(_window, served.engines)))
            for served in self.context.models.models
        ]
        return RoutedRequest(self.route, tuple(models), self.options.rank, self.headers.get("x-vllm-priority"))

    def turn_back(self, tickets: Sequence[str]) -> None:
        """The request, which brought these, does not enter: nobody needs to hold anything for it."""
        if tickets:
            self.context.models.release_tickets(tickets)

    def engine(self, model: str) -> EngineTarget:
        """All engines of the model that a reader chose, unless the request demands one of them."""
        served, rank = self.context.models[model], self.options.rank
        return served if rank is None else served.engines[rank]

    async def compute(self, work: Callable[[], T], size: int) -> T:
        """Run `work` on an input of this size, in a thread if it is long.

        Raises ApiError when the request's time is up meanwhile.
        """
        workers, threshold = self.context.workers, self.context.settings.thread_above
        with anyio.move_on_after(self._exchange.time_left()):
            return await workers.run_if_long(work, size, threshold)
        raise errors.out_of_time()

    async def respond(
        self,
        status: int,
        *content: Part,
        media_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a whole response, in parts; raises ApiError when the request has failed meanwhile."""
        self._exchange.check()
        await self._whole(status, content, media_type, headers)

    async def _whole(
        self, status: int, content: Sequence[Part], media_type: str, headers: Mapping[str, str] | None
    ) -> None:
        given = {"content-type": media_type, "content-length": str(sum(map(len, content))), **(headers or {})}
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        for number, part in enumerate(content, 1):
            more = number < len(content)
            await self._send({"type": "http.response.body", "body": part, "more_body": more})

    async def respond_long(self, make: Callable[[], object], size: int) -> None:
        """Send what `make` makes, as `json_parts` writes it: it is of this size, roughly."""
        await self.respond(200, *await self.compute(lambda: joined(json_parts(make())), size))

    async def respond_json(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send a msgspec-encodable value."""
        await self.respond(status, msgspec.json.encode(value), headers=headers)

    async def respond_error(self, error: ApiError) -> None:
        """Send an error envelope. Handlers raise instead."""
        body = error.body(self._exchange.head.route.dialect)
        await self._whole(error.status, [body], "application/json", error.headers)

    def explain(self, exc: Exception) -> ApiError:
        """Return the error to answer with; for a bug `internal_error`, without details."""
        if isinstance(exc, ExceptionGroup):
            causes = [self.explain(inner) for inner in exc.exceptions if isinstance(inner, Exception)]
            bugs = [cause for cause in causes if cause.code == "internal_error"]
            return (bugs or causes)[0]
        known = exc if isinstance(exc, ApiError) else translate(exc)
        return errors.internal_error() if known is None else known

    @asynccontextmanager
    async def generation(self, target: EngineTarget, submit: Submit) -> AsyncIterator[GenerationHandle]:
        """As `target.open(submit)`, with this request's ids and deadlines, and followed by its journal.

        Set `model` before. Raises ApiError when the deadline has passed already.
        """
        watch = self._journal.follow(submit)
        submit = self._with_options(submit)
        async with target.open(submit, self._exchange.outcome) as handle:
            handle.watch(watch)
            yield handle

    def _with_options(self, submit: Submit) -> Submit:
        left = self._exchange.time_left()
        if left is not None and left <= 0:
            raise errors.out_of_time()
        ids = {"public_id": self.request_id, "label": self.label}
        begin = self.context.settings.queue_timeout or None
        return msgspec.structs.replace(submit, **ids, begin_within=begin, end_within=left)

    @asynccontextmanager
    async def event_stream(self) -> AsyncIterator[EventStream]:
        """A stream of server-sent events; status and headers go out with the first event or keep-alive comment.

        End it with `done()`. A failure inside the scope is raised again: if nothing was sent yet it
        becomes an ordinary error response, else one error event has been sent and the body closed, without `[DONE]`.
        """
        stream = EventStream(self._send, self._exchange.check)
        try:
            async with self._keeping_alive(stream):
                yield stream
            if not stream.ended:
                raise RuntimeError("an event stream was left without done()")
        except Exception as exc:
            error = self.explain(exc)
            if stream.started and not stream.ended and self._exchange.stage is not Stage.FINISHED:
                await stream.end_with(self._exchange.fail(error).event())
            raise

    @asynccontextmanager
    async def _keeping_alive(self, stream: EventStream) -> AsyncIterator[None]:
        if self._limits.keep_alive_interval <= 0:
            yield
            return
        async with anyio.create_task_group() as group:
            group.start_soon(stream.keep_alive, self._limits.keep_alive_interval)
            try:
                yield
            finally:
                async with stream.writing:  # a comment half handed over would leave open whether the headers went out
                    group.cancel_scope.cancel()


def _window(engine: EngineClient) -> Window | None:
    return None if engine.card is None else window_of(engine.card)
