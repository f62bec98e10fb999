"""Messages leave in order; a peer that does not read costs bounded memory and, in the end, its connection."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tenure.wire import messages as wire
from tenure.wire.framing import Channel, PeerGone
from tenure.wire.outbox import Outbox, OutboxFull
from tests.tasks import run, settle
from tests.wire.streams import BrokenStream, GatedStream, ScriptedStream
from tests.wire.test_framing import encoded, received

FRAME = len(encoded(wire.Admitted(request=0)))


def outbox(stream: ScriptedStream, limit: int = 1 << 20) -> Outbox:
    return Outbox(Channel[Any](stream, wire.ToEngine), limit)


async def sent(stream: ScriptedStream) -> list[int]:
    return [message.request for message in (await received([bytes(stream.sent)]))[0]]


def test_messages_leave_in_the_order_they_were_put() -> None:
    """Also those that are put while others are being sent."""

    async def scenario() -> None:
        stream = ScriptedStream()
        box = outbox(stream)
        box.put(wire.Admitted(request=0))
        async with anyio.create_task_group() as group:
            group.start_soon(box.run)
            for number in range(1, 30):
                box.put(wire.Admitted(request=number))
                await anyio.lowlevel.checkpoint()
            while len(await sent(stream)) < 30:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert await sent(stream) == list(range(30))

    run(scenario)


def test_what_nothing_has_to_wait_for_leaves_at_once() -> None:
    """As far as it goes; the rest, and what is put meanwhile, follows in order."""

    async def scenario() -> None:
        stream = ScriptedStream()
        box = Outbox(Channel[Any](stream, wire.ToEngine), send_now=stream.send_now)
        first = encoded(wire.Admitted(request=0))
        box.put(wire.Admitted(request=0))
        assert stream.sent == first[: (FRAME + 1) // 2]
        box.put(wire.Admitted(request=1))
        assert len(stream.sent) == (FRAME + 1) // 2, "the second would overtake the first"
        async with anyio.create_task_group() as group:
            group.start_soon(box.run)
            for number in range(2, 20):
                await settle()
                box.put(wire.Admitted(request=number))
                assert len(stream.sent) == number * FRAME + (FRAME + 1) // 2
            await settle()
            group.cancel_scope.cancel()
        assert await sent(stream) == list(range(20))

    run(scenario)


def test_the_limit_is_on_what_waits_not_on_what_was_sent() -> None:
    async def scenario() -> None:
        stream = ScriptedStream()
        box = outbox(stream, FRAME)
        async with anyio.create_task_group() as group:
            group.start_soon(box.run)
            for number in range(10):
                box.put(wire.Admitted(request=number))
                while len(await sent(stream)) <= number:
                    await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    run(scenario)


@pytest.mark.parametrize("sending", [True, False])
def test_a_peer_that_does_not_read_loses_its_connection(sending: bool) -> None:
    """At once, though the sending task waits for that peer; and nothing is kept for it any more."""

    async def scenario() -> None:
        stream = GatedStream()
        box = outbox(stream, 3 * FRAME)
        ended = anyio.Event()

        async def write() -> None:
            with pytest.raises(PeerGone, match="does not read"):
                await box.run()
            ended.set()

        async with anyio.create_task_group() as group:
            if sending:
                box.put(wire.Admitted(request=0))
            group.start_soon(write)
            await settle()
            assert stream.sends == sending
            for number in range(sending, 3):
                box.put(wire.Admitted(request=number))
            with pytest.raises(OutboxFull, match=f"{3 * FRAME} bytes wait"):
                box.put(wire.Admitted(request=3))
            await ended.wait()
        box.put(wire.Admitted(request=99))  # dropped: nobody would ever send it
        assert not stream.sent

    run(scenario)


def test_an_outbox_that_ran_full_before_it_ran() -> None:
    async def scenario() -> None:
        stream = ScriptedStream()
        box = outbox(stream, 10)
        with pytest.raises(OutboxFull):
            box.put(wire.Admitted(request=1))
        with pytest.raises(PeerGone):
            await box.run()
        assert not stream.sent

    run(scenario)


def test_it_ends_with_its_peer_and_drops_what_it_is_given_afterwards() -> None:
    async def scenario() -> None:
        box = outbox(BrokenStream(), 3 * FRAME)
        box.put(wire.Admitted(request=1))
        with pytest.raises(PeerGone, match="gone"):
            await box.run()
        for number in range(100):
            box.put(wire.Admitted(request=number))

    run(scenario)


def test_being_cancelled_is_not_the_peers_doing() -> None:
    async def scenario() -> None:
        box = outbox(GatedStream())
        box.put(wire.Admitted(request=1))
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(box.run)
                await settle()
                scope.cancel()
        assert scope.cancelled_caught

    run(scenario)


def test_a_message_that_cannot_be_encoded_leaves_the_outbox_as_it_was() -> None:
    async def scenario() -> None:
        stream = ScriptedStream()
        box = outbox(stream)
        box.put(wire.Admitted(request=1))
        with pytest.raises(OverflowError):
            box.put(wire.Admitted(request=2**64))
        box.put(wire.Admitted(request=2))
        async with anyio.create_task_group() as group:
            group.start_soon(box.run)
            while len(await sent(stream)) < 2:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert await sent(stream) == [1, 2]

    run(scenario)
