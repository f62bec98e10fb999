"""Every route of the OpenAPI document with what fits it and what does not: no answer is a 5xx, each is as documented,
and afterwards the server says what it said when it was fresh. `make soak` tries far more."""

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tenure.wire.messages import ItemOutput, Submit
from tests.api.generation_rig import Rig, say_hello
from tests.api.pooling_rig import answers, classify, embed
from tests.api.test_fuzz import VALUES
from tests.api.test_route_walk import ALL, EXAMPLES

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LONG = settings().max_examples > 1000
PLENTY = settings(
    max_examples=500 if LONG else 12,
    derandomize=not LONG,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def say(submit: Submit) -> list[list[ItemOutput]]:
    """Text for what generates, vectors for what pools."""
    if submit.pooling is None:
        return say_hello(submit)
    return answers(classify if "classify" in submit.pooling.task.value else embed)(submit)


RIG = Rig(say, profile=ALL)
DOCUMENT = RIG.request("GET", "/openapi.json").json()
OPERATIONS = {found.ok().label: found.ok() for found in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()}
TAKING = {label: operation for label, operation in OPERATIONS.items() if operation.body}


@pytest.fixture(autouse=True)
def still_the_same() -> Iterator[None]:
    yield
    RIG.engine.submitted.clear()
    RIG.engine.handles.clear()
    for path in ("/v1/completions", "/v1/embeddings"):
        assert said(RIG, path) == said(Rig(say, profile=ALL), path)


def said(rig: Rig, path: str) -> dict[str, Any]:
    reply = rig.post(path, EXAMPLES[path])
    assert reply.status_code == 200, reply.text
    return {name: value for name, value in reply.json().items() if name not in ("id", "created")}


def exchange(case: Case[Any]) -> None:
    kwargs = case.as_transport_kwargs()
    parts = {name: kwargs[name] for name in ("params", "headers", "json", "content", "data") if name in kwargs}
    reply = RIG.request(case.method, kwargs["url"], **parts)
    case.validate_response(reply, checks=CHECKS)


def every_case(operation: APIOperation, mode: GenerationMode) -> None:
    @PLENTY
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Case[Any]) -> None:
        exchange(case)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the generator, which are no concern of the server's
        run()


@pytest.mark.parametrize("label", OPERATIONS)
def test_what_fits_the_document(label: str) -> None:
    every_case(OPERATIONS[label], GenerationMode.POSITIVE)


@pytest.mark.parametrize("label", TAKING)
def test_what_does_not(label: str) -> None:
    every_case(TAKING[label], GenerationMode.NEGATIVE)


def fields_of(path: str) -> list[str]:
    reference = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return sorted(DOCUMENT["components"]["schemas"][reference.rpartition("/")[2]]["properties"])


@pytest.mark.parametrize("path", EXAMPLES)
def test_any_value_in_any_field(path: str) -> None:
    """Numbers of all sizes, Unicode of all sorts, and shapes that are none, in a body that is good otherwise."""

    @PLENTY
    @given(field=st.sampled_from(fields_of(path)), value=VALUES)
    def run(field: str, value: object) -> None:
        RIG.engine.submitted.clear()
        reply = RIG.post(path, json.dumps({**EXAMPLES[path], field: value}).encode())
        assert reply.status_code < 500, reply.text
        assert str(reply.status_code) in DOCUMENT["paths"][path]["post"]["responses"]
        if reply.status_code != 200:
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
            assert RIG.engine.submitted == []

    run()


def test_the_document_is_whole() -> None:
    """Every route is in it, and every error that the guard can answer there."""
    assert set(EXAMPLES) <= set(DOCUMENT["paths"])
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            statuses = {int(status) for status in operation["responses"]}
            wanted = {200, 400, 404, 405, 408, 429, 431, 500} - ({429} if method == "get" else set())
            assert wanted <= statuses, (method, path)
            if "requestBody" in operation:
                assert {413, 415} <= statuses, (method, path)
