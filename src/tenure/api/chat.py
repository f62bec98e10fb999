"""`POST /v1/chat/completions`."""

import msgspec

from tenure.api.call import Call
from tenure.api.chat_reply import ChatChunks, chat_body
from tenure.api.chat_types import ChatRequest
from tenure.api.context import AppContext
from tenure.api.decoding import decode_body
from tenure.api.fields import guided_fields
from tenure.api.generate import Format, run_job
from tenure.api.selection import select_model
from tenure.api.threads import in_thread_if_long
from tenure.api.validate import chat_job

DECODER = msgspec.json.Decoder(ChatRequest)
FORMAT = Format(id_prefix="chatcmpl-", chunks=ChatChunks, body=chat_body)


async def chat_completions(call: Call[AppContext]) -> None:
    request = decode_body(call.body, DECODER)
    for name in guided_fields(request):
        call.context.notices.ignored_field(name)
    chosen = select_model(call, request.model)
    priority = call.headers.get("x-vllm-priority")
    settings, size = call.context.settings, len(call.body)
    job = await in_thread_if_long(
        lambda: chat_job(request, chosen.text, chosen.window, settings, priority), size, settings.thread_above
    )
    await run_job(call, chosen.engine, job, FORMAT)
