"""What tests of concurrent code share: a task that a scenario leaves behind fails it, and any await can be hit."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import anyio
import anyio.lowlevel

LOOPS = ("asyncio", "uvloop")
_SETTLE_ROUNDS = 50
_WITHIN = 60.0


def run(scenario: Callable[[], Awaitable[None]], loop: str = "asyncio") -> None:
    """Run `scenario` on one of `LOOPS`. It may take a minute at most, and must leave no task behind."""

    async def guarded() -> None:
        before = asyncio.all_tasks()
        with anyio.fail_after(_WITHIN):
            await scenario()
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - before
        assert not left, left

    anyio.run(guarded, backend_options={"use_uvloop": loop == "uvloop"})


async def settle() -> None:
    """Let every task go on until it waits for something from outside the event loop."""
    for _ in range(_SETTLE_ROUNDS):
        await anyio.lowlevel.checkpoint()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so that tells nobody; `run` bounds how long."""
    while not condition():  # noqa: ASYNC110 -- plain state has no event
        await anyio.sleep(0.001)


class Interrupted:
    """Awaits a coroutine and calls `interrupt` at its k-th suspension."""

    def __init__(self, work: Coroutine[Any, Any, None], at: int, interrupt: Callable[[], object]) -> None:
        self._work = work
        self._at = at
        self._interrupt = interrupt
        self.reached = False

    def __await__(self) -> Generator[Any, Any, None]:
        steps = 0
        inner = self._work.__await__()
        error: BaseException | None = None
        while True:
            try:
                waits_for = inner.send(None) if error is None else inner.throw(error)
            except StopIteration:
                return
            steps += 1
            if steps == self._at:
                self.reached = True
                self._interrupt()
            try:
                yield waits_for
                error = None
            except BaseException as exc:
                error = exc
