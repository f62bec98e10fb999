"""What is checked of a request before its handler runs, in this order: key, labels, media type, length, body.

Pure functions over headers and bytes, but for `read_body`. Each raises the `ApiError` that the caller is given.
"""

import hmac
import math
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

import anyio
import numpy as np
from starlette.datastructures import Headers
from starlette.types import Receive

from tenure.api import errors
from tenure.config import HttpLimits

MAX_LABEL_CHARACTERS = 256
MOST_SECONDS = 2**31 - 1
CONTAINER = 16
_STRUCTURE = b'[{]}",'
_OPEN, _CLOSE, _QUOTE, _COMMA = 1, 2, 3, 4
_CODES = bytes.maketrans(_STRUCTURE, bytes((_OPEN, _OPEN, _CLOSE, _CLOSE, _QUOTE, _COMMA)))
_NO_STRING = bytes((_QUOTE, _QUOTE))
_ALL_BUT_STRUCTURE = bytes(byte for byte in range(256) if byte not in _STRUCTURE)
_PIECE = 1 << 20
"""How much is looked at in one go: little enough for the second-level cache, and to be soon done with a bad body."""


class ClientGone(Exception):
    """The client left before its request was complete."""


def digests(keys: Sequence[str]) -> tuple[bytes, ...]:
    """What is kept of the keys to compare credentials with: digests have one length, whatever the keys'."""
    return tuple(sha256(key.encode()).digest() for key in keys)


def check_key(headers: Headers, keys: Sequence[bytes]) -> str:
    """Compare the credentials with every key (`digests`) in constant time; no keys at all means that all may pass.

    Returns what stands for the key that fits: the same for the same key, and of no use to who learns it.
    """
    if not keys:
        return ""
    given = []
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given.append(credential.strip())
    if "x-api-key" in headers:
        given.append(headers["x-api-key"].strip())
    found = [sha256(one.encode("latin-1")).digest() for one in given]
    hits = [key for one in found for key in keys if hmac.compare_digest(one, key)]
    if not hits:
        raise errors.invalid_api_key()
    return sha256(b"owner" + hits[0]).hexdigest()[:32]


def read_label(headers: Headers) -> str:
    """`X-Request-Id`: at most 256 characters of printable ASCII; empty when absent."""
    label = headers.get("x-request-id", "")
    if len(label) > MAX_LABEL_CHARACTERS:
        limit = MAX_LABEL_CHARACTERS
        raise errors.invalid_request(f"X-Request-Id is longer than {limit} characters.", "X-Request-Id")
    if not (label.isascii() and label.isprintable()):
        raise errors.invalid_request("X-Request-Id may hold printable ASCII characters only.", "X-Request-Id")
    return label


def read_rank(headers: Headers) -> int | None:
    """`X-data-parallel-rank`: an integer of any value that fits 64 bits; None when absent."""
    text = headers.get("x-data-parallel-rank")
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise errors.invalid_request("X-data-parallel-rank must be an integer.", "X-data-parallel-rank")
    return int(text)


def read_timeout(headers: Headers) -> float | None:
    """`X-Request-Timeout`: a positive number of seconds, `MOST_SECONDS` at most; None when absent."""
    text = headers.get("x-request-timeout")
    if text is None:
        return None
    try:
        seconds = math.nan if "_" in text else float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MOST_SECONDS:
        message = f"X-Request-Timeout must be a number of seconds above 0 and at most {MOST_SECONDS}."
        raise errors.invalid_request(message, "X-Request-Timeout")
    return seconds


def check_media_type(headers: Headers) -> None:
    given = headers.get("content-type")
    if given is None or given.partition(";")[0].strip().lower() != "application/json":
        raise errors.unsupported_media_type(given)


def check_length(headers: Headers, limit: int) -> None:
    """Refuse a declared length beyond `limit` before a byte of the body is read."""
    text = headers.get("content-length")
    if text is None:
        return
    if not (text.isascii() and text.isdigit()):
        raise errors.malformed_request("Content-Length must be a non-negative integer.", "Content-Length")
    if len(text) > 18 or int(text) > limit:
        raise errors.request_too_large(limit)


def shorter(one: float | None, other: float | None) -> float | None:
    """The shorter of two times; None stands for no limit."""
    return min((time for time in (one, other) if time is not None), default=None)


async def read_body(
    receive: Receive, limits: HttpLimits, hold: Callable[[int], None], time_left: float | None = None
) -> bytes:
    """The whole body, bounded in bytes and time; raises `ClientGone` when the client leaves first.

    `hold` is told of the bytes as they come, and may refuse them. `time_left`: until the request must be over.
    """
    chunks = bytearray()
    with anyio.move_on_after(shorter(limits.body_timeout, time_left)) as scope:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            part = message.get("body", b"")
            if len(chunks) + len(part) > limits.max_body_bytes:
                raise errors.request_too_large(limits.max_body_bytes)
            hold(len(part))
            chunks += part
            if not message.get("more_body", False):
                break
    if scope.cancelled_caught and time_left is not None and time_left < limits.body_timeout:
        raise errors.out_of_time()
    if scope.cancelled_caught:
        raise errors.request_timeout(f"The request body was not complete within {limits.body_timeout:g} seconds.")
    return bytes(chunks)


def check_shape(body: bytes, limits: HttpLimits) -> None:
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
    """How deep the arrays and objects of a JSON text nest, how many there are, and how many commas part their items."""

    depth: int = 0
    containers: int = 0
    commas: int = 0


def json_shapes(body: bytes) -> Iterator[JsonShape]:
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
