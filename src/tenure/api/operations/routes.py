"""The routes about the server itself: models, health, load, ledger, metrics, OpenAPI document."""

import time
from typing import Literal

import anyio.to_thread
import msgspec

from tenure.api.common.call import Call
from tenure.api.common.context import AppContext
from tenure.api.operations.cancel_routes import (
    CancelledReplies,
    CancelledReply,
    CancelRequests,
    cancel_many,
    cancel_one,
    read_names,
)
from tenure.api.operations.docs_page import PAGE
from tenure.client import ServedModel
from tenure.http.errors import engine_unavailable
from tenure.http.routes import Description, Handler, Route
from tenure.observe.metrics import CONTENT_TYPE, Readings, metrics_text, tenure_families
from tenure.observe.vllm_metrics import vllm_families
from tenure.prompts.text_model import TextModel
from tenure.wire.messages import HttpLedger, ServerLedger

LEDGER_TIMEOUT = 1.0


class ModelPermission(msgspec.Struct, frozen=True, kw_only=True):
    """Constant but for its id; present because OpenAI's clients read it."""

    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`root` is the model's first name, whichever `id` is; `max_model_len` is null until the model is loaded.

    `tasks` (not in vLLM's entry) are those that the model supports.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["tenure"] = "tenure"
    root: str
    parent: str | None = None
    max_model_len: int | None
    permission: list[ModelPermission]
    tasks: tuple[str, ...]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelEntry]


class VersionReply(msgspec.Struct, frozen=True):
    version: str


class LoadReply(msgspec.Struct, frozen=True):
    """Open requests on work routes."""

    server_load: int


async def list_models(call: Call) -> None:
    models = call.context.models
    entries = [_entry(call.context, served, name) for served in models.models for name in served.names]
    await call.respond_json(ModelList(data=entries))


async def show_model(call: Call) -> None:
    name = call.path_params["model"]
    await call.respond_json(_entry(call.context, call.context.models[name], name))


async def health(call: Call) -> None:
    """Liveness, from when the server was ready for the first time: scripts wait for this before their first request.

    Later it is 200 also while the server drains, and while an engine is being started again.
    """
    if not call.context.was_ready():
        raise engine_unavailable("The server is starting.")
    await call.respond(200, b"")


async def ready(call: Call) -> None:
    context = call.context
    if context.draining():
        raise engine_unavailable("The server is draining.")
    waiting = [served.name for served in context.models.models if not served.ready]
    if waiting:
        raise engine_unavailable(f"Not ready yet: {', '.join(waiting)}.")
    await call.respond(200, b"")


async def version(call: Call) -> None:
    await call.respond_json(VersionReply(call.context.settings.version))


async def load(call: Call) -> None:
    await call.respond_json(LoadReply(call.context.counts().open))


async def ledger(call: Call) -> None:
    context = call.context
    engines = await context.models.ledgers(LEDGER_TIMEOUT, holders=True)
    http = context.counts()
    reply = ServerLedger(
        conserved=all(engine.conserved for engine in engines if engine.answering),
        epoch=context.epoch,
        uptime_s=round(time.monotonic() - context.started_at, 3),
        http=HttpLedger(http.open, http.arrivals, dict(http.outcomes)),
        engines=engines,
    )
    await call.respond_json(reply)


async def metrics(call: Call) -> None:
    context = call.context
    engines = await context.models.ledgers(LEDGER_TIMEOUT)
    cards = [served.card for served in context.models.models if served.card is not None]
    readings = Readings(context.settings.version, context.counts(), engines, cards)
    # Made in a thread: it takes some milliseconds, for which streams would stand still.
    text = await anyio.to_thread.run_sync(_metrics_text, readings, context.settings.vllm_metrics)
    await call.respond(200, text, media_type=CONTENT_TYPE)


def _metrics_text(readings: Readings, vllm_names: bool) -> bytes:
    return metrics_text([*tenure_families(readings), *(vllm_families(readings) if vllm_names else ())])


async def openapi(call: Call) -> None:
    await call.respond(200, call.context.document)


async def docs(call: Call) -> None:
    await call.respond(200, PAGE.encode(), media_type="text/html; charset=utf-8")


def _entry(context: AppContext, served: ServedModel, name: str) -> ModelEntry:
    card = served.card
    text: TextModel | None = context.texts.get(served.name)
    created = text.created if text is not None else 0
    return ModelEntry(
        id=name,
        created=created,
        root=served.name,
        max_model_len=card.max_model_len if card is not None else None,
        permission=[ModelPermission(id=f"modelperm-{name}", created=created)],
        tasks=served.tasks,
    )


def _get(path: str, handler: Handler, about: Description) -> Route:
    return Route(path, ("GET",), handler, about=about)


def _open(path: str, handler: Handler, about: Description, methods: tuple[str, ...] = ("GET",)) -> Route:
    return Route(path, methods, handler, open_without_key=True, about=about)


_CANCEL = Description("End a request by its id.", response=CancelledReply, unready=True)
_CANCEL_MANY = Description("End requests by ids or labels.", CancelRequests, CancelledReplies, unready=True)

ROUTES = (
    Route("/v1/requests/{id}/cancel", ("POST",), cancel_one, about=_CANCEL),
    Route("/v1/requests/cancel", ("POST",), cancel_many, reader=read_names, about=_CANCEL_MANY),
    _get("/v1/models", list_models, Description("List the models.", response=ModelList)),
    _get("/v1/models/{model:path}", show_model, Description("Show one model.", response=ModelEntry)),
    _open("/health", health, Description("Liveness, once the server has been ready.", unready=True)),
    _open("/ready", ready, Description("Readiness: every engine admits requests.", unready=True)),
    _open("/ping", health, Description("The same as /health.", unready=True), ("GET", "POST")),
    _open("/version", version, Description("The server's version.", response=VersionReply)),
    _get("/load", load, Description("How many work requests are open.", response=LoadReply)),
    _get("/ledger", ledger, Description("Who holds what.", response=ServerLedger)),
    _get("/metrics", metrics, Description("Prometheus metrics.", media_type="text/plain")),
    _get("/openapi.json", openapi, Description("This document.")),
    _get("/docs", docs, Description("A page that shows this document.", media_type="text/html")),
)
