"""`POST /v1/completions`."""

import msgspec

from tenure.api.call import Call
from tenure.api.completion_reply import CompletionChunks, completion_body
from tenure.api.completion_types import CompletionRequest
from tenure.api.context import AppContext
from tenure.api.decoding import decode_body
from tenure.api.fields import guided_fields
from tenure.api.generate import Format, run_job
from tenure.api.selection import select_model
from tenure.api.threads import in_thread_if_long
from tenure.api.validate import completion_job

DECODER = msgspec.json.Decoder(CompletionRequest)
FORMAT = Format(id_prefix="cmpl-", chunks=CompletionChunks, body=completion_body)


async def completions(call: Call[AppContext]) -> None:
    request = decode_body(call.body, DECODER)
    for name in guided_fields(request):
        call.context.notices.ignored_field(name)
    chosen = select_model(call, request.model)
    priority = call.headers.get("x-vllm-priority")
    settings, size = call.context.settings, len(call.body)
    job = await in_thread_if_long(
        lambda: completion_job(request, chosen.text, chosen.window, settings, priority), size, settings.thread_above
    )
    await run_job(call, chosen.engine, job, FORMAT)
