"""Ends requests by response id or label: those of this API process directly, others through an engine.

The API process that serves a request decides its outcome, once, so a repeated cancel gets the same answer. Every open
request without an outcome is aborted, in whichever stage it is. The latest ended requests are remembered here, also
when their engine is gone.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import anyio

from tenure.api.common.context import AppContext
from tenure.http import errors
from tenure.http.exchange import Exchange
from tenure.outcomes import Outcome
from tenure.process.ended_requests import EndedRequests
from tenure.request_id import process_of
from tenure.wire.messages import CancelByName, CancelledRequest

Known = list[CancelledRequest] | None


async def end_named(exchanges: Iterable[Exchange], ended: EndedRequests, names: CancelByName) -> list[CancelledRequest]:
    """Abort the named open `exchanges` and wait for their end; returns them and the named ones in `ended`."""
    started, ids, labels = time.monotonic(), dict.fromkeys(names.ids), frozenset(names.labels)
    named = [exchange for exchange in exchanges if exchange.work and _is_named(exchange, ids, labels, names.owner)]
    for exchange in named:
        if not exchange.decided:
            exchange.fail(errors.from_outcome(Outcome.ABORTED, ""))
            exchange.scope.cancel()
    for exchange in named:
        await exchange.ended.wait()
        request_id = exchange.head.request_id
        ended.note(CancelledRequest(request_id, exchange.outcome(), time.monotonic() - started))
        ids[request_id] = None
    return [request for request_id in ids if (request := ended.get(request_id)) is not None]


def _is_named(exchange: Exchange, ids: Iterable[str], labels: Iterable[str], owner: str) -> bool:
    head = exchange.head
    return head.request_id in ids or (head.label in labels and exchange.options.owner == owner)


async def cancel(context: AppContext, ids: Sequence[str], labels: Sequence[str], owner: str) -> list[CancelledRequest]:
    """End requests of any API process; returns how the known ones have ended.

    Raises a 503 when none is known and some process that may know one did not answer.
    """
    own = [request_id for request_id in ids if process_of(request_id) == context.process]
    others = [request_id for request_id in ids if process_of(request_id) != context.process]
    found: dict[str, CancelledRequest] = {}
    unsure = False

    async def ask(end: Callable[[CancelByName], Awaitable[Known]], names: CancelByName) -> None:
        nonlocal unsure
        requests = await end(names)
        unsure |= requests is None
        found.update((request.id, request) for request in requests or ())

    async with anyio.create_task_group() as group:
        group.start_soon(ask, context.end_named, CancelByName(sequence=0, ids=own, labels=list(labels), owner=owner))
        if others or labels:
            names = CancelByName(sequence=0, ids=others, labels=list(labels), owner=owner)
            group.start_soon(ask, context.models.cancel_by_name, names)
    if unsure and not found:
        raise errors.engine_unavailable("Not every process of the server could be asked; try again shortly.")
    return list(found.values())
