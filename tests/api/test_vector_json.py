"""Numbers as replies carry them: short, and exact to the bit."""

import base64
import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.api.common.vector_json import vector_base64, vector_bits, vector_numbers


def read(vectors: np.ndarray) -> np.ndarray:
    return np.array(json.loads(bytes(vector_numbers(vectors))), dtype=np.float32)


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_numbers_and_base64_read_back_to_the_bit(numbers):
    vector = np.array(numbers, dtype=np.float32)
    assert read(vector).tobytes() == vector.tobytes()
    assert base64.b64decode(vector_base64(vector)) == vector.astype("<f4").tobytes()


def test_numbers_are_as_short_as_they_can_be():
    vector = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    written = bytes(vector_numbers(vector)).decode()[1:-1].split(",")
    assert [float(text) for text in written] == [float(str(number)) for number in vector]
    assert bytes(vector_numbers(np.array([0.1, 1, -2.5, 0], np.float32))) == b"[0.1,1.0,-2.5,0.0]"


def test_rows_stay_rows():
    rows = np.array([[0.5, 0.25], [1, 2], [3, 4]], np.float32)
    assert json.loads(bytes(vector_numbers(rows))) == rows.tolist()


def test_bits_are_set_above_zero_the_first_one_highest():
    vector = np.array([1, -1, 0, 0.5, -2, -2, -2, 3, *[1] * 8], np.float32)
    assert vector_bits(vector, signed=False) == [0b10010001, 255]
    assert vector_bits(vector, signed=True) == [0b10010001 - 128, 127]
