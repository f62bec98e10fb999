"""The checks of a request before its handler runs, in this order: key, labels, media type, length, body.

Pure functions over headers and bytes, but for `read_body`. Each raises the `ApiError` to answer with.
"""

import hmac
import math
from collections.abc import Iterator, Sequence
from hashlib import sha256

import anyio
from starlette.datastructures import Headers
from starlette.types import Receive

from tenure.config import HttpLimits
from tenure.http import errors

MAX_LABEL_CHARACTERS = 256
MOST_SECONDS = 2**31 - 1


class ClientGone(Exception):
    """The client left before its request was complete."""


def digests(keys: Sequence[str]) -> tuple[bytes, ...]:
    """Return a digest of each key: of one length, so that comparing does not reveal a key's length."""
    return tuple(sha256(key.encode()).digest() for key in keys)


def check_key(headers: Headers, keys: Sequence[bytes]) -> str:
    """Compare the credentials with every key (`digests`) in constant time. Without keys every request passes.

    Returns an identifier of the key that matched, from which the key cannot be derived. Raises a 401.
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


class BodyBudget:
    """How many bytes of bodies are held at a time, of all requests."""

    def __init__(self, limit: int) -> None:
        self.held = 0
        self._limit = limit

    def take(self, size: int) -> None:
        if self.held + size > self._limit:
            raise errors.too_many_bodies(self._limit)
        self.held += size


class Body:
    """What has come of the body of one request, which counts against the budget until it is let go of."""

    def __init__(self, budget: BodyBudget) -> None:
        self.parts: list[bytes] = []
        """As they came: to put a large body together would hold up others."""
        self.size = 0
        """Also after it was let go of."""
        self.complete = False
        self._held = 0
        self._budget = budget

    @property
    def data(self) -> bytes:
        """All that is here, in one piece."""
        return b"".join(self.parts)

    def add(self, part: bytes) -> None:
        self._budget.take(len(part))
        self.parts.append(part)
        self.size += len(part)
        self._held += len(part)

    def let_go(self) -> None:
        """Nobody needs its bytes any more."""
        self._budget.held -= self._held
        self._held = 0
        self.parts = []

    def hand_out(self) -> Iterator[bytes]:
        """The parts, of which none is kept here; they count until they are let go of."""
        self.parts.reverse()
        while self.parts:
            yield self.parts.pop()


async def read_body(receive: Receive, limits: HttpLimits, body: Body, time_left: float | None = None) -> None:
    """Take in the whole body, bounded in bytes and time; raises `ClientGone` when the client leaves first.

    `time_left`: until the request must be over.
    """
    with anyio.move_on_after(shorter(limits.body_timeout, time_left)) as scope:
        while not body.complete:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            part = message.get("body", b"")
            if body.size + len(part) > limits.max_body_bytes:
                raise errors.request_too_large(limits.max_body_bytes)
            body.add(part)
            body.complete = not message.get("more_body", False)
    if scope.cancelled_caught and time_left is not None and time_left < limits.body_timeout:
        raise errors.out_of_time()
    if scope.cancelled_caught:
        raise errors.request_timeout(f"The request body was not complete within {limits.body_timeout:g} seconds.")
