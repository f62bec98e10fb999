"""What web pages of other origins may do: Starlette's middleware in two halves, with the guard between them.

The inner half answers preflights, so that they are watched and bounded as every other request; they need no key, and
are no work. The outer half adds the headers to whatever leaves the guard, errors included, without which a page could
not read why it was refused. Without origins there is neither half: browsers then keep the pages away.
"""

from functools import partial

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.config import CorsConfig

_EXPOSED = ("X-Request-Id", "X-Tenure-Request-Id", "Retry-After")


def answer_preflights(app: ASGIApp, config: CorsConfig) -> ASGIApp:
    """Return what the guard runs."""
    if not config.origins:
        return app
    return partial(_answer, app, _middleware(app, config))


def say_whose_pages(guard: ASGIApp, config: CorsConfig) -> ASGIApp:
    """Return what the server runs."""
    if not config.origins:
        return guard
    return partial(_mark, guard, _middleware(guard, config))


def _middleware(app: ASGIApp, config: CorsConfig) -> CORSMiddleware:
    return CORSMiddleware(
        app,
        allow_origins=config.origins,
        allow_methods=config.methods,
        allow_headers=config.headers,
        allow_credentials=config.credentials,
        expose_headers=_EXPOSED,
    )


async def _answer(app: ASGIApp, middleware: CORSMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
    headers = Headers(scope=scope)
    if scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers:
        response = middleware.preflight_response(request_headers=headers)
        await response(scope, receive, send)
    else:
        await app(scope, receive, send)


async def _mark(guard: ASGIApp, middleware: CORSMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await middleware.simple_response(scope, receive, send, request_headers=Headers(scope=scope))
    else:
        await guard(scope, receive, send)
