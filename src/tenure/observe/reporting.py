"""What the guard tells the world of work requests: a log line at each end, a span, and the body if it is asked for."""

import logging
from typing import Protocol

from tenure.http.exchange import Exchange
from tenure.observe.request_summary import RequestSummary, log_fields, log_text

access_logger = logging.getLogger("tenure.access")


class Tracer(Protocol):
    """Where spans go."""

    def record(self, summary: RequestSummary) -> None: ...


class Reporter:
    """`log_bodies`: how many characters of a request's body are logged when it has been read; 0 is none at all."""

    def __init__(self, *, log_bodies: int = 0, tracer: Tracer | None = None) -> None:
        self._log_bodies = log_bodies
        self._tracer = tracer

    def received(self, exchange: Exchange) -> None:
        """A work request is complete. Its body holds what the caller wrote: it is shown only where that is wanted."""
        if self._log_bodies and exchange.work:
            body = exchange.body.decode(errors="replace")
            shown = body[: self._log_bodies] + ("..." if len(body) > self._log_bodies else "")
            head = exchange.head
            access_logger.info(
                "request %s received: %s",
                head.request_id,
                ascii(shown),
                extra={"fields": {"id": head.request_id, "route": head.route.path, "body": shown}},
            )

    def ended(self, summary: RequestSummary) -> None:
        """A work request is over."""
        if access_logger.isEnabledFor(logging.INFO):
            access_logger.info("%s", log_text(summary), extra={"fields": log_fields(summary)})
        if self._tracer is not None:
            self._tracer.record(summary)
