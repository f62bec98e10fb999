"""A request for vectors: the job for the engine, the writer of the reply, and the rules that API families share."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from tenure.api.common.call import Call
from tenure.api.common.long_inputs import chunked, merged
from tenure.api.common.pooling_fields import PoolingFields, Shared
from tenure.api.common.pooling_job import PoolingJob, Vectors, run_pooling
from tenure.api.common.reply import ReplyHead, fingerprint
from tenure.api.common.selection import SelectedModel, select_model
from tenure.checkpoints.profile import ModelProfile
from tenure.config import ApiSettings
from tenure.http.decoding import decode_body
from tenure.http.errors import invalid_request
from tenure.pooling import PoolingParams, PoolingTask
from tenure.prompts.ranges import RANGES, check_number
from tenure.prompts.text_inputs import TokenizedInput

Write = Callable[[ReplyHead, Sequence[Vectors]], bytes]


@dataclass(frozen=True)
class PoolingPlan:
    """A request for vectors. `write` makes the body from one vector (or matrix) for each input."""

    job: PoolingJob
    weights: list[list[int]]
    """For each input, the tokens of each of its prompts; see `long_inputs.Chunks`."""
    normalize: bool
    write: Write

    def body(self, head: ReplyHead, vectors: Sequence[Vectors]) -> bytes:
        """The reply's body; `vectors` are those of the job's prompts, in order."""
        return self.write(head, merged(vectors, self.weights, normalize=self.normalize))


def pooled_plan(
    inputs: Sequence[TokenizedInput],
    params: PoolingParams,
    selected: SelectedModel,
    shared: Shared,
    write: Callable[[ReplyHead, Sequence[Vectors], int], bytes],
    param: str = "input",
) -> PoolingPlan:
    """Make a plan for inputs of any length, split into chunks where needed; `write` also gets the tokens read."""
    chunks = chunked(inputs, selected.text_window, param)
    job = PoolingJob(selected.text, chunks.prompts, params, priority=shared.priority, cache_salt=shared.cache_salt)
    tokens = job.prompt_tokens
    return PoolingPlan(
        job=job,
        weights=chunks.weights,
        normalize=selected.text.profile.normalize and params.activation,
        write=lambda head, vectors: write(head, vectors, tokens),
    )


RequestT = TypeVar("RequestT", bound=PoolingFields)


@dataclass(frozen=True)
class PoolingHandler(Generic[RequestT]):
    """The handler of one route: decode, choose a model, validate, run, write."""

    decoder: msgspec.json.Decoder[RequestT]
    tasks: Callable[[RequestT], tuple[str, ...]]
    """The tasks of which the model must support one."""
    plan: Callable[[RequestT, SelectedModel, ApiSettings, str | None], PoolingPlan]
    """The last argument is the header `X-Vllm-Priority`."""

    async def __call__(self, call: Call) -> None:
        settings = call.context.settings
        request = decode_body(call.body, self.decoder)
        selected = select_model(call, request.model, *self.tasks(request))
        plan = await call.compute(lambda: self.plan(request, selected, settings, call.priority))
        name = selected.text.name
        head = ReplyHead(call.request_id, int(time.time()), name, fingerprint(settings.version))
        vectors = await run_pooling(call, selected.engine, plan.job, head.id)
        numbers = sum(vector.size for vector in vectors)  # to write one takes less than to read a character
        body = await call.compute(lambda: plan.body(head, vectors), numbers)
        await call.respond(200, body)


def embeds(_: PoolingFields) -> tuple[str, ...]:
    """The tasks of a route that embeds."""
    return (PoolingTask.EMBED.value,)


def check_dimensions(value: float | None, profile: ModelProfile, name: str = "dimensions") -> int | None:
    """Return the size to which embeddings are cut; None for the model's own size. Raises a 400."""
    if value is None:
        return None
    wanted = int(check_number(name, value, RANGES[name]))
    size = profile.embedding_size
    if wanted == size:
        return None
    if wanted not in profile.dimensions:
        sizes = ", ".join(str(known) for known in sorted({*profile.dimensions, size}))
        raise invalid_request(f"`{name}` may be one of: {sizes}. The model was trained for no other sizes.", name)
    return wanted


def longest_input(selected: SelectedModel, settings: ApiSettings) -> int:
    """The most tokens of an input that is embedded, in chunks or whole."""
    window = selected.text_window
    return max(window, settings.max_chunked_len) if settings.chunk_long_inputs else window


def default_prompt(profile: ModelProfile) -> str:
    """The prompt before every text whose request names none; may be empty."""
    return "" if profile.default_prompt is None else profile.prompts[profile.default_prompt]
