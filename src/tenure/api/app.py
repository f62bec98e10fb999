"""The HTTP application as a value: the route table, what it says of itself, and the guard around it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from starlette.types import ASGIApp

from tenure.api import operations, pooling_routes
from tenure.api.cancel_routes import CancelledReplies, CancelledReply, CancelRequests, cancel_many, cancel_one
from tenure.api.chat_types import ChatRequest
from tenure.api.cohere_embed import EmbedReply, EmbedRequest, EmbedV1Reply
from tenure.api.completion_types import CompletionRequest
from tenure.api.context import AppContext
from tenure.api.cors import answer_preflights
from tenure.api.dispatch import Dispatcher
from tenure.api.embedding_types import (
    Classification,
    ClassifyRequest,
    EmbeddingRequest,
    Embeddings,
    PooledReply,
    PoolingRequest,
)
from tenure.api.errors import Dialect
from tenure.api.generation_routes import chat_completions, completions
from tenure.api.guard import Guard
from tenure.api.journal import Tally
from tenure.api.openapi import Describe, build_document
from tenure.api.reporting import Reporter
from tenure.api.response_types import ChatChunk, ChatCompletion, Completion, CompletionChunk
from tenure.api.routes import Route, RouteTable
from tenure.api.score_routes import META_PATH, rerank, score
from tenure.api.score_types import RerankReply, RerankRequest, ScoreReply, ScoreRequest
from tenure.api.tokenize_routes import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
    detokenize,
    tokenize,
)
from tenure.config import CorsConfig, HttpLimits, KeyRing
from tenure.process.counters import CounterSchema


def route_table() -> RouteTable:
    """Every route that there is."""
    return RouteTable(
        (
            Route("/v1/chat/completions", ("POST",), chat_completions, "chatcmpl-", work=True, body=True),
            Route("/v1/completions", ("POST",), completions, "cmpl-", work=True, body=True),
            Route("/v1/embeddings", ("POST",), pooling_routes.embeddings, "embd-", work=True, body=True),
            Route("/v1/embed", ("POST",), pooling_routes.embed_v1, "embd-", work=True, body=True),
            Route("/v2/embed", ("POST",), pooling_routes.embed_v2, "embd-", work=True, body=True),
            Route("/pooling", ("POST",), pooling_routes.pooling, "pool-", work=True, body=True),
            Route("/classify", ("POST",), pooling_routes.classify, "classify-", work=True, body=True),
            Route("/tokenize", ("POST",), tokenize, body=True),
            Route("/detokenize", ("POST",), detokenize, body=True),
            Route("/score", ("POST",), score, "score-", work=True, body=True),
            Route("/v1/score", ("POST",), score, "score-", work=True, body=True),
            *(
                Route(path, ("POST",), rerank, "score-", work=True, body=True, dialect=Dialect.RERANK)
                for path in ("/rerank", "/v1/rerank", META_PATH)
            ),
            Route("/v1/requests/{id}/cancel", ("POST",), cancel_one),
            Route("/v1/requests/cancel", ("POST",), cancel_many, body=True),
            Route("/v1/models", ("GET",), operations.list_models),
            Route("/v1/models/{model:path}", ("GET",), operations.show_model),
            Route("/health", ("GET",), operations.health, open_without_key=True),
            Route("/ready", ("GET",), operations.ready, open_without_key=True),
            Route("/ping", ("GET", "POST"), operations.health, open_without_key=True),
            Route("/version", ("GET",), operations.version, open_without_key=True),
            Route("/load", ("GET",), operations.load),
            Route("/ledger", ("GET",), operations.ledger),
            Route("/metrics", ("GET",), operations.metrics),
            Route("/openapi.json", ("GET",), operations.openapi),
            Route("/docs", ("GET",), operations.docs),
        )
    )


def counter_schema(models: Sequence[str], workers: int) -> CounterSchema:
    """What the processes of a server count; equal in all of them."""
    return CounterSchema(workers=workers, routes=route_table().work_paths(), models=tuple(models))


DESCRIPTIONS: Mapping[str, Describe] = {
    "/v1/chat/completions": Describe("Answer a conversation.", ChatRequest, ChatCompletion, ChatChunk),
    "/v1/completions": Describe("Continue prompts.", CompletionRequest, Completion, CompletionChunk),
    "/v1/embeddings": Describe("Embed texts.", EmbeddingRequest, Embeddings),
    "/v1/embed": Describe("Embed texts, as Cohere's first API does.", EmbedRequest, EmbedV1Reply),
    "/v2/embed": Describe("Embed texts, as Cohere's API does.", EmbedRequest, EmbedReply),
    "/pooling": Describe("Whatever vectors the model has.", PoolingRequest, PooledReply),
    "/classify": Describe("Classify texts.", ClassifyRequest, Classification),
    "/tokenize": Describe("Token ids of a text or a conversation.", TokenizeRequest, TokenizeReply, unready=True),
    "/detokenize": Describe("The text of token ids.", DetokenizeRequest, DetokenizeReply, unready=True),
    "/score": Describe("Score pairs of texts.", ScoreRequest, ScoreReply),
    "/v1/score": Describe("The same as /score.", ScoreRequest, ScoreReply),
    "/rerank": Describe("Order documents by how well they fit a query.", RerankRequest, RerankReply),
    "/v1/rerank": Describe("The same as /rerank.", RerankRequest, RerankReply),
    "/v2/rerank": Describe("The same as /rerank, with `meta` in the answer.", RerankRequest, RerankReply),
    "/v1/requests/{id}/cancel": Describe("End a request by its id.", response=CancelledReply),
    "/v1/requests/cancel": Describe("End requests by ids or labels.", CancelRequests, CancelledReplies),
    "/v1/models": Describe("List the models.", response=operations.ModelList),
    "/v1/models/{model:path}": Describe("Show one model.", response=operations.ModelEntry),
    "/health": Describe("Liveness: the server runs."),
    "/ready": Describe("Readiness: every engine admits requests.", unready=True),
    "/ping": Describe("The same as /health."),
    "/version": Describe("The server's version.", response=operations.VersionReply),
    "/load": Describe("How many work requests are open.", response=operations.LoadReply),
    "/ledger": Describe("Who holds what.", response=operations.LedgerReply),
    "/metrics": Describe("Prometheus metrics.", media_type="text/plain"),
    "/openapi.json": Describe("This document."),
    "/docs": Describe("A page that shows this document.", media_type="text/html"),
}


def build_app(
    context: AppContext,
    tally: Tally,
    limits: HttpLimits,
    keys: KeyRing = KeyRing(),  # noqa: B008 -- frozen
    cors: CorsConfig = CorsConfig(),  # noqa: B008
    reporter: Reporter = Reporter(),  # noqa: B008
) -> Guard:
    """Return the ASGI application: the guard around the dispatcher."""
    routes = route_table()
    inner = answer_preflights(build_inner(context, routes, limits), cors)
    settings = context.settings
    return Guard(inner, routes, tally, limits, keys, settings.root_path, reporter, settings.request_timeout)


def build_inner(context: AppContext, routes: RouteTable, limits: HttpLimits) -> ASGIApp:
    """Return what the guard runs; middleware may go around it."""
    document = build_document(routes.routes, DESCRIPTIONS, context.settings.version, context.settings.root_path)
    return Dispatcher(replace(context, document=msgspec.json.encode(document)), limits)
