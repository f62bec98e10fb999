"""CORS: Starlette's middleware, split into a part inside the guard and a part around it.

The inner part answers preflights, so that they are watched and bounded as every other request; they need no key and
do not count as work. The outer part adds the CORS headers to every response of the guard, errors included: without
them a page could not read an error. Without `allowed_origins` neither part is installed.
"""

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.config import CorsConfig

_EXPOSED = ("X-Request-Id", "X-Tenure-Request-Id", "Retry-After")


def answer_preflights(app: ASGIApp, config: CorsConfig) -> ASGIApp:
    """Return `app` behind the answer to preflights; `app` itself when no origin is allowed."""
    return Preflights(app, config) if config.origins else app


def add_cors_headers(guard: ASGIApp, config: CorsConfig) -> ASGIApp:
    """Return `guard` with CORS headers on its responses; `guard` itself when no origin is allowed."""
    return Marked(guard, config) if config.origins else guard


class Preflights:
    """ASGI middleware: answers preflights and passes every other request to `app`."""

    def __init__(self, app: ASGIApp, config: CorsConfig) -> None:
        self._app = app
        self._middleware = _middleware(app, config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers:
            response = self._middleware.preflight_response(request_headers=headers)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class Marked:
    """ASGI middleware: adds the CORS headers to every response of `guard`."""

    def __init__(self, guard: ASGIApp, config: CorsConfig) -> None:
        self._middleware = _middleware(guard, config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._middleware.simple_response(scope, receive, send, request_headers=Headers(scope=scope))


def _middleware(app: ASGIApp, config: CorsConfig) -> CORSMiddleware:
    return CORSMiddleware(
        app,
        allow_origins=config.origins,
        allow_methods=config.methods,
        allow_headers=config.headers,
        allow_credentials=config.credentials,
        expose_headers=_EXPOSED,
    )
