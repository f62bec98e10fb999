"""The end of each work request is told once: as a line of text, as fields, as a span; what callers wrote is not."""

import logging
import math

import pytest

from tenure.api.app import build_app
from tenure.config import HttpLimits
from tenure.observe.request_observer import RequestObserver
from tests.api.generation_rig import Rig

SECRET = "the-secret-of-the-caller"


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "tenure")
    return lambda: caplog.records


def reporting(**options) -> Rig:
    rig = Rig()
    rig.app = build_app(rig.context, RequestObserver(rig.counts, **options), HttpLimits())
    return rig


def test_the_end_of_a_request_is_one_line_with_everything_about_it(records):
    Rig().chat(SECRET, headers={"x-request-id": "mine"}, n=2)
    [record] = [record for record in records() if record.name == "tenure.access"]
    fields = record.fields
    assert (fields["label"], fields["route"], fields["model"]) == ("mine", "/v1/chat/completions", "tiny")
    assert (fields["status"], fields["outcome"], fields["code"]) == (200, "ok", "")
    assert (fields["prompt_tokens"], fields["output_tokens"]) == (len(f"user:{SECRET};>"), 6)
    assert list(fields["stages"]) == ["received", "queued", "prefill", "answering", "ending"]
    assert math.isclose(sum(fields["stages"].values()), fields["seconds"], abs_tol=1e-4)
    assert 0 < fields["first_token_seconds"] <= fields["seconds"]
    text = record.getMessage()
    for part in (fields["id"], 'label="mine"', "status=200 outcome=ok", "output_tokens=6", "queued:0.000"):
        assert part in text


def test_a_request_that_was_refused_has_no_stage_but_the_first(records):
    Rig().complete(SECRET, temperature=-1)
    [record] = [record for record in records() if record.name == "tenure.access"]
    assert list(record.fields["stages"]) == ["received"]
    assert (record.fields["outcome"], record.fields["first_token_seconds"]) == ("invalid", None)
    assert "first_token=- " in record.getMessage()


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"temperature": -1}, {"model": "nope"}, {"stop": [""]}])
def test_nothing_that_a_caller_wrote_is_logged(records, fields):
    rig = Rig()
    rig.complete(SECRET, **fields)
    rig.chat(SECRET, **fields)
    assert len([record for record in records() if record.name == "tenure.access"]) == 2
    for record in records():
        assert SECRET not in record.getMessage() + repr(getattr(record, "fields", ""))


def test_bodies_are_logged_where_that_is_asked_for(records):
    rig = reporting(log_bodies=1000)
    rig.complete(SECRET)
    rig.post("/tokenize", {"prompt": "not work"})
    received = [record for record in records() if " received: " in record.getMessage()]
    [record] = received
    assert SECRET in record.getMessage()
    assert SECRET in record.fields["body"]
    assert record.fields["id"] in record.getMessage()


def test_a_long_body_is_cut(records):
    reporting(log_bodies=20).complete("x" * 1000)
    [record] = [record for record in records() if " received: " in record.getMessage()]
    assert record.fields["body"] == '{"prompt": "xxxxxxxx...'


def test_each_request_is_told_to_the_tracer_once():
    class Tracer:
        def __init__(self):
            self.accounts = []

        def record(self, summary):
            self.accounts.append(summary)

    tracer = Tracer()
    rig = reporting(tracer=tracer)
    rig.complete()
    rig.complete(temperature=-1)
    rig.request("GET", "/v1/models")
    assert [summary.outcome for summary in tracer.accounts] == ["ok", "invalid"]
