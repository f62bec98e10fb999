"""Work in forked processes: the same answers, in slices; nothing of it is left when nobody wants it any more."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise

import anyio
import anyio.lowlevel
import psutil
import pytest

from tenure.process.fork_server import SLICE_BYTES, ForkServer, WorkFailed
from tests.process.fork_servers import fork_server
from tests.tasks import run

PARTS = 40
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def work(head: bytearray, body: bytearray, taken: Callable[[], None]) -> tuple[bytes, Sequence[bytes]]:
    """What it is asked for."""
    if head == b"die":
        os._exit(3)
    if head == b"fail":
        raise ValueError("it is not to be")
    taken()
    while head == b"forever":
        pass
    return bytes(head) + str(len(body)).encode(), [bytes(body[::-1]), b"", b"end"]


def server() -> AbstractContextManager[ForkServer]:
    return fork_server(work)


def taken() -> None: ...


def test_answers_are_those_of_the_work() -> None:
    async def scenario() -> None:
        with server() as forks:
            for body in (b"", b"ab", b"abc" * SLICE_BYTES):
                told: list[bool] = []
                first, second = await forks.run(b"size ", len(body), [body], lambda told=told: told.append(True))
                assert first == b"size %d" % len(body)
                assert bytes(second) == body[::-1] + b"end"
                assert told == [True]

    run(scenario)


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    async def go_on(self) -> None:
        while True:
            self.count += 1
            await anyio.lowlevel.checkpoint()


def test_others_have_a_turn_between_two_slices_in_either_direction() -> None:
    async def scenario() -> None:
        with server() as forks:
            turns, sent, came = Turns(), [], []

            def parts() -> Iterator[bytes]:
                for _ in range(PARTS):
                    sent.append(turns.count)
                    yield bytes(SLICE_BYTES)

            async with anyio.create_task_group() as group:
                group.start_soon(turns.go_on)
                await forks.run(b"", PARTS * SLICE_BYTES, parts(), lambda: came.append(turns.count))
                came.append(turns.count)
                group.cancel_scope.cancel()
            assert all(later > earlier for earlier, later in pairwise(sent))
            assert came[1] - came[0] >= PARTS

    run(scenario)


async def wait_ended(process: psutil.Process) -> None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


def test_a_cancel_ends_the_worker_and_closing_the_server_whatever_they_do() -> None:
    async def scenario() -> None:
        before = set(psutil.Process().children())
        with server() as forks:
            (process,) = set(psutil.Process().children()) - before
            busy = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(forks.run, b"forever", 0, [], busy.set)
                await busy.wait()
                (worker,) = process.children()
                group.cancel_scope.cancel()
            await wait_ended(worker)
            assert forks.alive
        await wait_ended(process)
        process.wait()

    run(scenario)


def test_a_server_that_is_gone_is_noticed() -> None:
    async def scenario() -> None:
        before = set(psutil.Process().children())
        with server() as forks:
            (process,) = set(psutil.Process().children()) - before
            process.kill()
            process.wait()
            assert not forks.alive
            with pytest.raises(WorkFailed):
                await forks.run(b"", 0, [], taken)

    run(scenario)


def test_a_server_that_is_stopped_stops_nobody() -> None:
    """Clients that come and leave meanwhile fill its socket; then work is refused at once."""

    async def come_and_leave(forks: ForkServer) -> None:
        for _ in range(10_000):
            with anyio.move_on_after(0):
                await forks.run(b"", 0, [], taken)

    async def scenario() -> None:
        before = set(psutil.Process().children())
        with server() as forks:
            (process,) = set(psutil.Process().children()) - before
            process.suspend()
            with pytest.raises(WorkFailed):
                await come_and_leave(forks)
            process.resume()
            assert forks.alive
        process.wait()

    run(scenario)


def test_a_server_that_stays_stopped_is_ended() -> None:
    """Then nobody waits for it any longer: others read bodies themselves."""

    async def scenario() -> None:
        before = set(psutil.Process().children())
        with fork_server(work, start_within=0.05) as forks:
            (process,) = set(psutil.Process().children()) - before
            process.suspend()
            with pytest.raises(WorkFailed, match="stopped"):
                await forks.run(b"", 0, [], taken)
            await wait_ended(process)
            assert not forks.alive

    run(scenario)


@pytest.mark.parametrize("way", [b"die", b"fail"])
def test_a_worker_that_ends_fails_its_own_work_alone(way: bytes) -> None:
    async def scenario() -> None:
        with server() as forks:
            with pytest.raises(WorkFailed):
                await forks.run(way, 3, [b"abc"], taken)
            assert forks.alive
            assert (await forks.run(b"", 3, [b"abc"], taken))[0] == b"3"

    run(scenario)
