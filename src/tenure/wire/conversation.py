"""One connection at work: what is put into its outbox is sent, what arrives is handled, until it is lost."""

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from tenure.wire.framing import Channel, PeerGone
from tenure.wire.outbox import Outbox

Received = TypeVar("Received")


async def converse(
    channel: Channel[Received], outbox: Outbox, handle: Callable[[Received, TaskGroup], None]
) -> PeerGone:
    """Return why the connection was lost. `handle` raises PeerGone to end it; tasks that it starts end with it."""
    reason = PeerGone("nothing can be sent to the other side")
    async with anyio.create_task_group() as group:
        group.start_soon(_write, outbox, group)
        try:
            while True:
                for message in await channel.receive():
                    handle(message, group)
        except PeerGone as error:
            reason = error
        group.cancel_scope.cancel()
    return reason


async def _write(outbox: Outbox, group: TaskGroup) -> None:
    try:
        await outbox.run()
    except PeerGone:
        group.cancel_scope.cancel()
