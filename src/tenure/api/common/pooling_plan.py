"""A request for vectors: the job for the engine, the writer of the reply, and the rules that API families share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from tenure.api.common.body_reading import BodyReading, SelectedModel
from tenure.api.common.call import Call
from tenure.api.common.json_parts import Part
from tenure.api.common.long_inputs import chunked, merged
from tenure.api.common.pooling_fields import PoolingFields, Shared
from tenure.api.common.pooling_job import PoolingJob, Vectors, run_pooling
from tenure.api.common.reply import ReplyHead
from tenure.checkpoints.profile import ModelProfile
from tenure.config import ApiSettings
from tenure.http.errors import invalid_request
from tenure.pooling import PoolingParams, PoolingTask
from tenure.prompts.ranges import RANGES, check_number
from tenure.prompts.text_inputs import TokenizedInput


class Form(Protocol):
    """How a route answers: a value, since plans may be made in another process."""

    def reply(self, head: ReplyHead, vectors: Sequence[Vectors], tokens: int, attached: Sequence[Part], /) -> object:
        """The reply, for `json_parts`. `tokens` were read."""
        ...


FormT = TypeVar("FormT", bound=Form)


class PoolingPlan(msgspec.Struct, Generic[FormT], frozen=True):
    """A request for vectors. `form` says how the one vector (or matrix) of each input is told."""

    job: PoolingJob
    weights: list[list[int]]
    """For each input, the tokens of each of its prompts; see `long_inputs.Chunks`."""
    normalize: bool
    form: FormT

    def reply(self, head: ReplyHead, vectors: Sequence[Vectors], attached: Sequence[Part]) -> object:
        """The reply to what the engine made of the job's prompts, for `json_parts`."""
        whole = merged(vectors, self.weights, normalize=self.normalize)
        return self.form.reply(head, whole, self.job.submit.prompts.total, attached)


def pooled_plan(
    inputs: Sequence[TokenizedInput],
    params: PoolingParams,
    selected: SelectedModel,
    shared: Shared,
    form: FormT,
    param: str = "input",
) -> PoolingPlan[FormT]:
    """Have inputs of any length read, in chunks where they need to."""
    chunks = chunked(inputs, selected.text_window, param)
    job = PoolingJob.of(selected.text.name, chunks.prompts, params, shared)
    return PoolingPlan(job, chunks.weights, selected.text.profile.normalize and params.activation, form)


RequestT = TypeVar("RequestT", bound=PoolingFields)


@dataclass(frozen=True)
class PoolingHandler(Generic[RequestT]):
    """The handler of one route: decode, choose a model, validate, run, write."""

    decoder: msgspec.json.Decoder[RequestT]
    tasks: Callable[[RequestT], tuple[str, ...]]
    """Of which the model must do one."""
    plan: Callable[[RequestT, SelectedModel, BodyReading], PoolingPlan[Any]]
    form: type[Form]
    """Of its plans."""

    async def __call__(self, call: Call) -> None:
        plan = await call.read(PoolingPlan[self.form])  # type: ignore[name-defined]
        head = call.reply_head()
        vectors = await run_pooling(call, plan.job)
        size = sum(vector.size for vector in vectors)  # to write a number takes less than to read a character
        size += sum(map(len, call.attached))
        await call.respond_long(lambda: plan.reply(head, vectors, call.attached), size)

    def read(self, body: bytes | bytearray, reading: BodyReading) -> PoolingPlan[Any]:
        request = reading.decode(body, self.decoder)
        selected = reading.choose(request.model, *self.tasks(request))
        return self.plan(request, selected, reading)


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
