"""Run a scenario on an event loop of its own; a task that it leaves behind fails it."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

_SETTLE_ROUNDS = 50
_WITHIN = 10.0


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run `scenario`, which may take 10 s at most."""

    async def guarded() -> None:
        before = asyncio.all_tasks()
        with anyio.fail_after(_WITHIN):
            await scenario()
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - before
        assert not left, left

    anyio.run(guarded)


async def settle() -> None:
    """Let every task go on until it waits for something from outside the event loop."""
    for _ in range(_SETTLE_ROUNDS):
        await anyio.lowlevel.checkpoint()
