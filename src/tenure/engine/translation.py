"""Conversions between the messages of the wire and the types of the core."""

from collections.abc import Iterable, Iterator, Sequence

from tenure.core.report import Output
from tenure.core.request import Request, RequestSpec
from tenure.errors import Refusal
from tenure.pooling import Pooled
from tenure.sampling import TokenLogprobs
from tenure.wire import messages as wire
from tenure.wire.token_masks import attach

PART_BYTES = 128 * 1024
"""About the most that one message has: an API process decodes it at once, and does nothing else meanwhile."""


def request(number: int, submit: wire.Submit, claims: Sequence[int], now: float) -> Request:
    """The core's request for a `Submit`; `number` is the engine's own, `now` is on the loop's clock.

    `claims` are those on its prompts, as in `RequestSpec`.
    """
    none = [0] * len(submit.prompts)
    spec = RequestSpec(
        list(submit.prompts),
        attach(submit.sampling, submit.masks),
        n=submit.n,
        handover=submit.handover,
        claims=claims,
        priority=submit.priority,
        cache_salt=submit.cache_salt,
        pooling=submit.pooling,
        text_bounds=list(zip(submit.segments or none, submit.unattended or none, strict=True)),
        public_id=submit.public_id,
        label=submit.label,
        arrived_at=now,
        due=(
            None if submit.begin_within is None else now + submit.begin_within,
            None if submit.end_within is None else now + submit.end_within,
        ),
    )
    return Request(number, spec)


def refused(number: int, refusal: Refusal) -> wire.Refused:
    """The message for a refusal by the gate; `number` is the connection's own."""
    return wire.Refused(
        request=number,
        outcome=refusal.outcome,
        code=refusal.code,
        message=refusal.message,
        retry_after=refusal.retry_after,
    )


def item_outputs(number: int, output: Output, ticket: str = "") -> Iterator[wire.ItemOutput]:
    """The message for an output of the scheduler, or its parts; `number` is the connection's own."""
    *parts, (prompt_logprobs, pooled) = _parts(output)
    cached = output.cached_tokens
    for logprobs, rows in parts:
        yield wire.ItemOutput(number, output.index, [], prompt_logprobs=logprobs, pooled=rows, cached_tokens=cached)
    yield wire.ItemOutput(
        request=number,
        index=output.index,
        tokens=output.tokens,
        logprobs=output.logprobs,
        finish_reason=output.finish_reason,
        stop_token=output.stop_token,
        prompt_logprobs=prompt_logprobs,
        cached_tokens=cached,
        pooled=pooled,
        ticket=ticket,
    )


def step_outputs(step: int, outputs: Iterable[wire.ItemOutput]) -> Iterator[wire.StepOutput]:
    """The messages for outputs of a step."""
    waiting, size = [], 0
    for output in outputs:
        waiting.append(output)
        size += output.size
        if size >= PART_BYTES:
            yield wire.StepOutput(step=step, outputs=waiting)
            waiting, size = [], 0
    if waiting:
        yield wire.StepOutput(step=step, outputs=waiting)


def _parts(output: Output) -> Iterator[tuple[list[TokenLogprobs | None] | None, Pooled | None]]:
    """The prompt's logprobs and the pooled vectors, a part of one of them at a time; at least one part."""
    logprobs, pooled = output.prompt_logprobs, output.pooled
    if logprobs:
        most = max(
            1, PART_BYTES // wire.LOGPROB_BYTES // (1 + max((entry.count for entry in logprobs if entry), default=0))
        )
        for start in range(0, len(logprobs), most):
            yield logprobs[start : start + most], None
    elif pooled is not None and len(pooled.data) > PART_BYTES:
        width = len(pooled.data) // pooled.rows
        most = max(1, PART_BYTES // width)
        for start in range(0, pooled.rows, most):
            data = pooled.data[start * width : (start + most) * width]
            yield None, Pooled(len(data) // width, data)
    else:
        yield logprobs, pooled
