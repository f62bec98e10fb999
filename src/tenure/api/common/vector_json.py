"""Vectors as replies carry them: JSON numbers, base64, packed bits.

Numbers are written with the fewest digits that read back as the same float32, so the float and the base64 form of a
vector are equal to the bit. Vectors are finite, as `pooling_job.feed_pooled` gives them.
"""

import base64

import msgspec
import numpy as np
import orjson

from tenure.api.common.pooling_job import Vectors

ENCODER = msgspec.json.Encoder()


def vector_numbers(vectors: Vectors) -> msgspec.Raw:
    """A vector, or rows of them, as JSON arrays of numbers."""
    return msgspec.Raw(orjson.dumps(np.ascontiguousarray(vectors), option=orjson.OPT_SERIALIZE_NUMPY))


def vector_base64(vectors: Vectors) -> str:
    """All numbers, row after row, as little-endian float32 in base64."""
    return base64.b64encode(vectors.astype("<f4").tobytes()).decode("ascii")


def vector_bits(vector: Vectors, *, signed: bool) -> list[int]:
    """One bit for each number, set where it is above 0, eight to a byte, the first one highest.

    Bytes from 0 to 255; `signed` ones are lower by 128. The width must be a multiple of 8.
    """
    packed = np.packbits(vector > 0).astype(np.int16)
    found: list[int] = (packed - 128 if signed else packed).tolist()
    return found
