"""The shape of a body, measured as a decoder would meet it, and the bounds on it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.config import HttpLimits
from tenure.http.errors import ApiError
from tenure.http.json_shape import JsonShape, check_shape, json_shapes

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
