"""The HTTP application as a value: the route table and the guard around it."""

from dataclasses import replace

import msgspec
from starlette.types import ASGIApp

from tenure.api.cohere import embed
from tenure.api.common.context import AppContext
from tenure.api.dispatch import Dispatcher
from tenure.api.openai import routes as openai
from tenure.api.openapi import build_document
from tenure.api.operations import routes as operations
from tenure.api.rerank import routes as rerank
from tenure.config import CorsConfig, HttpLimits, KeyRing
from tenure.http.cors import answer_preflights
from tenure.http.exchange import Observer
from tenure.http.guard import Guard
from tenure.http.routes import RouteTable


def route_table(root_path: str = "") -> RouteTable:
    """The table of all routes."""
    return RouteTable((*openai.ROUTES, *embed.ROUTES, *rerank.ROUTES, *operations.ROUTES), root_path)


def build_app(
    context: AppContext,
    observer: Observer,
    limits: HttpLimits,
    keys: KeyRing = KeyRing(),  # noqa: B008 -- frozen
    cors: CorsConfig = CorsConfig(),  # noqa: B008
) -> Guard:
    """Return the ASGI application: the guard around the dispatcher."""
    settings = context.settings
    routes = route_table(settings.root_path)
    inner = answer_preflights(build_inner(context, routes, limits), cors)
    return Guard(inner, routes, observer, limits, keys, settings.request_timeout, context.process)


def build_inner(context: AppContext, routes: RouteTable, limits: HttpLimits) -> ASGIApp:
    """Return what the guard runs; middleware may go around it."""
    document = build_document(routes.routes, context.settings.version, context.settings.root_path)
    return Dispatcher(replace(context, document=msgspec.json.encode(document)), limits)
