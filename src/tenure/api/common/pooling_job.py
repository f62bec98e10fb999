"""A validated request for pooled vectors, and how it is run: as one request of the engine.

So it is admitted, refused and cancelled whole: leaving `feed_pooled` early ends every item in the engine before the
scope is left.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from tenure.api.common.call import Call
from tenure.api.common.pooling_fields import Shared
from tenure.client import EndOfGeneration
from tenure.http.errors import internal_error
from tenure.pooling import Pooled, PoolingParams
from tenure.sampling import SamplingParams
from tenure.token_lists import TokenLists
from tenure.wire.messages import ItemOutput, Submit

Vectors = npt.NDArray[np.float32]
_THREAD_ABOVE = 1 << 18
"""Bytes of vectors from which the work on them leaves the event loop; each vector counts `_VECTOR_BYTES` more."""
_VECTOR_BYTES = 2048


class PoolingJob(msgspec.Struct, frozen=True):
    """Everything that the engine needs; nothing later can find fault with it."""

    model: str
    """Its first served name."""
    submit: Submit
    """The message for the engine, but for the ids of the request."""

    @classmethod
    def of(
        cls,
        model: str,
        prompts: Iterable[Sequence[int]],
        params: PoolingParams,
        shared: Shared,
        *,
        segments: Sequence[int] = (),
        unattended: Sequence[int] = (),
    ) -> "PoolingJob":
        """`prompts` have their special tokens; none is empty or too long. The others are as in `Submit`."""
        submit = Submit(
            prompts=TokenLists.of(prompts),
            sampling=SamplingParams(max_tokens=0),
            priority=shared.priority,
            cache_salt=shared.cache_salt,
            pooling=params,
            segments=list(segments),
            unattended=list(unattended),
        )
        return cls(model, submit)


async def run_pooling(call: Call, job: PoolingJob) -> list[Vectors]:
    """Return what the engine makes of each prompt, in order. Raises as `feed_pooled`."""
    found: dict[int, Vectors] = {}
    await feed_pooled(call, job, found.__setitem__)
    return [found[index] for index in range(len(job.submit.prompts))]


async def feed_pooled(call: Call, job: PoolingJob, take: Callable[[int, Vectors], None]) -> None:
    """Give `take` what the engine makes of each prompt, by its number, as soon as it comes and in any order.

    Vectors are (width,), or (tokens, width) where the task asks for that. All numbers are finite: what is not is a 500.
    `take` may be called in another thread, one call at a time. Raises what the engine client raises for a refusal or
    an end.
    """
    missing = len(job.submit.prompts)
    parts: dict[int, list[Vectors]] = {}
    every_token = job.submit.pooling is not None and job.submit.pooling.task.every_token

    def take_all(outputs: Sequence[ItemOutput]) -> None:
        for output in outputs:
            assert output.pooled is not None
            rows = parts.setdefault(output.index, [])
            rows.append(_vectors(output.pooled, every_token))
            if output.finish_reason is not None:
                del parts[output.index]
                take(output.index, np.concatenate(rows) if len(rows) > 1 else rows[0])

    async with call.generation(call.engine(job.model), job.submit) as handle:
        try:
            while True:
                outputs = await handle.receive()
                missing -= sum(output.finish_reason is not None for output in outputs)
                size = sum(_VECTOR_BYTES + output.size for output in outputs)
                await call.context.workers.run_if_long(partial(take_all, outputs), size, _THREAD_ABOVE)
        except EndOfGeneration:
            pass
    if missing:
        raise RuntimeError(f"the engine ended a pooling request with {missing} items unanswered")


def _vectors(pooled: Pooled, every_token: bool) -> Vectors:
    numbers: Vectors = np.frombuffer(pooled.data, dtype="<f4").astype(np.float32, copy=False)
    if not np.isfinite(numbers).all():
        raise internal_error("The model gave a number that is not finite (NaN or infinity).")
    return numbers.reshape(pooled.rows, -1) if every_token else numbers
