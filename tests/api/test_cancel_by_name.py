"""What is named in a cancel ends here, wherever it is, and stays what was told of it."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum

import anyio
import httpx
import pytest

from tenure.api.operations.cancel_by_name import cancel
from tenure.client import EndOfGeneration
from tenure.client.engine import client_left
from tenure.errors import Refusal
from tenure.outcomes import Outcome
from tenure.wire.messages import CancelByName, CancelledByName, CancelledRequest, ItemOutput, Submit
from tests.api.generation_rig import FakeEngine, FakeHandle, Rig
from tests.tasks import run

FULL = Refusal(Outcome.QUEUE_FULL, "queue_full", "no room", 1.0)
BODY: dict[str, object] = {"prompt": "hi"}


class When(Enum):
    """At what moment of a request its engine is slow."""

    ASKED = "asked"
    COMPUTING = "computing"
    ANSWERED = "answered"
    AFTERWARDS = "afterwards"


class Slow(FakeEngine):
    """Waits for `go_on` once in the course of a request."""

    def __init__(self, *, when: When, refusal: Refusal | None = None) -> None:
        super().__init__()
        self.reached, self.go_on = anyio.Event(), anyio.Event()
        self._late_refusal = refusal
        self._when = when

    @asynccontextmanager
    async def open(self, submit: Submit, cause: Callable[[], Outcome] = client_left) -> AsyncIterator[FakeHandle]:
        async with super().open(submit, cause) as handle:
            await self.wait_if(When.ASKED)
            if self._late_refusal is not None:
                raise self._late_refusal
            yield SlowHandle(handle.batches, handle.failure, engine=self)
            await self.wait_if(When.AFTERWARDS)

    async def wait_if(self, when: When) -> None:
        if when is self._when:
            self.reached.set()
            await self.go_on.wait()


@dataclass
class SlowHandle(FakeHandle):
    engine: Slow | None = None

    async def receive(self) -> list[ItemOutput]:
        assert self.engine is not None
        await self.engine.wait_if(When.COMPUTING)
        try:
            return await super().receive()
        except EndOfGeneration:
            self.end()
            await self.engine.wait_if(When.ANSWERED)
            raise


async def cancelled(
    engine: Slow, names: CancelByName, body: dict[str, object], *, then: bool = False, woken: bool = False
) -> tuple[httpx.Response, list[CancelledRequest], Rig]:
    """The reply to a request that is named while `engine` has it.

    With `then` the engine goes on afterwards; with `woken` just before, so that nobody has had a turn between.
    """
    rig = Rig(engine=engine)
    replies: list[httpx.Response] = []

    async def ask() -> None:
        transport = httpx.ASGITransport(rig.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            replies.append(await client.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"}))

    async def go_on() -> None:
        engine.go_on.set()

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await engine.reached.wait()
        if woken:
            engine.go_on.set()
        if then:
            group.start_soon(go_on)
        ended = await rig.context.end_named(names)
        assert rig.counts.open == engine.open_scopes == 0 or not ended, "nothing is held when that is said"
    assert rig.counts.open == engine.open_scopes == 0
    return replies[0], ended, rig


def check_ended(reply: httpx.Response, ended: list[CancelledRequest], rig: Rig) -> None:
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "aborted")
    assert [(one.id, one.outcome) for one in ended] == [(reply.headers["x-tenure-request-id"], Outcome.ABORTED)]
    assert 0 < ended[0].seconds < 60
    assert rig.counts.outcomes == {"aborted": 1}


def test_while_an_engine_is_being_asked() -> None:
    """It may refuse, and the next engine have dealt with the names already: so nobody is asked any more."""

    async def scenario() -> None:
        engine = Slow(when=When.ASKED)
        reply, ended, rig = await cancelled(engine, CancelByName(sequence=1, ids=[], labels=["mine"], owner=""), BODY)
        check_ended(reply, ended, rig)
        assert engine.cancelled_for == [Outcome.ABORTED], "and the engine is told so too"

    run(scenario)


@pytest.mark.parametrize(
    "names",
    [
        CancelByName(sequence=1, ids=["cmpl-other"], labels=[], owner=""),
        CancelByName(sequence=1, ids=["mine"], labels=["other"], owner=""),
        CancelByName(sequence=1, ids=[], labels=["mine"], owner="somebody else"),
    ],
)
def test_others_go_on(names: CancelByName) -> None:
    async def scenario() -> None:
        reply, ended, _ = await cancelled(Slow(when=When.ASKED), names, BODY, then=True)
        assert (reply.status_code, ended) == (200, [])

    run(scenario)


@pytest.mark.parametrize("refusal", [None, FULL], ids=["admitted", "refused"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_in_the_very_turn_in_which_the_engine_answers(stream: bool, refusal: Refusal | None) -> None:
    """The handler was woken and runs on before it is cancelled; but what was decided is what the client is told."""

    async def scenario() -> None:
        engine = Slow(when=When.ASKED, refusal=refusal)
        names = CancelByName(sequence=1, ids=[], labels=["mine"], owner="")
        reply, ended, rig = await cancelled(engine, names, {**BODY, "stream": stream}, woken=True)
        if reply.status_code == 200:
            assert stream
            assert "[DONE]" not in reply.text
            assert json.loads(reply.text.strip().split("data: ")[-1])["error"]["code"] == "aborted"
            assert len(ended) == 1
            assert rig.counts.outcomes == {"aborted": 1}
        else:
            check_ended(reply, ended, rig)

    run(scenario)


def test_what_has_ended_is_remembered_by_its_id() -> None:
    rig = Rig()
    known = rig.post("/v1/completions", BODY, {"X-Request-Id": "mine"}).headers["x-tenure-request-id"]
    refused = rig.complete(prompt=None).headers["x-tenure-request-id"]
    names = CancelByName(sequence=1, ids=[known, "cmpl-other", refused], labels=["mine"], owner="")
    assert anyio.run(rig.context.end_named, names) == [
        CancelledRequest(known, Outcome.OK, 0.0),
        CancelledRequest(refused, Outcome.INVALID, 0.0),
    ]


@pytest.mark.parametrize("when", [When.COMPUTING, When.ANSWERED])
def test_what_an_engine_has_is_aborted_whatever_still_comes(when: When) -> None:
    """The engine ends it too; if it has finished in that moment, the client is told what the cancel was told."""

    async def scenario() -> None:
        engine = Slow(when=when)
        names = CancelByName(sequence=1, ids=[], labels=["mine"], owner="")
        reply, ended, rig = await cancelled(engine, names, BODY, woken=True)
        check_ended(reply, ended, rig)
        again = CancelByName(sequence=2, ids=[ended[0].id], labels=[], owner="")
        assert await rig.context.end_named(again) == ended, "a repeat gets the same answer"

    run(scenario)


def test_what_its_client_has_been_sent_stays_so() -> None:
    async def scenario() -> None:
        names = CancelByName(sequence=1, ids=[], labels=["mine"], owner="")
        reply, ended, rig = await cancelled(Slow(when=When.AFTERWARDS), names, BODY, then=True)
        assert reply.status_code == 200
        assert [(one.id, one.outcome) for one in ended] == [(reply.headers["x-tenure-request-id"], Outcome.OK)]
        assert rig.counts.outcomes == {"ok": 1}

    run(scenario)


class Relay(FakeEngine):
    """Passes cancels on to somebody who ends all that is asked for; None when it is away."""

    def __init__(self, *, away: bool = False) -> None:
        super().__init__()
        self.asked: list[CancelByName] = []
        self._away = away

    async def cancel_by_name(self, names: CancelByName) -> CancelledByName | None:
        self.asked.append(names)
        ended = [CancelledRequest(request_id, Outcome.ABORTED, 0.5) for request_id in names.ids]
        return None if self._away else CancelledByName(sequence=0, requests=ended)


def test_ids_of_this_process_are_not_asked_for_elsewhere() -> None:
    """Not even when every engine is away; others are, and labels."""
    engine = Relay()
    rig = Rig(engine=engine)
    own = rig.complete().headers["x-tenure-request-id"]
    forged, other = own[:-1] + "-", "cmpl-" + "1" * 32
    assert [one.id for one in anyio.run(cancel, rig.context, [own, forged], [], "")] == [own]
    assert engine.asked == []
    assert [one.id for one in anyio.run(cancel, rig.context, [own, other], [], "")] == [own, other]
    assert [names.ids for names in engine.asked] == [[other]]
    anyio.run(cancel, rig.context, [], ["job"], "me")
    assert (engine.asked[1].ids, engine.asked[1].labels, engine.asked[1].owner) == ([], ["job"], "me")


def test_what_others_may_know_is_a_503_while_they_cannot_be_asked() -> None:
    rig = Rig(engine=Relay(away=True))
    own = rig.complete().headers["x-tenure-request-id"]
    for path, status in ((own, 200), (own[:-1] + "-", 404), ("cmpl-" + "1" * 32, 503)):
        assert rig.request("POST", f"/v1/requests/{path}/cancel").status_code == status
    both = rig.post("/v1/requests/cancel", {"ids": [own, "cmpl-" + "1" * 32], "labels": ["job"]})
    assert (both.status_code, both.json()["unknown_ids"]) == (200, ["cmpl-" + "1" * 32])
