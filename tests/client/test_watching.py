"""A watcher of a request is told everything that becomes of it, in order and at its time, however late it comes."""

import pytest

from tenure.client.generation import GenerationHandle
from tenure.outcomes import Outcome
from tenure.wire.messages import Ended, ItemOutput, Refused
from tests.tasks import run

OUTPUTS = [ItemOutput(1, 0, [5]), ItemOutput(1, 0, [6])]
ENDED = Ended(request=1, outcome=Outcome.OK, queue_seconds=0.5)


class Watcher:
    def __init__(self) -> None:
        self.told: list[object] = []
        self.times: list[float] = []

    def admitted(self, now: float) -> None:
        self._note("admitted", now)

    def output(self, output: ItemOutput, now: float) -> None:
        self._note(output, now)

    def ended(self, ended: Ended | None, now: float) -> None:
        self._note(ended, now)

    def _note(self, what: object, now: float) -> None:
        self.told.append(what)
        self.times.append(now)


@pytest.mark.parametrize("after", range(5))
def test_all_is_told_whenever_the_watcher_comes(after: int) -> None:
    """Outputs may come in the same moment as the admission, before the handler has had its turn."""

    async def scenario() -> None:
        handle, watcher = GenerationHandle(1, lambda *_: None), Watcher()
        events = [handle.admit, *(lambda o=output: handle.deliver(o) for output in OUTPUTS), lambda: handle.end(ENDED)]
        for number, event in enumerate(events):
            if number == after:
                handle.watch(watcher)
            event()
        if after == len(events):
            handle.watch(watcher)
        assert watcher.told == ["admitted", *OUTPUTS, ENDED]
        assert watcher.times == sorted(watcher.times)

    run(scenario)


def test_a_lost_engine_is_told_once() -> None:
    async def scenario() -> None:
        handle, watcher = GenerationHandle(1, lambda *_: None), Watcher()
        handle.admit()
        handle.watch(watcher)
        handle.lose()
        assert watcher.told == ["admitted", None]

    run(scenario)


def test_of_a_refused_request_there_is_nothing_to_tell() -> None:
    async def scenario() -> None:
        handle, watcher = GenerationHandle(1, lambda *_: None), Watcher()
        handle.watch(watcher)
        handle.refuse(Refused(request=1, outcome=Outcome.QUEUE_FULL, code="queue_full", message="full"))
        assert watcher.told == []
        asked, other = GenerationHandle(2, lambda *_: None), Watcher()
        asked.watch(other)
        asked.lose()
        assert other.told == []

    run(scenario)
