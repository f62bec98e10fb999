"""A process that lives and does not go on is found out, and no other is taken for one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from tenure.process.reports import Alive, AnyReport, Loaded
from tenure.server import watchdog
from tenure.server.watchdog import Watchdog
from tests.tasks import run, settle
from tests.wire.samples import CARD


class Barks:
    """What a watchdog has said."""

    def __init__(self, patience: float, *, loads: bool) -> None:
        self.dog = Watchdog(patience, loads=loads)
        self.said: list[str] = []
        self.barked = anyio.Event()

    async def run(self) -> None:
        self.said.append(await self.dog.wait_for_failure())
        self.barked.set()

    async def hear(self, *reports: AnyReport) -> None:
        """Each is read in a turn of its own."""
        for report in reports:
            self.dog.hear(report)
            await settle()


@asynccontextmanager
async def watching(patience: float, *, loads: bool = True) -> AsyncIterator[Barks]:
    barks = Barks(patience, loads=loads)
    async with anyio.create_task_group() as group:
        group.start_soon(barks.run)
        yield barks
        group.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_SECOND_LOOK", 0.05)


def test_silence_after_the_model_is_loaded() -> None:
    """Before that it may take as long as it takes."""

    async def scenario() -> None:
        async with watching(0.05) as barks:
            await barks.hear(Alive(step=0))
            await anyio.sleep(0.2)  # the silence is what is tested
            assert barks.said == []
            await barks.hear(Loaded(card=CARD))
            await barks.barked.wait()
            assert barks.said == ["it has given no sign of life for 0.05 s"]

    run(scenario)


def test_silence_of_a_child_that_has_nothing_to_load() -> None:
    """It works from its first report on, whatever it waits for before it says that it serves."""

    async def scenario() -> None:
        async with watching(0.05, loads=False) as barks:
            await anyio.sleep(0.2)  # the silence is what is tested
            assert barks.said == []
            await barks.hear(Alive())
            await barks.barked.wait()
            assert barks.said == ["it has given no sign of life for 0.05 s"]

    run(scenario)


def test_a_child_that_has_nothing_to_load_must_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(watchdog, "START_TIMEOUT", 0.1)
        async with watching(0.05, loads=False) as barks:
            await barks.barked.wait()
            assert barks.said == ["it has not begun to work after 0.1 s"]

    run(scenario)


def test_an_engine_that_reports_is_left_alone() -> None:
    """Idle, or in one step after the other, each of which may be late once: the whole machine may have stood still."""

    async def scenario() -> None:
        async with watching(0.1) as barks:
            await barks.hear(Loaded(card=CARD))
            for step in range(10):
                await barks.hear(Alive(step=step, step_age=99.0), Alive(step=step, step_age=0.1 if step % 2 else None))
                await anyio.sleep(0.03)
            assert barks.said == []

    run(scenario)


def test_a_step_that_does_not_end() -> None:
    async def scenario() -> None:
        async with watching(10.0) as barks:
            await barks.hear(Loaded(card=CARD), Alive(step=4, step_age=10.5), Alive(step=5, step_age=10.5))
            assert barks.said == []
            await barks.hear(Alive(step=5, step_age=11.5))
            assert barks.said == ["a step has not ended after 10 s"]

    run(scenario)


def test_patience_without_end() -> None:
    async def scenario() -> None:
        async with watching(0.0) as barks:
            await barks.hear(Loaded(card=CARD), Alive(step=4, step_age=1e9), Alive(step=4, step_age=1e9))
            await anyio.sleep(0.2)  # the silence is what is tested
            assert barks.said == []

    run(scenario)
