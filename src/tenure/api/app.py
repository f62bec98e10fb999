"""The HTTP application as a value: the route table and the guard around it."""

from dataclasses import replace

import msgspec
from starlette.types import ASGIApp

from tenure.api.cohere.embed import EmbedReply, EmbedRequest, EmbedV1Reply
from tenure.api.common.chat_types import ChatRequest
from tenure.api.common.context import AppContext
from tenure.api.dispatch import Dispatcher
from tenure.api.openai.completion_types import CompletionRequest
from tenure.api.openai.embedding_types import (
    Classification,
    ClassifyRequest,
    EmbeddingRequest,
    Embeddings,
    PooledReply,
    PoolingRequest,
)
from tenure.api.openai.generation_routes import chat_completions, completions
from tenure.api.openai.pooling_routes import classify, embed_v1, embed_v2, embeddings, pooling
from tenure.api.openai.response_types import ChatChunk, ChatCompletion, Completion, CompletionChunk
from tenure.api.openai.tokenize_routes import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
    detokenize,
    tokenize,
)
from tenure.api.openapi import build_document
from tenure.api.operations import routes as operations
from tenure.api.operations.cancel_routes import (
    CancelledReplies,
    CancelledReply,
    CancelRequests,
    cancel_many,
    cancel_one,
)
from tenure.api.rerank.routes import META_PATH, rerank, score
from tenure.api.rerank.types import RerankReply, RerankRequest, ScoreReply, ScoreRequest
from tenure.config import CorsConfig, HttpLimits, KeyRing
from tenure.http.cors import answer_preflights
from tenure.http.errors import Dialect
from tenure.http.exchange import Observer
from tenure.http.guard import Guard
from tenure.http.routes import Description, Handler, Route, RouteTable
from tenure.wire.messages import ServerLedger


def route_table(root_path: str = "") -> RouteTable:
    """Every route that there is."""
    return RouteTable((*_WORK, *_TOOLS, *_OPERATIONS), root_path)


def _work(path: str, handler: Handler, id_prefix: str, about: Description, dialect: Dialect = Dialect.PLAIN) -> Route:
    return Route(path, ("POST",), handler, id_prefix, work=True, body=True, dialect=dialect, about=about)


def _rerank(path: str, summary: str) -> Route:
    return _work(path, rerank, "score-", Description(summary, RerankRequest, RerankReply), Dialect.RERANK)


def _get(path: str, handler: Handler, about: Description) -> Route:
    return Route(path, ("GET",), handler, about=about)


def _open(path: str, handler: Handler, about: Description, methods: tuple[str, ...] = ("GET",)) -> Route:
    return Route(path, methods, handler, open_without_key=True, about=about)


_CHAT = Description("Answer a conversation.", ChatRequest, ChatCompletion, ChatChunk)
_COMPLETE = Description("Continue prompts.", CompletionRequest, Completion, CompletionChunk)
_EMBED_V1 = Description("Embed texts, as Cohere's first API does.", EmbedRequest, EmbedV1Reply)
_TOKENIZE = Description("Token ids of a text or a conversation.", TokenizeRequest, TokenizeReply, unready=True)
_DETOKENIZE = Description("The text of token ids.", DetokenizeRequest, DetokenizeReply, unready=True)
_ONE_MODEL = Description("Show one model.", response=operations.ModelEntry)
_CANCEL = Description("End a request by its id.", response=CancelledReply, unready=True)
_CANCEL_MANY = Description("End requests by ids or labels.", CancelRequests, CancelledReplies, unready=True)

_WORK = (
    _work("/v1/chat/completions", chat_completions, "chatcmpl-", _CHAT),
    _work("/v1/completions", completions, "cmpl-", _COMPLETE),
    _work("/v1/embeddings", embeddings, "embd-", Description("Embed texts.", EmbeddingRequest, Embeddings)),
    _work("/v1/embed", embed_v1, "embd-", _EMBED_V1),
    _work("/v2/embed", embed_v2, "embd-", Description("Embed texts, as Cohere's API does.", EmbedRequest, EmbedReply)),
    _work("/pooling", pooling, "pool-", Description("Whatever vectors the model has.", PoolingRequest, PooledReply)),
    _work("/classify", classify, "classify-", Description("Classify texts.", ClassifyRequest, Classification)),
    _work("/score", score, "score-", Description("Score pairs of texts.", ScoreRequest, ScoreReply)),
    _work("/v1/score", score, "score-", Description("The same as /score.", ScoreRequest, ScoreReply)),
    _rerank("/rerank", "Order documents by how well they fit a query."),
    _rerank("/v1/rerank", "The same as /rerank."),
    _rerank(META_PATH, "The same as /rerank, with `meta` in the answer."),
)
_TOOLS = (
    Route("/tokenize", ("POST",), tokenize, body=True, about=_TOKENIZE),
    Route("/detokenize", ("POST",), detokenize, body=True, about=_DETOKENIZE),
    Route("/v1/requests/{id}/cancel", ("POST",), cancel_one, about=_CANCEL),
    Route("/v1/requests/cancel", ("POST",), cancel_many, body=True, about=_CANCEL_MANY),
)
_OPERATIONS = (
    _get("/v1/models", operations.list_models, Description("List the models.", response=operations.ModelList)),
    _get("/v1/models/{model:path}", operations.show_model, _ONE_MODEL),
    _open("/health", operations.health, Description("Liveness, once the server has been ready.", unready=True)),
    _open("/ready", operations.ready, Description("Readiness: every engine admits requests.", unready=True)),
    _open("/ping", operations.health, Description("The same as /health.", unready=True), ("GET", "POST")),
    _open("/version", operations.version, Description("The server's version.", response=operations.VersionReply)),
    _get("/load", operations.load, Description("How many work requests are open.", response=operations.LoadReply)),
    _get("/ledger", operations.ledger, Description("Who holds what.", response=ServerLedger)),
    _get("/metrics", operations.metrics, Description("Prometheus metrics.", media_type="text/plain")),
    _get("/openapi.json", operations.openapi, Description("This document.")),
    _get("/docs", operations.docs, Description("A page that shows this document.", media_type="text/html")),
)


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
    return Guard(inner, routes, observer, limits, keys, settings.request_timeout)


def build_inner(context: AppContext, routes: RouteTable, limits: HttpLimits) -> ASGIApp:
    """Return what the guard runs; middleware may go around it."""
    document = build_document(routes.routes, context.settings.version, context.settings.root_path)
    return Dispatcher(replace(context, document=msgspec.json.encode(document)), limits)
