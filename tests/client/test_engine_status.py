"""What is believed of an engine, by its signs of life and their absence."""

import anyio
import msgspec
import pytest

from tenure.client import GenerationFailed, Refusal
from tenure.client.engine_status import EngineStatus, Health
from tenure.outcomes import Outcome
from tenure.wire import messages as wire
from tests.client.engines import Stream, bench, output
from tests.tasks import run, until


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def beat(step: int, age: float | None, tokens: int = 0) -> wire.Heartbeat:
    return wire.Heartbeat(step=step, step_age=age, outstanding_tokens=tokens)


def test_a_step_that_does_not_end_is_seen_at_the_second_look() -> None:
    """A machine that stood still shows one old step, and then another."""
    status = EngineStatus(step_timeout=10)
    for step, age in ((1, None), (2, 10.0), (3, 99.0), (4, 0.5), (5, 99.0), (6, 99.0)):
        status.beat(beat(step, age))
        assert status.health is Health.WELL
    found = []
    for age in (100.0, 101.0, None):
        status.beat(beat(6, age))
        found.append(status.health)
    assert found == [Health.STUCK, Health.STUCK, Health.WELL]


def test_steps_may_take_for_ever_if_the_limit_is_off() -> None:
    status = EngineStatus(step_timeout=0)
    for _ in range(3):
        status.beat(beat(1, 1e6))
    assert status.health is Health.WELL


@pytest.mark.parametrize("how", ["silent", "stuck"])
def test_an_engine_that_nobody_starts_again_is_beyond_help(how: str) -> None:
    """Later than it should have been killed; at once, if it never will be."""
    clock = Clock()
    status = EngineStatus(step_timeout=10, clock=clock)
    if how == "silent":
        status.fall_silent()
        status.disconnect()
    else:
        status.beat(beat(1, 11.0))
        status.beat(beat(1, 12.0))
    assert not status.beyond_help
    clock.now += 39
    assert not status.beyond_help
    clock.now += 1
    assert status.beyond_help
    status.hear()
    status.beat(beat(2, None))
    assert not status.beyond_help
    forever = EngineStatus(step_timeout=0, clock=clock)
    forever.fall_silent()
    assert forever.beyond_help


def test_a_stuck_engine_that_dies_is_on_its_way_back() -> None:
    clock = Clock()
    status = EngineStatus(step_timeout=10, clock=clock)
    status.beat(beat(1, 11.0))
    status.beat(beat(1, 12.0))
    status.disconnect()
    clock.now += 1000
    assert not status.beyond_help


def test_requests_end_when_a_step_does_not_and_are_void_when_it_does() -> None:
    """The connection stays; what the engine says of the old requests later is for nobody."""

    async def scenario() -> None:
        async with bench(step_timeout=60) as rig:
            engine = await rig.accept_ready()
            admitted, asked = Stream(rig.client), Stream(rig.client)
            async with anyio.create_task_group() as group:
                group.start_soon(admitted.run)
                number = (await engine.hear(wire.Submit)).request
                await engine.say(wire.Admitted(request=number))
                await admitted.admitted.wait()
                group.start_soon(asked.run)
                late = (await engine.hear(wire.Submit)).request
                await engine.say(beat(7, 61.0), beat(7, 62.0))
            assert isinstance(admitted.ended, GenerationFailed)
            assert admitted.ended.outcome is Outcome.UNAVAILABLE
            assert isinstance(asked.ended, Refusal)
            assert not rig.client.ready
            assert rig.client.card is None
            assert rig.client.open_requests == 0
            assert {(await engine.hear(wire.Cancel)).request for _ in range(2)} == {number, late}
            refused = Stream(rig.client)
            await refused.run()
            assert isinstance(refused.ended, Refusal)
            # The step ends after all.
            ended = wire.Ended(request=number, outcome=Outcome.UNAVAILABLE)
            await engine.say(output(number, 3), ended, msgspec.structs.replace(ended, request=late), beat(7, None))
            await rig.client.wait_ready()
            assert rig.client.open_requests == 0
            again = Stream(rig.client)
            async with anyio.create_task_group() as group:
                group.start_soon(again.run)
                number = (await engine.hear(wire.Submit)).request
                await engine.say(wire.Admitted(request=number), output(number, 9))
                await engine.say(wire.Ended(request=number, outcome=Outcome.OK))
            assert again.tokens == [9]

    run(scenario)


def test_silence_is_remembered_until_the_engine_speaks() -> None:
    async def scenario() -> None:
        async with bench(heartbeat_timeout=0.1) as rig:
            await rig.accept_ready()
            await until(lambda: not rig.client.ready)
            engine = await rig.accept()
            assert rig.client.status.beyond_help  # nobody would kill it
            await engine.say(wire.Unready(reason="loading"))
            await until(lambda: not rig.client.status.beyond_help)

    run(scenario)
