"""The handlers of the generation routes. They differ in the body they take, its rules, and how answers are written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from tenure.api.common.call import Call
from tenure.api.common.chat_types import ChatRequest
from tenure.api.common.fields import SamplingFields, guided_fields
from tenure.api.common.generate import Format, run_job
from tenure.api.common.job import Job
from tenure.api.common.selection import select_model
from tenure.api.openai.chat_reply import ChatChunks, chat_body
from tenure.api.openai.completion_reply import CompletionChunks, completion_body
from tenure.api.openai.completion_types import CompletionRequest
from tenure.api.openai.response_types import ChatChunk, CompletionChunk
from tenure.api.openai.validate import chat_job, completion_job
from tenure.config import ApiSettings
from tenure.http.decoding import decode_body
from tenure.prompts.text_model import TextModel
from tenure.prompts.window import Window

RequestT = TypeVar("RequestT", bound=SamplingFields)


@dataclass(frozen=True)
class GenerationHandler(Generic[RequestT]):
    """The handler of one route: decode, choose a model, validate, run."""

    decoder: msgspec.json.Decoder[RequestT]
    validate: Callable[[RequestT, TextModel, Window, ApiSettings, str | None], Job]
    """The last argument is the header `X-Vllm-Priority`."""
    form: Format

    async def __call__(self, call: Call) -> None:
        context = call.context
        request = decode_body(call.body, self.decoder)
        for name in guided_fields(request):
            context.notices.ignored_field(name)
        chosen = select_model(call, request.model, "generate")
        job = await call.compute(
            lambda: self.validate(request, chosen.text, chosen.window, context.settings, call.priority)
        )
        await run_job(call, chosen.engine, job, self.form)


chat_completions = GenerationHandler(
    msgspec.json.Decoder(ChatRequest), chat_job, Format(ChatChunk, ChatChunks, chat_body)
)
completions = GenerationHandler(
    msgspec.json.Decoder(CompletionRequest),
    completion_job,
    Format(CompletionChunk, CompletionChunks, completion_body),
)
