"""JSON in parts is the JSON of the whole."""

from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from tenure.api.common.json_parts import ENCODER, PART_BYTES, joined, json_parts, list_parts

LONG = 5000


class Entry(msgspec.Struct, rename="camel"):
    index: int
    long_text: str | UnsetType = UNSET
    values: Any = None


SMALL = st.integers() | st.text(max_size=3) | st.none() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SMALL | st.just(list(range(LONG))) | st.just({str(key): "é" for key in range(LONG)}) | st.just("\n" * LONG),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.builds(Entry, st.integers(), st.just(UNSET) | st.text(max_size=3), inner)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_the_parts_are_the_whole(value: Any) -> None:
    assert b"".join(json_parts(value)) == ENCODER.encode(value)
    assert b"".join(joined(json_parts(value))) == ENCODER.encode(value)


def test_no_part_is_large() -> None:
    """But for a text, which is one."""
    value = [Entry(number, "x", {str(key): [0.5] * 50 for key in range(300)}) for number in range(9)]
    assert max(map(len, json_parts(value))) < PART_BYTES
    assert len(list(json_parts(value))) > 20


def test_what_is_json_already_is_taken_as_it_is() -> None:
    value = [Entry(1, values=iter([b"[1,", memoryview(b"2]")])), Entry(2, values=msgspec.Raw(b"{}"))]
    whole = b'[{"index":1,"values":[1,2]},{"index":2,"values":{}}]'
    assert b"".join(json_parts(value)) == whole


def test_the_entries_of_a_long_list_are_made_as_they_are_written() -> None:
    made: list[int] = []

    def entries() -> Iterator[Entry]:
        for index in range(1000):
            made.append(index)
            yield Entry(index, values=[0.5] * 20)

    parts = json_parts(Entry(0, values=list_parts(entries())))
    size = 0
    for part in parts:
        size += len(part)
        assert len(made) <= 2 + size // 50
    assert size > 50_000
    assert b"".join(list_parts(Entry(index) for index in range(3))) == ENCODER.encode([Entry(0), Entry(1), Entry(2)])
    assert b"".join(list_parts([])) == b"[]"


def test_small_parts_are_put_together_and_large_ones_are_not_copied() -> None:
    large = memoryview(bytes(3 * PART_BYTES))
    parts = joined([b"a", b"b", large, b"", b"c"])
    assert parts == [b"ab", large, b"c"]
    assert parts[1] is large
    assert len(joined([b"x" * 1000] * 1000)) < 20
