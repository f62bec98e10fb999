"""Vectors as replies carry them: JSON numbers, base64, packed bits.

Numbers are written with the fewest digits that read back as the same float32, so the float and the base64 form of a
vector are equal to the bit. Nothing that is not finite is written.
"""

import base64

import msgspec
import numpy as np
import numpy.typing as npt

from tenure.api.errors import internal_error
from tenure.api.pooling_job import Vectors

ENCODER = msgspec.json.Encoder()
CHARACTERS_PER_NUMBER = 12
_EXACT_POWERS = 22  # a float64 holds powers of ten up to this one exactly
_POWERS = np.array([float(10**power) for power in range(_EXACT_POWERS + 1)])
_POWERS.flags.writeable = False


def vector_numbers(vectors: Vectors) -> msgspec.Raw:
    """A vector, or rows of them, as JSON arrays of numbers."""
    return msgspec.Raw(ENCODER.encode(shortest(_finite(vectors)).tolist()))


def vector_base64(vectors: Vectors) -> str:
    """All numbers, row after row, as little-endian float32 in base64."""
    return base64.b64encode(_finite(vectors).astype("<f4").tobytes()).decode("ascii")


def vector_bits(vector: Vectors, *, signed: bool) -> list[int]:
    """One bit for each number, set where it is above 0, eight to a byte, the first one highest.

    Bytes from 0 to 255; `signed` ones are lower by 128. The width must be a multiple of 8.
    """
    packed = np.packbits(_finite(vector) > 0).astype(np.int16)
    found: list[int] = (packed - 128 if signed else packed).tolist()
    return found


def shortest(numbers: Vectors) -> npt.NDArray[np.float64]:
    """For each float32 the float64 whose decimal form is short and reads back as the same float32.

    That form has 6 to 9 significant digits, as few as do; very small numbers keep all 17.
    """
    exact = numbers.astype(np.float64)
    magnitude = np.abs(exact)
    exponent = np.floor(np.log10(np.where(magnitude > 0, magnitude, 1.0))).astype(np.int64)
    found, open_ = exact.copy(), np.ones(exact.shape, dtype=bool)
    for digits in (6, 7, 8, 9):
        rounded = _round(exact[open_], digits - 1 - exponent[open_])
        same = rounded.astype(np.float32) == numbers[open_]
        positions = np.flatnonzero(open_)
        found.flat[positions[same]] = rounded[same]
        open_.flat[positions[same]] = False
        if not open_.any():
            break
    return found


def _round(numbers: npt.NDArray[np.float64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Round to so many decimal places each; negative ones are left of the point."""
    up = _POWERS[np.minimum(np.maximum(places, 0), _EXACT_POWERS)]
    down = _POWERS[np.minimum(np.maximum(-places, 0), _EXACT_POWERS)]
    rounded: npt.NDArray[np.float64] = np.rint(numbers * up / down) / up * down
    return rounded


def _finite(vectors: Vectors) -> Vectors:
    if not np.isfinite(vectors).all():
        raise internal_error("The model gave a number that is not finite (NaN or infinity).")
    return vectors
