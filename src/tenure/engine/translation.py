"""Conversions between the messages of the wire and the types of the core."""

from tenure.core.report import Output
from tenure.core.request import Request, RequestSpec
from tenure.errors import Refusal
from tenure.wire import messages as wire
from tenure.wire.token_masks import attach


def request(number: int, submit: wire.Submit, now: float) -> Request:
    """The core's request for a `Submit`; `number` is the engine's own, `now` is on the loop's clock."""
    spec = RequestSpec(
        list(submit.prompts),
        attach(submit.sampling, submit.masks),
        n=submit.n,
        priority=submit.priority,
        cache_salt=submit.cache_salt,
        pooling=submit.pooling,
        segments=submit.segments,
        unattended=submit.unattended,
        public_id=submit.public_id,
        label=submit.label,
        arrived_at=now,
        begin_by=None if submit.begin_within is None else now + submit.begin_within,
        end_by=None if submit.end_within is None else now + submit.end_within,
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


def item_output(number: int, output: Output) -> wire.ItemOutput:
    """The message for an output of the scheduler; `number` is the connection's own."""
    return wire.ItemOutput(
        request=number,
        index=output.index,
        tokens=output.tokens,
        logprobs=output.logprobs,
        finish_reason=output.finish_reason,
        stop_token=output.stop_token,
        prompt_logprobs=output.prompt_logprobs,
        cached_tokens=output.cached_tokens,
        pooled=output.pooled,
    )
