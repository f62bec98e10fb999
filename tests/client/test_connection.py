"""A lost engine is noticed at once by all that wait for it, and found again when it is back.

What an engine says too late, too early, twice, or of requests that nobody knows, changes nothing.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from tenure.client import GenerationFailed
from tenure.client.generation import HandleState
from tenure.errors import Refusal
from tenure.outcomes import Outcome
from tenure.wire import messages as wire
from tests.client.engines import Bench, Conversation, Stream, bench, output, run_within
from tests.tasks import run, until
from tests.wire.samples import LEDGER


async def opened(engine: Conversation, stream: Stream) -> int:
    number = await engine.admit()
    await stream.admitted.wait()
    return number


@asynccontextmanager
async def streaming(rig: Bench) -> AsyncIterator[tuple[Conversation, Stream, int]]:
    """An engine that is ready, a stream that it has admitted, which ends by the end, and the number of its request."""
    engine, stream = await rig.accept_ready(), Stream(rig.client)
    async with anyio.create_task_group() as group:
        group.start_soon(stream.run)
        yield engine, stream, await opened(engine, stream)


async def lost(engine: Conversation, how: str) -> None:
    match how:
        case "hangs up":
            await engine.hang_up()
        case "says garbage":
            await engine.say_raw(b"\0\0\0\2{}")


@pytest.mark.parametrize("how", ["hangs up", "says garbage"])
def test_all_open_requests_end_when_the_engine_is_lost(how: str) -> None:
    """Those that were admitted, those that were asked for, and those that wait for a cancel; then it is found again."""

    async def scenario() -> None:
        async with bench() as rig:
            engine = await rig.accept_ready()
            streams = [Stream(rig.client) for _ in range(3)]
            asked = Stream(rig.client)
            cancelled = anyio.CancelScope()
            async with anyio.create_task_group() as group:
                for stream in streams:
                    group.start_soon(stream.run)
                    await opened(engine, stream)
                group.start_soon(asked.run)
                await engine.hear(wire.Submit)
                group.start_soon(run_within, cancelled, Stream(rig.client))
                await engine.hear(wire.Submit)
                cancelled.cancel()
                await engine.hear(wire.Cancel)
                assert rig.client.open_requests == 5
                with anyio.fail_after(30):
                    await lost(engine, how)
                    await until(lambda: not rig.client.ready)
                assert rig.client.open_requests == 0
            for stream in streams:
                assert isinstance(stream.ended, GenerationFailed)
                assert stream.ended.outcome is Outcome.UNAVAILABLE
            assert isinstance(asked.ended, Refusal)
            assert (asked.ended.outcome, asked.ended.code) == (Outcome.UNAVAILABLE, "engine_unavailable")
            assert not rig.client.ready
            await engine.wait_gone()
            await _serves_again(rig)

    run(scenario)


async def _serves_again(rig: Bench) -> None:
    engine = await rig.accept_ready("second")
    stream = Stream(rig.client)
    async with anyio.create_task_group() as group:
        group.start_soon(stream.run)
        number = await opened(engine, stream)
        await engine.say(output(number, 4), wire.Ended(request=number, outcome=Outcome.OK))
    assert stream.tokens == [4]


def test_tokens_that_came_before_the_loss_are_given_out() -> None:
    async def scenario() -> None:
        async with bench() as rig:
            async with streaming(rig) as (engine, stream, number):
                await engine.say(output(number, 1), output(number, 2))
                await engine.hang_up()
            assert stream.tokens == [1, 2]
            assert isinstance(stream.ended, GenerationFailed)

    run(scenario)


def test_an_engine_that_has_said_nothing_is_not_waited_for() -> None:
    """A frozen one's socket takes connections, and answers no questions."""

    async def scenario() -> None:
        async with bench() as rig:
            await rig.accept()
            assert await rig.client.cancel_by_name(wire.CancelByName(sequence=0, ids=["cmpl-1"])) is None
            assert await rig.client.ledger() is None

    run(scenario)


def test_an_engine_that_hangs_up_at_once_is_not_stormed() -> None:
    async def scenario() -> None:
        async with bench() as rig:
            connections = 0
            with anyio.move_on_after(0.5):
                while True:
                    engine = await rig.accept()
                    connections += 1
                    await engine.hang_up()
            assert 2 <= connections <= 8

    run(scenario)


STRAY: tuple[msgspec.Struct, ...] = (
    output(99, 1),
    wire.Admitted(request=99),
    wire.Refused(request=99, outcome=Outcome.QUEUE_FULL, code="queue_full", message="full"),
    wire.Ended(request=99, outcome=Outcome.OK),
    wire.LedgerReply(sequence=99, ledger=LEDGER),
)


@pytest.mark.parametrize("stray", STRAY, ids=lambda message: type(message).__name__)
def test_words_about_unknown_requests_change_nothing(stray: msgspec.Struct) -> None:
    async def scenario() -> None:
        async with bench() as rig:
            async with streaming(rig) as (engine, stream, number):
                await engine.say(stray, output(number, 1), stray, wire.Ended(request=number, outcome=Outcome.OK))
            assert stream.tokens == [1]
            # And about one that was known a moment ago.
            late = msgspec.structs.replace(stray, request=number) if hasattr(stray, "request") else output(number, 2)
            await engine.say_and_be_heard(rig.client, late, late)
            assert rig.client.ready
            assert rig.client.open_requests == 0
            assert stream.tokens == [1]

    run(scenario)


@pytest.mark.parametrize(
    "early", [output(0, 1), wire.Ended(request=0, outcome=Outcome.ABORTED)], ids=lambda message: type(message).__name__
)
def test_words_that_come_before_the_answer_are_ignored(early: msgspec.Struct) -> None:
    async def scenario() -> None:
        async with bench() as rig:
            engine = await rig.accept_ready()
            stream = Stream(rig.client)
            async with anyio.create_task_group() as group:
                group.start_soon(stream.run)
                number = (await engine.hear(wire.Submit)).request
                if isinstance(early, wire.StepOutput):
                    await engine.say_and_be_heard(rig.client, output(number, 1))
                else:
                    await engine.say_and_be_heard(rig.client, msgspec.structs.replace(early, request=number))
                assert not stream.admitted.is_set()
                ended = wire.Ended(request=number, outcome=Outcome.OK)
                await engine.say(wire.Admitted(request=number), output(number, 2), ended)
            assert stream.tokens == [2]

    run(scenario)


def test_a_second_answer_is_ignored() -> None:
    async def scenario() -> None:
        async with bench() as rig:
            async with streaming(rig) as (engine, stream, number):
                refused = wire.Refused(request=number, outcome=Outcome.QUEUE_FULL, code="queue_full", message="full")
                await engine.say_and_be_heard(rig.client, wire.Admitted(request=number), refused)
                assert stream.handle is not None
                assert stream.handle.state is HandleState.ADMITTED
                await engine.say(output(number, 7), wire.Ended(request=number, outcome=Outcome.OK))
            assert stream.tokens == [7]

    run(scenario)


def test_ledgers_are_told_apart() -> None:
    """Two are asked for at once and answered in the other order; one that comes too late is for nobody."""

    async def scenario() -> None:
        async with bench() as rig:
            engine = await rig.accept_ready()
            found: dict[str, wire.EngineLedger | None] = {}

            async def ask(name: str) -> None:
                found[name] = await rig.client.ledger(timeout=5)

            assert await rig.client.ledger(timeout=0.01) is None
            late = await engine.hear(wire.AskLedger)
            async with anyio.create_task_group() as group:
                for name in ("first", "second"):
                    group.start_soon(ask, name)
                questions = [await engine.hear(wire.AskLedger) for _ in range(2)]
                for number, question in enumerate([late, *reversed(questions)]):
                    ledger = msgspec.structs.replace(LEDGER, steps=number)
                    await engine.say(wire.LedgerReply(sequence=question.sequence, ledger=ledger))
            assert {name: ledger.steps for name, ledger in found.items() if ledger is not None} == {
                "first": 2,
                "second": 1,
            }

    run(scenario)


def test_a_ledger_whose_holders_take_too_long_comes_without_them() -> None:
    """The loop says who holds what between two steps; all else can be told while a step runs."""
    found: list[wire.EngineLedger | None] = []

    async def scenario() -> None:
        async with bench() as rig:
            engine = await rig.accept_ready()

            async def ask() -> None:
                found.append(await rig.client.ledger(timeout=0.2, holders=True))

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                assert (await engine.hear(wire.AskLedger)).holders
                question = await engine.hear(wire.AskLedger)
                assert not question.holders
                await engine.say(wire.LedgerReply(sequence=question.sequence, ledger=LEDGER))
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                question = await engine.hear(wire.AskLedger)
                await engine.say(wire.LedgerReply(sequence=question.sequence, ledger=LEDGER))
            assert found == [LEDGER, LEDGER]

    run(scenario)


def test_a_ledger_of_an_engine_that_dies() -> None:
    async def scenario() -> None:
        async with bench() as rig:
            engine = await rig.accept_ready()

            async def ask() -> None:
                assert await rig.client.ledger(timeout=0.1) is None

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await engine.hear(wire.AskLedger)
                await engine.hang_up()

    run(scenario)


def test_everyone_who_waits_for_the_engine_is_told() -> None:
    """Also those who began to wait while it was gone for a second time."""

    async def scenario() -> None:
        async with bench() as rig:
            for epoch in ("first", "second"):
                async with anyio.create_task_group() as group:
                    for _ in range(3):
                        group.start_soon(rig.client.wait_ready)
                    engine = await rig.accept_ready(epoch)
                await engine.hang_up()
                await until(lambda: not rig.client.ready)

    run(scenario)
