"""Finds out that a child does not go on, though it has not died: it is frozen, or a step of its does not end.

A child reports once a second. Silence counts from when it says that it works, since loading a model takes as long as it
takes; an API process, which loads none, works from its first report on, whatever has become of the engines, and must
make that within `START_TIMEOUT`. Every finding needs a second look: when the supervisor itself, or the whole machine,
has stood still, the reports are yet to be read.
"""

import anyio

from tenure.process.reports import Alive, AnyReport, Loaded
from tenure.wire.step_watch import StepWatch

START_TIMEOUT = 120.0
"""Seconds that a child without a model may take to its first report."""
_SECOND_LOOK = 2.0


class Watchdog:
    """Watches over one life of a child. `patience`: seconds of silence, or of one step; 0 is for ever.

    `loads`: it has something to load before silence counts.
    """

    def __init__(self, patience: float, *, loads: bool = True) -> None:
        self._patience = patience
        self._loads = loads
        self._works = anyio.Event()
        self._heard = anyio.Event()
        self._steps = StepWatch(patience)

    def hear(self, report: AnyReport) -> None:
        """Take a report of the child."""
        if isinstance(report, Loaded) or not self._loads:
            self._works.set()
        if isinstance(report, Alive):
            self._steps.look(report.step, report.step_age)
        self._heard.set()
        self._heard = anyio.Event()

    async def wait_for_failure(self) -> str:
        """Wait until the child is to be taken for dead; returns why. Never, if patience has no end."""
        if not self._patience:
            await anyio.sleep_forever()
        if not self._loads and not await self._begins():
            return f"it has not begun to work after {max(START_TIMEOUT, self._patience):g} s"
        await self._works.wait()
        while not self._steps.endless:
            if not await self._listen(self._patience) and not await self._listen(_SECOND_LOOK):
                return f"it has given no sign of life for {self._patience:g} s"
        return f"a step has not ended after {self._patience:g} s"

    async def _begins(self) -> bool:
        with anyio.move_on_after(max(START_TIMEOUT, self._patience)):
            await self._works.wait()
        return self._works.is_set()

    async def _listen(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._heard.wait()
            return True
        return False
