"""Vectors as replies carry them: JSON numbers, base64, packed bits.

Numbers are written with the fewest digits that read back as the same float32, so the float and the base64 form of a
vector are equal to the bit. Vectors are finite, as `pooling_job.feed_pooled` gives them.
"""

import base64
from collections.abc import Iterator
from itertools import chain

import msgspec
import numpy as np
import orjson

from tenure.api.common.pooling_job import Vectors

_AT_ONCE = 3 * 1024
"""Numbers that are written in one go; a multiple of 3, so that base64 of their bytes needs no padding."""


def vector_numbers(vectors: Vectors) -> msgspec.Raw | Iterator[bytes]:
    """A vector, or rows of them, as JSON arrays of numbers; in parts where it is long."""
    if vectors.size <= _AT_ONCE:
        return msgspec.Raw(_numbers(vectors))
    return _in_parts(vectors)


def _in_parts(vectors: Vectors) -> Iterator[bytes]:
    step = _AT_ONCE if vectors.ndim == 1 else max(1, _AT_ONCE // vectors.shape[1])
    before = b"["
    for start in range(0, len(vectors), step):
        yield before + _numbers(vectors[start : start + step])[1:-1]
        before = b","
    yield b"]"


def _numbers(vectors: Vectors) -> bytes:
    return orjson.dumps(np.ascontiguousarray(vectors), option=orjson.OPT_SERIALIZE_NUMPY)


def vector_base64(vectors: Vectors) -> str | Iterator[bytes]:
    """All numbers, row after row, as little-endian float32 in base64; in parts, with the quotes, where it is long."""
    numbers = vectors.reshape(-1).astype("<f4", copy=False)
    if numbers.size <= _AT_ONCE:
        return base64.b64encode(numbers.tobytes()).decode("ascii")
    starts = range(0, numbers.size, _AT_ONCE)
    parts = (base64.b64encode(numbers[start : start + _AT_ONCE].tobytes()) for start in starts)
    return chain([b'"'], parts, [b'"'])


def vector_bits(vector: Vectors, *, signed: bool) -> list[int]:
    """One bit for each number, set where it is above 0, eight to a byte, the first one highest.

    Bytes from 0 to 255; `signed` ones are lower by 128. The width must be a multiple of 8.
    """
    packed = np.packbits(vector > 0).astype(np.int16)
    found: list[int] = (packed - 128 if signed else packed).tolist()
    return found
