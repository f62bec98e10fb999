"""The figures of a real server: what happened to a request, and nothing else, can be read in metrics, log and spans."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from uuid import uuid4

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.serving.conftest import Start
from tests.serving.server import Figures, ServerProcess, until
from tests.serving.wire import CHAT, COMPLETIONS, post, request

SECRET = "the-secret-of-the-caller"
TRACE = "0af7651916cd43dd8448eb211c80319c"
MANY = 30_000


def samples(figures: Figures, name: str, **labels: str) -> float:
    """How many samples a histogram of the model has."""
    return figures.sum(f"tenure_{name}_count", model="script", **labels)


HISTOGRAMS = (
    *("queue_seconds", "prefill_seconds", "decode_seconds", "inference_seconds", "request_seconds"),
    *("time_to_first_token_seconds", "inter_token_seconds", "cancel_seconds", "engine_cancel_seconds"),
    *("request_prompt_tokens", "request_output_tokens"),
)


def new_samples(server: ServerProcess, before: Figures) -> dict[str, float]:
    after = server.figures()
    found = {name: samples(after, name) - samples(before, name) for name in HISTOGRAMS}
    return {name: count for name, count in found.items() if count}


def test_a_request_that_ends_well_is_counted_once_everywhere(server: ServerProcess) -> None:
    before = server.figures()
    answer = server.complete(f"once {uuid4().hex}", 6, ignore_eos=True, n=2, temperature=1)
    server.wait_at_rest()
    assert new_samples(server, before) == {
        **dict.fromkeys(("queue_seconds", "prefill_seconds", "decode_seconds", "inference_seconds"), 1),
        **dict.fromkeys(("request_seconds", "time_to_first_token_seconds"), 1),
        **dict.fromkeys(("request_prompt_tokens", "request_output_tokens"), 1),
        "inter_token_seconds": 10,
    }
    after = server.figures()
    labels = {"model": "script", "route": COMPLETIONS, "outcome": "ok"}
    assert after.sum("tenure_requests_total", **labels) - before.sum("tenure_requests_total", **labels) == 1
    for name, field in (("prompt", "prompt_tokens"), ("output", "completion_tokens")):
        tokens = f"tenure_request_{name}_tokens_sum"
        assert after.sum(tokens, model="script") - before.sum(tokens, model="script") == answer["usage"][field]


def test_a_request_that_is_cancelled_in_prefill_has_no_first_token(server: ServerProcess) -> None:
    """Fault F57: no token, no time sample; and what it cost is wasted."""
    before, work = server.figures(), server.work()
    with server.connect() as wire:
        wire.send(post(COMPLETIONS, request(COMPLETIONS, "x" * 30_000, 5), label := uuid4().hex))
        until(lambda: any(row["label"] == label for row in server.engine()["holders"]))
        wire.close()
    server.wait_at_rest()
    found = new_samples(server, before)
    expected = {"request_seconds", "cancel_seconds", "engine_cancel_seconds", "queue_seconds"}
    if "time_to_first_token_seconds" not in found:
        assert set(found) <= expected
        spent = server.work() - work
        assert (spent.sampled, spent.wasted) == (0, spent.computed)
    else:  # the machine was faster than the client
        assert set(found) <= {*expected, "prefill_seconds", "time_to_first_token_seconds", "inter_token_seconds"}
    after = server.figures()
    labels = {"model": "script", "outcome": "client_cancelled"}
    assert after.sum("tenure_requests_total", **labels) - before.sum("tenure_requests_total", **labels) == 1


def test_open_requests_are_in_one_stage_each_and_gauges_come_back(server: ServerProcess) -> None:
    """Fault F17: nothing stays at what it was when the last step ran."""
    wires = []
    for number in range(20):  # of which 16 have a slot
        wires.append(manager := server.connect())
        wire = manager.__enter__()
        wire.send(post(COMPLETIONS, request(COMPLETIONS, f"many {number}", MANY, stream=True)))
    try:
        figures = server.figures()

        def stages() -> dict[str, float]:
            nonlocal figures
            figures = server.figures()
            return {stage: figures.sum("tenure_open_requests", stage=stage) for stage in ("answering", "queued")}

        until(lambda: stages() == {"answering": 16, "queued": 4})
        assert figures.sum("tenure_open_requests") == 20
        assert figures.sum("tenure_items", model="script", state="running") == 16
        assert figures.sum("tenure_permits_held", model="script", kind="requests") == 20
        arrived, ended = figures.sum("tenure_requests_arrived_total"), figures.sum("tenure_requests_total")
        assert arrived == ended + 20
    finally:
        for manager in wires:
            manager.__exit__(None, None, None)
    server.wait_at_rest()


def test_metrics_and_the_check_of_the_ledger_agree_with_the_server(server: ServerProcess) -> None:
    code, text = server.run("ledger", "--check")
    assert (code, text.partition(":")[0]) == (0, "ok")
    with server.connect() as wire:
        wire.send(post(COMPLETIONS, request(COMPLETIONS, "held", MANY, stream=True)))
        wire.head()
        code, text = server.run("ledger", "--check")
        assert (code, text.partition(",")[0]) == (0, "ok: 1 open")
        wire.close()


def test_figures_are_those_of_the_whole_server(start: Start, script: str) -> None:
    """Two API processes, two engines: whichever process answers, it tells of all, and each engine has its own."""
    server = start(script, "--api-server-count", "2", "--data-parallel-size", "2", "--kv-cache-memory", "0.5")

    def ask(number: int) -> None:
        with server.connect() as wire:  # a connection each, so that both processes get some
            wire.send(post(COMPLETIONS, request(COMPLETIONS, f"whole {number}", 200, ignore_eos=True)))
            wire.head()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.wait_at_rest()
    for _ in range(8):
        figures = Figures(httpx.get(f"{server.address}/metrics").text)
        assert figures.sum("tenure_requests_total", route=COMPLETIONS, outcome="ok") == 24
        assert figures.sum("tenure_time_to_first_token_seconds_count") == 24
        assert figures.sum("tenure_inter_token_seconds_count") == 24 * 199
        assert figures.sum("tenure_tokens_total", kind="sampled") == 24 * 200
        engines = [figures.sum("tenure_queue_seconds_count", engine=str(index)) for index in range(2)]
        assert sum(engines) == 24
        assert all(engines), "both had work"
        assert figures.unrest() == []
    assert server.run("ledger", "--check")[0] == 0


# one server with everything on


class Collector:
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        spans, self.came = self.spans, Queue[int]()
        came = self.came

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    raise AssertionError("not asked for")
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        spans.extend(scope.spans)
                came.put(len(spans))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_a_server_that_tells_all(start: Start, script: str, collector: Collector) -> None:
    """JSON logs, spans and vLLM's names; also of a request that is cancelled. What callers wrote is in none of them."""
    server = start(script, "--log-format", "json", "--vllm-metrics", "--otlp-traces-endpoint", collector.url)
    trace = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "x-request-id": "mine"}
    body = request(CHAT, SECRET, 5, model="script")
    assert server.http.post(CHAT, json=body, headers=trace).status_code == 200
    with server.connect() as wire:
        wire.send(post(COMPLETIONS, request(COMPLETIONS, SECRET, MANY, stream=True), "left"))
        wire.head()
        wire.event()
        wire.close()
    server.wait_at_rest()
    assert "vllm:num_requests_waiting" in server.http.get("/metrics").text
    assert server.stop() == 0

    lines = [json.loads(line) for line in server.log() if line.startswith("{")]
    ends = {line["label"]: line for line in lines if line["logger"] == "tenure.access"}
    assert (ends["mine"]["outcome"], ends["mine"]["status"], ends["mine"]["output_tokens"]) == ("ok", 200, 5)
    assert (ends["left"]["outcome"], ends["left"]["status"]) == ("client_cancelled", 499)
    assert list(ends["left"]["stages"]) == ["received", "queued", "prefill", "answering", "ending"]
    assert SECRET not in server.log_text()

    spans = {
        attribute.value.string_value: span
        for span in collector.spans
        for attribute in span.attributes
        if attribute.key == "tenure.request.label"
    }
    assert set(spans) == {"mine", "left"}
    assert spans["mine"].trace_id.hex() == TRACE
    assert spans["mine"].name == "chat script"
    assert [event.name for event in spans["left"].events] == [
        "admitted",
        "started",
        "first_output",
        "client_gone",
        "released",
    ]
    assert SECRET not in str(collector.spans)


def test_what_callers_send_is_logged_where_that_is_asked_for(start: Start, script: str) -> None:
    """And a collector that nobody runs does no harm."""
    server = start(script, "--enable-log-requests", "--otlp-traces-endpoint", "http://127.0.0.1:9")
    server.complete(SECRET, 3)
    assert [line for line in server.wait_for_log(" received: ") if SECRET in line]
    assert server.stop() == 0
