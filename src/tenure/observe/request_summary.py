"""The summary of a work request that is over, from which the access log line and the span are made."""

import json
import time
from dataclasses import dataclass
from typing import Any

from tenure.http.exchange import Exchange
from tenure.http.request_head import RequestHead
from tenure.observe.journal import EngineParams, Times, Tokens
from tenure.outcomes import Outcome

CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """A request that is over. Times are monotonic seconds; `clock_offset` added to one gives seconds since 1970."""

    head: RequestHead
    model: str
    outcome: Outcome
    status: int
    """The HTTP status; 499 when the client had left."""
    code: str
    """Of the error; empty without one."""
    times: Times
    gone_at: float | None
    ended_at: float
    clock_offset: float
    tokens: Tokens
    params: EngineParams
    finish_reasons: tuple[str, ...]

    @property
    def route(self) -> str:
        """The path of its row in the route table."""
        return self.head.route.path

    @property
    def seconds(self) -> float:
        return self.ended_at - self.times.received

    @property
    def started_at(self) -> float | None:
        """When the first step with a row of it began, computed from the engine's queue time; None without one."""
        if self.times.admitted is None or self.times.queue_seconds is None:
            return None
        started = self.times.admitted + self.times.queue_seconds
        # This process may have read that it was admitted late, together with the first output.
        return started if self.times.first_output is None else min(started, self.times.first_output)

    @property
    def first_token_seconds(self) -> float | None:
        return None if self.times.first_token is None else self.times.first_token - self.times.received

    def stages(self) -> dict[str, float]:
        """Seconds in each stage that it reached; with a single generation they add up to the total."""
        marks = [
            ("received", self.times.received),
            ("queued", self.times.admitted),
            ("prefill", self.started_at),
            ("answering", self.times.first_output),
            ("ending", self.times.released),
        ]
        reached = [(name, at) for name, at in marks if at is not None]
        until = [at for _, at in reached[1:]] + [self.ended_at]
        return {name: round(max(0.0, end - at), 6) for (name, at), end in zip(reached, until, strict=True)}


def summary_of(exchange: Exchange, now: float) -> RequestSummary:
    """The summary of an exchange that is over."""
    journal, outcome = exchange.journal, exchange.outcome()
    return RequestSummary(
        head=exchange.head,
        model=journal.model,
        outcome=outcome,
        status=CLIENT_CLOSED_REQUEST if outcome is Outcome.CLIENT_CANCELLED else exchange.status,
        code=exchange.error.code if exchange.error is not None else "",
        times=journal.times,
        gone_at=exchange.gone_at,
        ended_at=now,
        clock_offset=time.time() - time.monotonic(),
        tokens=journal.tokens,
        params=journal.params,
        finish_reasons=tuple(journal.finish_reasons),
    )


def log_fields(summary: RequestSummary) -> dict[str, Any]:
    """The fields of the structured log line of a request."""
    return {
        "id": summary.head.request_id,
        "label": summary.head.label,
        "route": summary.route,
        "model": summary.model,
        "status": summary.status,
        "outcome": summary.outcome.value,
        "code": summary.code,
        "seconds": round(summary.seconds, 6),
        "first_token_seconds": summary.first_token_seconds,
        "stages": summary.stages(),
        "prompt_tokens": summary.tokens.prompt,
        "cached_tokens": summary.tokens.cached,
        "output_tokens": summary.tokens.output,
    }


def log_text(summary: RequestSummary) -> str:
    """The same as a line of text."""
    first = "-" if summary.first_token_seconds is None else f"{summary.first_token_seconds:.3f}"
    stages = ",".join(f"{name}:{seconds:.3f}" for name, seconds in summary.stages().items())
    tokens = summary.tokens
    return (
        f"request {summary.head.request_id} label={json.dumps(summary.head.label)} route={summary.route} "
        f"model={summary.model or '-'} status={summary.status} outcome={summary.outcome} seconds={summary.seconds:.3f} "
        f"first_token={first} stages={stages} prompt_tokens={tokens.prompt} cached_tokens={tokens.cached} "
        f"output_tokens={tokens.output}"
    )
