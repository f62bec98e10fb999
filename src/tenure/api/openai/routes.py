"""OpenAI's routes, with vLLM's additions. They differ in the body they take, its rules, and how answers are written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from tenure.api.common.body_reading import BodyReading
from tenure.api.common.call import Call
from tenure.api.common.fields import SamplingFields
from tenure.api.common.generate import Format, run_job
from tenure.api.common.job import Job
from tenure.api.common.pooling_fields import PoolingFields
from tenure.api.common.pooling_plan import PoolingHandler, embeds
from tenure.api.openai.chat_reply import ChatChunks, chat_body
from tenure.api.openai.completion_reply import CompletionChunks, completion_body
from tenure.api.openai.embedding_types import (
    Classification,
    ClassifyRequest,
    EmbeddingRequest,
    Embeddings,
    PooledReply,
    PoolingRequest,
)
from tenure.api.openai.kv_transfer import tickets_of
from tenure.api.openai.pooling_plans import (
    ClassesForm,
    EmbeddingsForm,
    PooledForm,
    classify_plan,
    embeddings_plan,
    pooling_plan,
    requested_tasks,
)
from tenure.api.openai.request_types import ChatRequest, CompletionRequest
from tenure.api.openai.response_types import ChatChunk, ChatCompletion, Completion, CompletionChunk
from tenure.api.openai.tokenize_routes import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
    detokenize,
    show_read,
    tokenize,
)
from tenure.api.openai.validate import chat_job, completion_job
from tenure.config import ApiSettings
from tenure.http.routes import Description, Route, work_route
from tenure.pooling import PoolingTask
from tenure.prompts.text_model import TextModel
from tenure.prompts.token_prompts import Window

RequestT = TypeVar("RequestT", bound=SamplingFields)


@dataclass(frozen=True)
class GenerationHandler(Generic[RequestT]):
    """The handler of one route: decode, choose a model, validate, run."""

    decoder: msgspec.json.Decoder[RequestT]
    validate: Callable[[RequestT, TextModel, Window, ApiSettings, str | None], Job]
    """The last argument is the header `X-Vllm-Priority`."""
    form: Format

    async def __call__(self, call: Call) -> None:
        job = await call.read(Job)
        try:
            await run_job(call, job, self.form)
        except BaseException:
            call.turn_back(job.transfer.tickets)  # most are claimed by now, and are let go of with their claims
            raise

    def read(self, body: bytes | bytearray, reading: BodyReading) -> Job:
        request = reading.decode(body, self.decoder)
        reading.ignored += request.ignored()
        reading.tickets += tickets_of(request)
        selected = reading.choose(request.model, "generate")
        return self.validate(request, selected.text, selected.window, reading.settings, reading.routed.priority)


_chat_completions = GenerationHandler(msgspec.json.Decoder(ChatRequest), chat_job, Format(ChatChunks, chat_body))
_completions = GenerationHandler(
    msgspec.json.Decoder(CompletionRequest), completion_job, Format(CompletionChunks, completion_body)
)


def _classifies(_: PoolingFields) -> tuple[str, ...]:
    return (PoolingTask.CLASSIFY.value,)


_embeddings = PoolingHandler(msgspec.json.Decoder(EmbeddingRequest), embeds, embeddings_plan, EmbeddingsForm)
_pooling = PoolingHandler(msgspec.json.Decoder(PoolingRequest), requested_tasks, pooling_plan, PooledForm)
_classify = PoolingHandler(msgspec.json.Decoder(ClassifyRequest), _classifies, classify_plan, ClassesForm)

_CHAT = Description("Answer a conversation.", ChatRequest, ChatCompletion, ChatChunk)
_COMPLETE = Description("Continue prompts.", CompletionRequest, Completion, CompletionChunk)
_POOL = Description("Whatever vectors the model has.", PoolingRequest, PooledReply)
_TOKENIZE = Description("Token ids of a text or a conversation.", TokenizeRequest, TokenizeReply, unready=True)
_DETOKENIZE = Description("The text of token ids.", DetokenizeRequest, DetokenizeReply, unready=True)

ROUTES = (
    work_route("/v1/chat/completions", _chat_completions, "chatcmpl-", _CHAT),
    work_route("/v1/completions", _completions, "cmpl-", _COMPLETE),
    work_route("/v1/embeddings", _embeddings, "embd-", Description("Embed texts.", EmbeddingRequest, Embeddings)),
    work_route("/pooling", _pooling, "pool-", _POOL),
    work_route("/classify", _classify, "classify-", Description("Classify texts.", ClassifyRequest, Classification)),
    Route("/tokenize", ("POST",), show_read, reader=tokenize, about=_TOKENIZE),
    Route("/detokenize", ("POST",), show_read, reader=detokenize, about=_DETOKENIZE),
)
