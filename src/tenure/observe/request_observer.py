"""Reporting of work requests: counters, an access log line, a span, and on demand the body."""

import logging
import time
from typing import Protocol

from tenure.http.exchange import Exchange
from tenure.observe.counters import WorkerCounters
from tenure.observe.journal import Journal, Times
from tenure.observe.request_summary import RequestSummary, log_fields, log_text, summary_of
from tenure.process.ended_requests import EndedRequests
from tenure.wire.messages import CancelledRequest

access_logger = logging.getLogger("tenure.access")


class Tracer(Protocol):
    """Exports a span for each summary."""

    def record(self, summary: RequestSummary) -> None: ...


class RequestObserver:
    """The `Observer` of an API process's guard: counts each work request in and out, logs and traces its end.

    `log_bodies`: the number of characters of a request's body that are logged; 0 logs none.
    """

    def __init__(self, counter: WorkerCounters, *, log_bodies: int = 0, tracer: Tracer | None = None) -> None:
        self.ended = EndedRequests()
        self._counter = counter
        self._log_bodies = log_bodies
        self._tracer = tracer

    def opened(self, exchange: Exchange) -> Journal:
        if exchange.work:
            self._counter.arrive(exchange.head.route.path)
        return Journal(self._counter, Times(exchange.head.received_at))

    def received(self, exchange: Exchange) -> None:
        """Log the beginning of the body if `log_bodies` is set; bodies hold callers' data."""
        if self._log_bodies and exchange.work:
            most = 4 * self._log_bodies  # a character has 4 bytes at most
            start = b"".join(part[:most] for part in exchange.body.parts[:most])[:most].decode(errors="replace")
            more = len(start) > self._log_bodies or exchange.body.size > most
            shown = start[: self._log_bodies] + ("..." if more else "")
            head = exchange.head
            access_logger.info(
                "request %s received: %s",
                head.request_id,
                ascii(shown),
                extra={"fields": {"id": head.request_id, "route": head.route.path, "body": shown}},
            )

    def closed(self, exchange: Exchange) -> None:
        if not exchange.work:
            return
        summary = summary_of(exchange, time.monotonic())
        exchange.journal.close(summary.outcome)
        self._counter.leave(summary.route, summary.model, summary.outcome)
        self._counter.observe("request_seconds", summary.seconds, summary.model)
        if summary.times.admitted is not None:
            self._counter.observe("admitted_request_seconds", summary.seconds, summary.model)
        if summary.gone_at is not None:
            self._counter.observe("cancel_seconds", summary.ended_at - summary.gone_at, summary.model)
        if self.ended.get(summary.head.request_id) is None:
            self.ended.note(CancelledRequest(summary.head.request_id, summary.outcome, 0.0))
        if access_logger.isEnabledFor(logging.INFO):
            access_logger.info("%s", log_text(summary), extra={"fields": log_fields(summary)})
        if self._tracer is not None:
            self._tracer.record(summary)
