"""The checks before a handler: nesting is measured as a decoder would meet it, and errors are fit for the wire."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.api import errors
from tenure.api.errors import ApiError, echo, from_outcome
from tenure.api.intake import JsonShape, check_shape, json_shapes
from tenure.api.routes import Route, RouteTable
from tenure.config import HttpLimits
from tenure.outcomes import Outcome

TEXTS = st.text(alphabet='ab"\\[]{},é', max_size=6)
VALUES = st.recursive(TEXTS | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def items_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else max(1, len(inner)) + sum(map(items_of, inner))


@given(VALUES, st.booleans())
def test_the_shape_is_that_of_the_value(value: object, ascii_only: bool) -> None:
    *_, shape = (JsonShape(), *json_shapes(json.dumps(value, ensure_ascii=ascii_only).encode()))
    assert (shape.depth, shape.containers + shape.commas) == (depth_of(value), items_of(value))


@given(st.binary(max_size=60))
def test_any_bytes_have_a_shape(body: bytes) -> None:
    assert all(min(shape) >= 0 for shape in json_shapes(body))


@pytest.mark.parametrize("body", [b"[" * 10_000_000, b'{"a":' * 100_000, b"[" * 65 + b"]" * 65, b"]" * 99 + b"[" * 200])
def test_deep_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="64"):
        check_shape(body, HttpLimits())


@pytest.mark.parametrize("body", [b"[" + b"0," * 1000 + b"0]", b"[" + b"{}," * 63, b'{"a":[],' * 32])
def test_bodies_of_many_items_are_refused(body: bytes) -> None:
    limits = HttpLimits(max_body_depth=10_000, max_body_items=1000)
    with pytest.raises(ApiError, match="limit of 1000 items"):
        check_shape(body, limits)
    check_shape(body[: len(body) // 2 - 8], limits)


def test_a_text_of_many_pieces_has_one_shape() -> None:
    text = json.dumps([[["a, [b" * 300_000]], {"c": [1] * 1_000_000}, "," * 1_500_000]).encode()
    *_, shape = json_shapes(text)
    assert shape == (3, 1 + 1 + 1 + 1 + 1, 2 + 999_999)
    assert len(list(json_shapes(text))) == 3


def test_brackets_in_strings_do_not_nest() -> None:
    """Nor do commas part items."""
    limits = HttpLimits(max_body_items=3000)
    check_shape(json.dumps(["[" * 1000, '\\"[[' * 1000, {"[" * 100: "{,}" * 100}] * 100).encode(), limits)


def test_messages_are_valid_json_whatever_they_echo() -> None:
    values = ["\ud800", "x" * 10_000, float("nan"), float("-inf"), b"\xff", ["y" * 500], "\x00"]
    for value in values:
        error = errors.invalid_request(f"temperature: {echo(value)}", "temp\udfff")
        decoded = msgspec.json.decode(error.body())
        assert len(decoded["error"]["message"]) < 250
        assert error.event().endswith(b"\n\n")
        assert error.event().count(b"\n\n") == 1


@pytest.mark.parametrize("outcome", set(Outcome) - {Outcome.OK, Outcome.CLIENT_CANCELLED, Outcome.WORKER_LOST})
def test_an_engines_ending_is_counted_as_what_it_was(outcome: Outcome) -> None:
    assert from_outcome(outcome, "why").outcome is outcome


def test_retry_after_is_whole_seconds() -> None:
    assert errors.queue_full("full", 0.2).headers == {"retry-after": "1"}
    assert errors.engine_unavailable("dead", 2.1).headers == {"retry-after": "3"}


async def handler(_call: object) -> None: ...


def test_routes_are_found_by_path_then_method() -> None:
    table = RouteTable(
        [
            Route("/v1/responses/{id}/cancel", ("POST",), handler),
            Route("/v1/responses/{id:path}", ("GET",), handler),
            Route("/v1/responses", ("POST",), handler, work=True),
            Route("/ping", ("GET",), handler),
            Route("/ping", ("POST",), handler),
        ]
    )
    cancel = table.match("POST", "/v1/responses/r1/cancel")
    assert cancel is not None
    assert (cancel.route.path, dict(cancel.path_params)) == ("/v1/responses/{id}/cancel", {"id": "r1"})
    slashes = table.match("GET", "/v1/responses/org/a.b")
    assert slashes is not None
    assert dict(slashes.path_params) == {"id": "org/a.b"}
    head = table.match("HEAD", "/ping")
    assert head is not None
    assert head.allowed
    wrong = table.match("PUT", "/ping")
    assert wrong is not None
    assert (wrong.allowed, wrong.allow) == (False, ("GET", "POST"))
    assert table.match("GET", "/v1/responses/") is None
    assert table.match("GET", "/nowhere") is None
    assert table.work_paths() == ("/v1/responses",)
