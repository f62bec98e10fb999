"""Nesting depth and number of items of a JSON text, found without decoding it and without recursion.

A body beyond the limits is refused before the decoder can exhaust the stack or block other requests.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tenure.config import HttpLimits
from tenure.http import errors

CONTAINER = 16
_STRUCTURE = b'[{]}",'
_OPEN, _CLOSE, _QUOTE, _COMMA = 1, 2, 3, 4
_CODES = bytes.maketrans(_STRUCTURE, bytes((_OPEN, _OPEN, _CLOSE, _CLOSE, _QUOTE, _COMMA)))
_NO_STRING = bytes((_QUOTE, _QUOTE))
_ALL_BUT_STRUCTURE = bytes(byte for byte in range(256) if byte not in _STRUCTURE)
_PIECE = 1 << 20
"""How much is looked at in one go: little enough for the second-level cache, and to be soon done with a bad body."""


def check_shape(body: bytes | bytearray, limits: HttpLimits) -> None:
    """Refuse JSON that nests too deep, as the decoder recurses, or has so many items that it would hold up others.

    An array or an object counts as `CONTAINER` items, as it takes so much more memory than its text.
    """
    opened = body.count(b"[") + body.count(b"{")
    if opened <= limits.max_body_depth and CONTAINER * opened + body.count(b",") <= limits.max_body_items:
        return
    for shape in json_shapes(body):
        if shape.depth > limits.max_body_depth:
            limit = limits.max_body_depth
            raise errors.malformed_request(f"The request body is nested deeper than the limit of {limit} levels.")
        if CONTAINER * shape.containers + shape.commas > limits.max_body_items:
            raise errors.malformed_request(
                f"The request body has more than the limit of {limits.max_body_items} items; "
                f"an array or an object counts as {CONTAINER}."
            )


class JsonShape(NamedTuple):
    """Nesting depth of arrays and objects, their number, and the number of commas outside strings."""

    depth: int = 0
    containers: int = 0
    commas: int = 0


def json_shapes(body: bytes | bytearray) -> Iterator[JsonShape]:
    """The shape of a text up to here, again and again, up to its end; linear, without recursion, strings apart.

    For a text that is not JSON it is exact up to the first wrong byte, which is as far as a decoder gets. Escaped
    quotes are removed first: within a string, pairs of backslashes from the left, then a backslash with its quote.
    A close quote next to an open one joins two strings, which changes nothing outside of them.
    """
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    structure = unescaped.translate(_CODES, delete=_ALL_BUT_STRUCTURE).replace(_NO_STRING, b"")
    shape, level, in_string = JsonShape(), 0, False
    for first in range(0, len(structure), _PIECE):
        codes = np.frombuffer(structure, np.int8, min(_PIECE, len(structure) - first), first)
        inside = np.logical_xor.accumulate(codes == _QUOTE) ^ in_string  # quotes that open a string are, too
        opened, commas = (codes == _OPEN) & ~inside, (codes == _COMMA) & ~inside
        levels = level + np.cumsum(opened.view(np.int8) - ((codes == _CLOSE) & ~inside), dtype=np.int32)
        level, in_string = int(levels[-1]), bool(inside[-1])
        shape = JsonShape(
            depth=max(shape.depth, int(levels.max())),
            containers=shape.containers + int(np.count_nonzero(opened)),
            commas=shape.commas + int(np.count_nonzero(commas)),
        )
        yield shape
