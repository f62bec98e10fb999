"""Spans: one for each work request, with what happened to it at its times, a child of the caller's span."""

from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.datastructures import Headers

from tenure.api.app import build_app
from tenure.config import HttpLimits
from tenure.http.request_head import RequestHead
from tenure.http.routes import Route
from tenure.observe.journal import EngineParams, Times, Tokens
from tenure.observe.request_observer import RequestObserver
from tenure.observe.request_summary import RequestSummary
from tenure.observe.tracing import SpanTracer
from tenure.outcomes import Outcome
from tests.api.generation_rig import Rig

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


def head(**headers: str) -> RequestHead:
    async def nothing(_call: object) -> None: ...

    route = Route("/v1/chat/completions", ("POST",), nothing)
    return RequestHead(route, "POST", route.path, {}, Headers(headers), "5f", "mine", None, 10.0)


CANCELLED = RequestSummary(
    head=head(),
    model="tiny",
    outcome=Outcome.CLIENT_CANCELLED,
    status=499,
    code="",
    times=Times(received=10.0, admitted=10.5, released=12.5, queue_seconds=1.0),
    gone_at=12.0,
    ended_at=13.0,
    clock_offset=1000.0,
    tokens=Tokens(prompt=7),
    params=EngineParams(),
    finish_reasons=(),
)


def spans(*summaries: RequestSummary) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    tracer = SpanTracer(exporter, "1.2")
    for summary in summaries:
        tracer.record(summary)
    tracer.close()
    return list(exporter.get_finished_spans())


def test_a_cancelled_request_has_a_span_with_what_happened_to_it():
    [span] = spans(CANCELLED)
    assert (span.name, span.kind) == ("chat tiny", SpanKind.SERVER)
    assert (span.start_time, span.end_time) == (1010 * 10**9, 1013 * 10**9)
    assert [(event.name, event.timestamp / 1e9) for event in span.events] == [
        ("admitted", 1010.5),
        ("started", 1011.5),
        ("client_gone", 1012.0),
        ("released", 1012.5),
    ]
    assert span.attributes["tenure.outcome"] == span.attributes["error.type"] == "client_cancelled"
    assert span.attributes["http.response.status_code"] == 499
    assert "gen_ai.latency.time_to_first_token" not in span.attributes
    assert span.status.status_code is StatusCode.UNSET, "the caller's leaving is no error of the server"


def test_our_errors_are_marked_as_such():
    failed = replace(CANCELLED, outcome=Outcome.ENGINE_ERROR, status=500, code="internal_error", gone_at=None)
    [span] = spans(failed)
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "internal_error"


def test_the_callers_trace_goes_on():
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    [span] = spans(replace(CANCELLED, head=head(**headers)))
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.context.trace_state["vendor"] == "1"


def test_a_caller_that_does_not_sample_gets_no_span():
    assert spans(replace(CANCELLED, head=head(traceparent=f"00-{TRACE}-{PARENT}-00"))) == []


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"])
def test_a_trace_context_that_is_none_begins_a_new_trace(header):
    [span] = spans(replace(CANCELLED, head=head(traceparent=header)))
    assert span.parent is None


def test_the_service_is_named_by_the_environment(monkeypatch):
    [span] = spans(CANCELLED)
    assert span.resource.attributes["service.name"] == "tenure"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    [span] = spans(CANCELLED)
    assert span.resource.attributes["service.name"] == "mine"
    assert span.resource.attributes["service.version"] == "1.2"


def test_a_request_through_the_guard():
    exporter = InMemorySpanExporter()
    tracer = SpanTracer(exporter, "1.2")
    rig = Rig()
    rig.app = build_app(rig.context, RequestObserver(rig.counts, tracer=tracer), HttpLimits())
    reply = rig.chat("hi", n=2, max_tokens=5, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    rig.complete(temperature=-1)
    tracer.close()
    answered, refused = exporter.get_finished_spans()
    assert f"{answered.context.trace_id:032x}" == TRACE
    assert [event.name for event in answered.events] == ["admitted", "started", "first_output", "released"]
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.choice.count": 2,
        "gen_ai.usage.input_tokens": reply.json()["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.response.finish_reasons": ("stop",),
        "http.response.status_code": 200,
        "tenure.outcome": "ok",
    }
    assert wanted.items() <= dict(answered.attributes).items()
    assert answered.attributes["tenure.request.id"] in reply.json()["id"]
    assert (refused.name, refused.attributes["http.response.status_code"]) == ("text_completion tiny", 400)
    assert refused.status.status_code is StatusCode.UNSET
