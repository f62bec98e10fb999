"""What web pages of other origins may do: Starlette's middleware in two halves, with the guard between them.

The inner half answers preflights, so that they are watched and bounded as every other request; they need no key, and
are no work. The outer half adds the headers to whatever leaves the guard, errors included, without which a page could
not read why it was refused. Without origins there is neither half: browsers then keep the pages away.
"""

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.config import CorsConfig

_EXPOSED = ("X-Request-Id", "X-Tenure-Request-Id", "Retry-After")


def answer_preflights(app: ASGIApp, config: CorsConfig) -> ASGIApp:
    """Return what the guard runs."""
    return Preflights(app, config) if config.origins else app


def add_cors_headers(guard: ASGIApp, config: CorsConfig) -> ASGIApp:
    """Return what the server runs."""
    return Marked(guard, config) if config.origins else guard


class Preflights:
    """The inner half."""

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
    """The outer half."""

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
