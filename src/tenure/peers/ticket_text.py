"""Tickets as text: what one engine tells another about a prompt that it has computed, by way of whoever asks.

    tnr1.<what it says, as msgpack, in base64url>.<signature in base64url>

The text has no other characters than letters, digits, `-`, `_` and two points, so that it can be found in a body that
cannot be read. It is signed with a key of the cluster's secret: who has no secret can neither make nor change one. What
it says is no secret.
"""

import base64
import binascii
import hmac
import re
import sys
from array import array
from collections.abc import Sequence
from itertools import islice

import msgspec

from tenure.errors import CallerError
from tenure.peers.secret import Secret, sign

MOST_CHARACTERS = 2048
_MOST_FOUND = 64
_TEXT = re.compile(rb"tnr1\.([A-Za-z0-9_-]{1,2000})\.([A-Za-z0-9_-]{43})(?![A-Za-z0-9_-])")


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """What a ticket says."""

    name: bytes
    """Random: nobody can guess it."""
    engine: str
    """The epoch of the engine that holds the blocks: another incarnation does not know the ticket."""
    address: str
    """HOST:PORT where that engine listens to others."""
    model: str
    """A fingerprint of the model: keys and values of another are of no use."""
    layout: str
    """Of the cache, without the size of its blocks."""
    tokens: int
    """How many were computed."""
    digest: bytes
    """Of these tokens, by `digest_of`."""


def digest_of(tokens: Sequence[int], salt: str = "") -> bytes:
    """The same for equal prompts alone, of equal salt."""
    packed = array("i", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return sign(b"tokens", salt.encode(), packed.tobytes())


def write_ticket(ticket: Ticket, secret: Secret) -> str:
    payload = _encode(msgspec.msgpack.encode(ticket))
    return f"tnr1.{payload}.{_signature(payload, secret)}"


def read_ticket(text: str, secret: Secret) -> Ticket:
    """Raises CallerError for what is no ticket of this cluster."""
    found = _TEXT.fullmatch(text.encode("utf-8", "replace")) if len(text) <= MOST_CHARACTERS else None
    ticket = None if found is None else _read(found, secret)
    if ticket is None:
        raise CallerError("this is no ticket of this cluster")
    return ticket


def peek(text: str) -> Ticket:
    """What a ticket of our own says; it is not checked."""
    return msgspec.msgpack.decode(_decode(text.split(".")[1]), type=Ticket)


def find_texts(body: bytes | bytearray) -> list[str]:
    """What looks like tickets in a body, whatever else is in it."""
    return [found[0].decode() for found in islice(_TEXT.finditer(body), _MOST_FOUND)]


def _read(found: "re.Match[bytes]", secret: Secret) -> Ticket | None:
    payload, signature = (part.decode() for part in found.groups())
    if not hmac.compare_digest(signature, _signature(payload, secret)):
        return None
    try:
        return msgspec.msgpack.decode(_decode(payload), type=Ticket)
    except (binascii.Error, msgspec.MsgspecError):
        return None


def _signature(payload: str, secret: Secret) -> str:
    return _encode(sign(secret.key("ticket"), payload.encode()))


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
