"""The innermost application: it runs the handler of the route that the guard has found, and answers its errors."""

import logging

from starlette.types import Receive, Scope, Send

from tenure.api.common.call import Call
from tenure.api.common.context import AppContext
from tenure.client import GenerationFailed
from tenure.config import HttpLimits
from tenure.http.exchange import EXCHANGE_KEY, Exchange, Stage

logger = logging.getLogger("tenure.api")


class Dispatcher:
    """The ASGI application inside the guard and any middleware: calls the handler of the matched route."""

    def __init__(self, context: AppContext, limits: HttpLimits) -> None:
        self._context = context
        self._limits = limits

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["extensions"][EXCHANGE_KEY]
        call = Call(exchange, self._context, send, self._limits)
        if exchange.head.asks_options and "OPTIONS" not in exchange.head.route.methods:
            await call.respond(204, b"", headers={"allow": ", ".join((*exchange.head.route.methods, "OPTIONS"))})
            return
        try:
            await exchange.head.route.handler(call)
        except Exception as exc:
            await _answer_failure(call, exchange, exc)


async def _answer_failure(call: Call, exchange: Exchange, exc: Exception) -> None:
    error = call.explain(exc)
    if error.code == "internal_error":
        ours = None if isinstance(exc, GenerationFailed) else exc  # the engine knows what went wrong there
        logger.error("request %s failed: %s", call.request_id, error.message, exc_info=ours)
    if exchange.decided and exchange.error is None:
        return
    recorded = exchange.fail(error)
    if exchange.stage is Stage.OPEN:
        await call.respond_error(recorded)
    elif exchange.stage is Stage.STARTED:
        raise recorded from exc
