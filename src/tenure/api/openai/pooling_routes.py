"""The handlers of the routes for vectors and classes. They differ in the body they take and in their plan."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from tenure.api.cohere.embed import EmbedRequest, embed_v1_plan, embed_v2_plan
from tenure.api.common.call import Call
from tenure.api.common.pooling_fields import PoolingFields
from tenure.api.common.pooling_job import run_pooling
from tenure.api.common.reply import ReplyHead, fingerprint
from tenure.api.common.selection import Chosen, select_model
from tenure.api.openai.embedding_types import ClassifyRequest, EmbeddingRequest, PoolingRequest
from tenure.api.openai.pooling_plans import PoolingPlan, asked_task, classify_plan, embeddings_plan, pooling_plan
from tenure.config import ApiSettings
from tenure.http.decoding import decode_body
from tenure.pooling import PoolingTask

RequestT = TypeVar("RequestT", bound=PoolingFields)


@dataclass(frozen=True)
class PoolingHandler(Generic[RequestT]):
    """The handler of one route: decode, choose a model, validate, run, write."""

    decoder: msgspec.json.Decoder[RequestT]
    tasks: Callable[[RequestT], tuple[str, ...]]
    """Of which the model must do one."""
    plan: Callable[[RequestT, Chosen, ApiSettings, str | None], PoolingPlan]
    """The last argument is the header `X-Vllm-Priority`."""

    async def __call__(self, call: Call) -> None:
        settings = call.context.settings
        request = decode_body(call.body, self.decoder)
        chosen = select_model(call, request.model, *self.tasks(request))
        plan = await call.compute(lambda: self.plan(request, chosen, settings, call.priority))
        name = chosen.text.name
        head = ReplyHead(call.request_id, int(time.time()), name, fingerprint(settings.version))
        vectors = await run_pooling(call, chosen.engine, plan.job, head.id)
        numbers = sum(vector.size for vector in vectors)  # to write one takes less than to read a character
        body = await call.compute(lambda: plan.body(head, vectors), numbers)
        await call.respond(200, body)


def _embeds(_: PoolingFields) -> tuple[str, ...]:
    return (PoolingTask.EMBED.value,)


def _classifies(_: PoolingFields) -> tuple[str, ...]:
    return (PoolingTask.CLASSIFY.value,)


embeddings = PoolingHandler(msgspec.json.Decoder(EmbeddingRequest), _embeds, embeddings_plan)
embed_v1 = PoolingHandler(msgspec.json.Decoder(EmbedRequest), _embeds, embed_v1_plan)
embed_v2 = PoolingHandler(msgspec.json.Decoder(EmbedRequest), _embeds, embed_v2_plan)
pooling = PoolingHandler(msgspec.json.Decoder(PoolingRequest), asked_task, pooling_plan)
classify = PoolingHandler(msgspec.json.Decoder(ClassifyRequest), _classifies, classify_plan)
