"""Spans of work requests, by OpenTelemetry (the extra `otel`); imported only where an endpoint is given.

A span is made when its request is over, from the summary that the log line is made from too, with the times at which
things happened: so there is one for each request that is counted, and none that is never ended. A caller's W3C trace
context makes it a child of the caller's span, and decides whether it is recorded. Attributes have the names of the
semantic conventions for generative AI, and those that vLLM uses for latencies.

Owner: the API process, which closes the tracer after its last request. Spans leave in batches, in a thread of the
library's own; where nobody takes them they are dropped, and requests go on.
"""

import logging
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tenure.observe.request_summary import RequestSummary
from tenure.outcomes import Outcome

logger = logging.getLogger("tenure.api")

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/embed": "embeddings",
    "/v2/embed": "embeddings",
    "/pooling": "embeddings",
}
_EXPORT_TIMEOUT = 3.0
"""Seconds; also how long the end of the process may be held up."""


class SpanTracer:
    """Sends a span for each summary to `exporter`."""

    def __init__(self, exporter: SpanExporter, version: str) -> None:
        named = Resource({SERVICE_NAME: "tenure", SERVICE_VERSION: version})
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES of the environment are merged last and so take precedence.
        self._provider = TracerProvider(resource=named.merge(OTELResourceDetector().detect()))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tenure", version)
        self._context = TraceContextTextMapPropagator()

    def record(self, summary: RequestSummary) -> None:
        """Make the span of a request that is over."""
        operation = _OPERATIONS.get(summary.route, summary.route.rpartition("/")[2])
        span = self._tracer.start_span(
            f"{operation} {summary.model}".rstrip(),
            context=self._context.extract(summary.head.headers),
            kind=SpanKind.SERVER,
            attributes=_attributes(summary, operation),
            start_time=_nanoseconds(summary, summary.times.received),
        )
        for name, at in _events(summary).items():
            span.add_event(name, timestamp=_nanoseconds(summary, at))
        # As the HTTP conventions have it for servers: a caller's fault, or its leaving, is no error of ours.
        if summary.status >= 500 or summary.outcome is Outcome.ENGINE_ERROR:
            span.set_status(Status(StatusCode.ERROR, summary.outcome.value))
        span.end(_nanoseconds(summary, summary.ended_at))

    def close(self) -> None:
        """Send what is left, and stop."""
        self._provider.shutdown()


def open_tracer(endpoint: str, version: str) -> SpanTracer:
    """A tracer that sends to `endpoint` by OTLP over HTTP."""
    return SpanTracer(OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT), version)


def _events(summary: RequestSummary) -> dict[str, float]:
    times = summary.times
    events = {
        "admitted": times.admitted,
        "started": summary.started_at,
        "first_output": times.first_output,
        "client_gone": summary.gone_at,
        "released": times.released,
    }
    return dict(sorted(((name, at) for name, at in events.items() if at is not None), key=lambda event: event[1]))


def _attributes(summary: RequestSummary, operation: str) -> Mapping[str, str | int | float | tuple[str, ...]]:
    sampling, times = summary.params.sampling, summary.times
    found: dict[str, str | int | float | tuple[str, ...] | None] = {
        "http.request.method": summary.head.method,
        "http.route": summary.route,
        "http.response.status_code": summary.status,
        "gen_ai.provider.name": "tenure",
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": summary.model or None,
        "gen_ai.response.model": summary.model or None,
        "gen_ai.response.finish_reasons": summary.finish_reasons or None,
        "gen_ai.latency.e2e": summary.seconds,
        "gen_ai.latency.time_to_first_token": summary.first_token_seconds,
        "gen_ai.latency.time_in_queue": times.queue_seconds,
        "tenure.request.id": summary.head.request_id,
        "tenure.request.label": summary.head.label or None,
        "tenure.outcome": summary.outcome.value,
        "error.type": summary.code or (summary.outcome.value if summary.outcome is not Outcome.OK else None),
    }
    if times.admitted is not None:
        found["gen_ai.usage.input_tokens"] = summary.tokens.prompt
        found["gen_ai.usage.output_tokens"] = summary.tokens.output
    if sampling is not None:
        found["gen_ai.request.choice.count"] = summary.params.choices
        found["gen_ai.request.max_tokens"] = sampling.max_tokens
        found["gen_ai.request.temperature"] = sampling.temperature
        found["gen_ai.request.top_p"] = sampling.top_p
    return {name: value for name, value in found.items() if value is not None}


def _nanoseconds(summary: RequestSummary, at: float) -> int:
    return int((at + summary.clock_offset) * 1e9)
