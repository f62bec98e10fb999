"""The innermost application: it runs the handler of the route that the guard has found, and answers its errors."""

import logging

from starlette.types import Message, Receive, Scope, Send

from tenure.api.call import Call
from tenure.api.context import AppContext
from tenure.api.visit import Stage, Visit
from tenure.client import GenerationFailed
from tenure.config import HttpLimits

VISIT_KEY = "tenure.visit"
logger = logging.getLogger("tenure.api")


class Dispatcher:
    """An ASGI application for inside the guard, behind whatever middleware there is between them."""

    def __init__(self, context: AppContext, limits: HttpLimits) -> None:
        self._context = context
        self._limits = limits

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        visit: Visit = scope["extensions"][VISIT_KEY]
        call = Call(visit, self._context, send, self._limits)
        if visit.arrival.asks_options and "OPTIONS" not in visit.arrival.route.methods:
            await call.respond(204, b"", headers={"allow": ", ".join((*visit.arrival.route.methods, "OPTIONS"))})
            return
        try:
            await visit.arrival.route.handler(call)
        except Exception as exc:
            await _answer_failure(call, visit, exc)


async def _answer_failure(call: Call, visit: Visit, exc: Exception) -> None:
    error = call.explain(exc)
    if error.code == "internal_error":
        ours = None if isinstance(exc, GenerationFailed) else exc  # the engine knows what went wrong there
        logger.error("request %s failed: %s", call.request_id, error.message, exc_info=ours)
    if visit.decided and visit.error is None:
        return
    told = visit.fail(error)
    if visit.stage is Stage.OPEN:
        await call.respond_error(told)
    elif visit.stage is Stage.STARTED:
        raise exc


def inner_scope(scope: Scope, visit: Visit) -> Scope:
    """What the guard hands inwards, for the dispatcher to find the visit in."""
    return {**scope, "extensions": {**scope.get("extensions", {}), VISIT_KEY: visit}}


def replay(visit: Visit) -> Receive:
    """A `receive` that gives the body once, and `http.disconnect` when the visit is over."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": visit.body, "more_body": False}
        await visit.over.wait()
        return {"type": "http.disconnect"}

    return receive
