"""The clients of the storm: each asks, or leaves, or sends nonsense, over and over, and writes down what it saw.

`Client.visit` is one request of one connection; `BEHAVIOURS` are the ways to use it. What a client is told must be one
of the endings that a server may give; anything else is a fault, as is an answer that is wrong.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from random import Random
from typing import Any

import anyio

from benchmarks.storm.books import Books, Sight, outcome_of
from benchmarks.storm.connection import PATIENCE, Connection, Cut, Hung, connect, get, post
from benchmarks.storm.questions import Catalogue, Question
from benchmarks.storm.refusals import Refusal, bad_http, bad_request
from tenure.outcomes import Outcome

ANY = frozenset(Outcome)
_RETRY = (429, 503)
_CANCEL = "/v1/requests/cancel"
_PAGES = ("/health", "/ready", "/ping", "/version", "/load", "/v1/models", "/openapi.json", "/metrics", "/ledger")


@dataclass(frozen=True)
class Ground:
    """Where the storm takes place, and by which rules."""

    address: str
    books: Books
    catalogue: Catalogue
    stall_timeout: float
    killing: bool = False
    """Processes of the server are killed, so that any connection may break and any engine be away."""

    @property
    def accidents(self) -> frozenset[Outcome]:
        """What may become of any request."""
        return frozenset((Outcome.UNAVAILABLE, Outcome.WORKER_LOST)) if self.killing else frozenset()


class Client:
    """One client, with dice of its own. A behaviour is a coroutine function that takes a client."""

    def __init__(self, ground: Ground, name: str, random: Random) -> None:
        self.ground = ground
        self.name = name
        self.random = random
        self._count = 0

    async def run(self, until: float) -> None:
        """Behave in one way after the other until the time is over."""
        ways, weights = list(BEHAVIOURS), [weight for _, weight in BEHAVIOURS.values()]
        while anyio.current_time() < until:
            [way] = self.random.choices(ways, weights)
            try:
                await BEHAVIOURS[way][0](self)
            except* Hung as group:
                self.fault(f"{way}: {group.exceptions[0]}")
            except* Cut as group:
                if not self.ground.killing:
                    self.fault(f"{way}: the server hung up: {group.exceptions[0]}")
            await anyio.sleep(self.random.expovariate(20))

    def fault(self, text: str) -> None:
        self.ground.books.fault(text)

    def label(self) -> str:
        """One that no other request has."""
        self._count += 1
        return f"{self.name}-{self._count}"

    # one request

    async def visit(
        self, question: Question, label: str, use: "Use", *, small: bool = False, timeout: str = ""
    ) -> None:
        """Send `question`, and let `use` do the rest; what it saw goes into the books."""
        data = post(question.path, question.body, {"x-request-id": label, "x-request-timeout": timeout})
        await self.send(data, label if question.work else None, lambda wire: use(self, wire, question), small=small)

    async def send(
        self, data: bytes, label: str | None, use: Callable[[Connection], Awaitable[Sight]], *, small: bool = False
    ) -> None:
        """The same with any bytes; without a label it is a request that the server does not count."""
        books = self.ground.books
        if label is not None:
            books.open(label)
        sight = Sight("never sent", ANY, ignore_progress=True)
        try:
            with await connect(self.ground.address, small=small) as wire:
                await wire.send(data)
                sight = await use(wire)
        except Cut as cut:
            sight = Sight("cut off", ANY, ignore_progress=True)
            if not self.ground.killing:
                self.fault(f"{label}: the server hung up: {cut}")
        finally:
            if label is not None:
                books.close(label, sight)

    # reading answers

    async def read(self, wire: Connection, question: Question) -> Sight:
        """A whole answer, or a whole stream."""
        status, headers = await wire.head()
        if headers.get("content-type", "").startswith("text/event-stream"):
            return self.told(question, status, await _stream(wire), headers, stream=True)
        try:
            body = await wire.body()
        except Cut:
            if status != HTTPStatus.OK or Outcome.ABORTED not in question.endings:
                raise
            return Sight("200, then cut off", frozenset((Outcome.ABORTED,)))  # it was named meanwhile
        return self.told(question, status, json.loads(body or b"{}"), headers)

    def told(
        self, question: Question, status: int, answer: Any, headers: dict[str, str], *, stream: bool = False
    ) -> Sight:
        """Judge an answer."""
        error = answer.get("error") or {}
        outcome = outcome_of(status, error.get("code") or "")
        if outcome is Outcome.OK and not question.right(answer):
            self.fault(f"a wrong answer: {question.path} {str(question.body)[:200]} -> {str(answer)[:300]}")
        if status in _RETRY and int(headers.get("retry-after", 0)) < 1:
            self.fault(f"{status} without Retry-After on {question.path}")
        if outcome not in question.endings | self.ground.accidents:
            self.fault(f"{question.path} {str(question.body)[:200]} was answered {status} {error}")
        what = f"stream, then {error.get('code') or '[DONE]'}" if stream else f"{status} {error.get('code') or ''}"
        return Sight(what.strip(), frozenset((outcome,)))

    async def refused(self, wire: Connection, refusal: Refusal) -> Sight:
        """The answer to what no server may take."""
        status, _ = await wire.head()
        answer = await wire.body()
        away = status == 503 and self.ground.killing
        if status != refusal.status and not away:
            self.fault(f"{refusal.name}: {status} instead of {refusal.status}: {answer[:200]!r}")
        error = json.loads(answer).get("error")
        if not isinstance(error, dict) or not error.get("message"):
            self.fault(f"{refusal.name}: no error in one shape: {answer[:200]!r}")
            error = {}
        return Sight(f"{status} {error.get('code')}", frozenset((outcome_of(status, str(error.get("code"))),)))

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        """An answer of a route that is no work."""
        with await connect(self.ground.address) as wire:
            await wire.send(data)
            status, _ = await wire.head()
            return status, await wire.body()


Use = Callable[[Client, Connection, Question], Awaitable[Sight]]


async def _stream(wire: Connection) -> dict[str, Any]:
    """The events of a stream added up to a whole answer; `error` in it when it ended in one.

    Raises Cut also for a stream that has no proper end: exactly one `[DONE]` or error event, and nothing after it.
    """
    choices: dict[int, dict[str, Any]] = {}
    while (event := await wire.event()) is not None:
        if event == "[DONE]":
            answer: dict[str, Any] = {"choices": list(choices.values())}
            break
        chunk = json.loads(event)
        if "error" in chunk:
            answer = chunk
            break
        for piece in chunk["choices"]:
            choice = choices.setdefault(piece["index"], {"index": piece["index"], "text": "", "finish_reason": None})
            choice["text"] += piece["text"] if "text" in piece else piece["delta"].get("content") or ""
            choice["finish_reason"] = piece["finish_reason"] or choice["finish_reason"]
    else:
        raise Cut("a stream without an end")
    if await wire.event() is not None:
        raise Cut("a stream that goes on after its end")
    return answer


# The ways of leaving


async def _close(wire: Connection) -> None:
    wire.close()


async def _reset(wire: Connection) -> None:
    wire.reset()


LEAVING = (_close, _reset, Connection.half_close)


async def _leave(client: Client, wire: Connection, question: Question, where: str) -> Sight:
    await client.random.choice(LEAVING)(wire)
    allowed = question.endings | client.ground.accidents | {Outcome.CLIENT_CANCELLED}
    return Sight(f"left {where}", allowed, ignore_progress=True)


async def leave_unanswered(client: Client, wire: Connection, question: Question) -> Sight:
    """Leave before the first byte, or what would have been it."""
    await anyio.sleep(client.random.choice((0, 0.01, 0.1, 0.4)))
    return await _leave(client, wire, question, "unanswered")


async def leave_in_stream(client: Client, wire: Connection, question: Question) -> Sight:
    """Read some events of an endless stream, and leave."""
    status, headers = await wire.head()
    if status != 200:
        return client.told(question, status, json.loads(await wire.body()), headers)
    for _ in range(client.random.randrange(30)):
        event = await wire.event()
        if event is None or '"error"' in event:
            break
    return await _leave(client, wire, question, "in a stream")


# Behaviours


async def whole(client: Client) -> None:
    await client.visit(client.ground.catalogue.question(client.random), client.label(), Client.read)


async def streamed(client: Client) -> None:
    question = client.ground.catalogue.generation(client.random)
    await client.visit(question.streamed(), client.label(), Client.read)


async def leaving(client: Client) -> None:
    catalogue = client.ground.catalogue
    make = client.random.choice((catalogue.question, catalogue.endless))
    await client.visit(make(client.random), client.label(), leave_unanswered)


async def leaving_in_stream(client: Client) -> None:
    question = client.ground.catalogue.endless(client.random)
    if question.generates:
        await client.visit(question.streamed(), client.label(), leave_in_stream)


async def half_body(client: Client) -> None:
    """Half a body; then leave, or wait until the server has had enough."""
    question, label = replace(_work(client), endings=frozenset()), client.label()
    data = post(question.path, question.body, {"x-request-id": label}, declared=100_000)

    async def use(wire: Connection) -> Sight:
        if client.random.random() < 0.8:
            return await leave_unanswered(client, wire, question)
        return await client.refused(wire, Refusal("half a body", data, 408))

    await client.send(data, label, use)


async def coming_back(client: Client) -> None:
    """Stop reading for a while that is shorter than the server's patience; everything must come, in order."""
    patience = client.ground.stall_timeout

    async def use(client: Client, wire: Connection, question: Question) -> Sight:
        began = anyio.current_time()
        await anyio.sleep(patience / 3)
        late = anyio.current_time() - began > patience * 2 / 3  # the machine was busy with something else
        try:
            return await client.read(wire, question)
        except Cut as cut:
            if not late and not client.ground.killing:
                client.fault(f"a reader that came back was cut off: {cut}")
            return Sight("came back too late", ANY)

    await client.visit(client.ground.catalogue.large(client.random), client.label(), use, small=True)


async def never_coming_back(client: Client) -> None:
    """Stop reading for good: the server must end the connection."""

    async def use(client: Client, wire: Connection, question: Question) -> Sight:
        status, headers = await wire.head()
        if status != 200:
            return client.told(question, status, json.loads(await wire.body()), headers)
        await anyio.sleep(client.ground.stall_timeout * 3)
        if not await wire.wait_end(PATIENCE):
            client.fault(f"a reader that never came back keeps its connection: {question.path}")
        return Sight("never read", frozenset((Outcome.STALLED, Outcome.DEADLINE)) | client.ground.accidents)

    await client.visit(client.ground.catalogue.large(client.random), client.label(), use, small=True)


async def bad_body(client: Client) -> None:
    refusal = bad_request(_work(client), client.label(), client.random)
    await client.send(refusal.data, refusal.label, lambda wire: client.refused(wire, refusal))


async def no_http(client: Client) -> None:
    refusal = bad_http(_work(client).path, client.label(), client.random)
    await client.send(
        refusal.data, refusal.label if refusal.counted else None, lambda wire: client.refused(wire, refusal)
    )


async def hurried(client: Client) -> None:
    """A deadline that may be too short."""
    catalogue = client.ground.catalogue
    question = client.random.choice((catalogue.question, catalogue.endless))(client.random)
    await client.visit(question, client.label(), Client.read, timeout=client.random.choice(("0.01", "0.2", "1")))


async def cancelled_by_id(client: Client) -> None:
    """End a stream by the id that its head tells, on another connection; both must say the same of its end."""
    question = client.ground.catalogue.endless(client.random)
    if not question.generates:
        return

    async def use(client: Client, wire: Connection, question: Question) -> Sight:
        status, headers = await wire.head()
        if status != 200:
            return client.told(question, status, json.loads(await wire.body()), headers)
        request_id = headers["x-tenure-request-id"]
        answers = [await client.ask(post(f"/v1/requests/{request_id}/cancel", b"", {}))]
        answers.append(await client.ask(post(_CANCEL, {"ids": [request_id, "unknown"]}, {})))
        answer = await _stream(wire)
        sight = client.told(question, status, answer, headers, stream=True)
        _check_cancelled(client, request_id, answers, sight)
        return sight

    await client.visit(question.streamed().that_may_end(Outcome.ABORTED), client.label(), use)


def _check_cancelled(client: Client, request_id: str, answers: Sequence[tuple[int, bytes]], sight: Sight) -> None:
    if client.ground.killing:
        return  # an engine that died remembers nothing
    statuses = [status for status, _ in answers]
    if statuses != [200, 200]:
        client.fault(f"{request_id} was cancelled twice: {answers}")
        return
    first, again = (json.loads(body) for _, body in answers)
    told = {first["outcome"], *(entry["outcome"] for entry in again["requests"])}
    if told != set(sight.allowed) or again["unknown_ids"] != ["unknown"]:
        client.fault(f"{request_id}: the cancel said {first}, then {again}; its client saw {sight.what}")


async def cancelled_by_label(client: Client) -> None:
    """End all requests of a label, on any routes, somewhere between their arrival and their end."""
    label, catalogue = client.label(), client.ground.catalogue
    async with anyio.create_task_group() as group:
        for _ in range(client.random.choice((1, 2, 3))):
            question = client.random.choice((catalogue.question, catalogue.endless))(client.random)
            group.start_soon(client.visit, question.that_may_end(Outcome.ABORTED), label, Client.read)
        await anyio.sleep(client.random.choice((0.02, 0.2, 0.6)))
        for _ in range(100):
            status, body = await client.ask(post(_CANCEL, {"labels": [label]}, {}))
            if status == 404:  # none of them is left, or none has come yet
                break
            if status == 503 and client.ground.killing:  # an engine that is away may know some of them
                break
            if status != 200:
                client.fault(f"cancelling a label was answered {status} {body[:200]!r}")
                break


async def twins(client: Client) -> None:
    """Requests with one label, or none, at the same time: each is one of its own."""
    label, catalogue = client.random.choice((client.label(), "")), client.ground.catalogue
    async with anyio.create_task_group() as group:
        group.start_soon(client.visit, catalogue.question(client.random), label, leave_unanswered)
        for _ in range(2):
            group.start_soon(client.visit, catalogue.question(client.random), label, Client.read)


async def crowd(client: Client) -> None:
    """More than the server takes at a time: it says so at once."""
    async with anyio.create_task_group() as group:
        for _ in range(25):
            group.start_soon(client.visit, client.ground.catalogue.question(client.random), client.label(), Client.read)


async def on_one_connection(client: Client) -> None:
    """Several requests in one go, which are answered in order."""
    questions = [client.ground.catalogue.question(client.random) for _ in range(3)]
    labels = [client.label() for _ in questions]
    counted = [label for question, label in zip(questions, labels, strict=True) if question.work]
    for label in counted:
        client.ground.books.open(label)
    sights = [Sight("cut off", ANY, ignore_progress=True)] * 3
    try:
        with await connect(client.ground.address) as wire:
            for question, label in zip(questions, labels, strict=True):
                await wire.send(post(question.path, question.body, {"x-request-id": label}))
            for number, question in enumerate(questions):
                sights[number] = await client.read(wire, question)
    finally:
        for label, sight in zip(labels, sights, strict=True):
            if label in counted:
                client.ground.books.close(label, sight)


async def looking(client: Client) -> None:
    """What operators and their tools ask all the time; never kept waiting by the load."""
    page = client.random.choice(_PAGES)
    status, body = await client.ask(get(page))
    if status != 200 and not client.ground.killing:
        client.fault(f"{page} was answered {status} {body[:200]!r}")


def _work(client: Client) -> Question:
    while not (question := client.ground.catalogue.question(client.random)).work:
        pass
    return question


Behaviour = Callable[[Client], Awaitable[None]]
BEHAVIOURS: dict[str, tuple[Behaviour, int]] = {
    "whole": (whole, 24),
    "streamed": (streamed, 16),
    "leaving": (leaving, 12),
    "leaving in a stream": (leaving_in_stream, 10),
    "half a body": (half_body, 4),
    "coming back": (coming_back, 2),
    "never coming back": (never_coming_back, 1),
    "bad body": (bad_body, 14),
    "no HTTP": (no_http, 6),
    "hurried": (hurried, 5),
    "cancelled by id": (cancelled_by_id, 5),
    "cancelled by label": (cancelled_by_label, 5),
    "twins": (twins, 4),
    "a crowd": (crowd, 1),
    "on one connection": (on_one_connection, 4),
    "looking": (looking, 6),
}
"""With how often each is chosen."""
