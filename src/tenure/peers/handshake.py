"""How two engines of a cluster prove to each other that they have its secret, before anything else is said.

    initiator                                      listener
    Greeting(nonce, who it is)        -->
                                      <--          Greeting(nonce, who it is)
    proof                             -->
                                      <--          proof

A proof is a signature over both greetings, by a key of the secret for the side that gives it; so it can be replayed
neither to another nor to its giver. Both then have a key for each direction (`Seal`). What is said is not encrypted.

The exchange is written once, as a generator that yields what is to be sent and is sent what arrives, and run over
sockets that block or that do not.
"""

import hmac
import secrets
from collections.abc import Generator
from typing import NamedTuple

import msgspec

from tenure.peers.secret import Secret, sign
from tenure.wire.framing import PeerGone

VERSION = 1
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_MAC_BYTES = 16
MOST_GREETING_BYTES = 4096


class NotAPeer(PeerGone):
    """The other side has another secret, or speaks another version, or something else altogether."""


class Greeting(msgspec.Struct, frozen=True, array_like=True):
    """Who greets."""

    engine: str
    """The epoch of the engine."""
    model: str
    layout: str
    purpose: str = "control"
    nonce: bytes = b""
    version: int = VERSION


class Seal:
    """Signs and checks what goes one way over a connection: each piece once, in its place."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def wrap(self, payload: bytes) -> bytes:
        """The payload with its signature, to be sent next."""
        return payload + self._sign(payload)

    def unwrap(self, data: bytes) -> bytes:
        """The payload of what was received next. Raises NotAPeer."""
        payload, signature = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        if len(data) < _MAC_BYTES or not hmac.compare_digest(signature, self._sign(payload)):
            raise NotAPeer("what arrived was not sent by the other side as it is")
        return payload

    def _sign(self, payload: bytes) -> bytes:
        self._count += 1
        return sign(self._key, self._count.to_bytes(8, "big"), payload)[:_MAC_BYTES]


class Introduced(NamedTuple):
    """What is known after the exchange."""

    peer: Greeting
    outgoing: Seal
    incoming: Seal


Exchange = Generator[bytes | int, bytes, Introduced]
"""Yields bytes to send, or the most that is to be received and given to it next; nothing if the other side is gone."""


def initiate(greeting: Greeting, secret: Secret) -> Exchange:
    """The initiator's side. Raises NotAPeer."""
    return _exchange(greeting, secret, first=True)


def answer(greeting: Greeting, secret: Secret) -> Exchange:
    """The listener's side. Raises NotAPeer."""
    return _exchange(greeting, secret, first=False)


def _exchange(greeting: Greeting, secret: Secret, *, first: bool) -> Exchange:
    ours = msgspec.msgpack.encode(msgspec.structs.replace(greeting, nonce=secrets.token_bytes(_NONCE_BYTES)))
    if first:
        yield len(ours).to_bytes(2, "big") + ours
    theirs = yield from _receive(int.from_bytes((yield from _receive(2)), "big"))
    peer = _greeting(theirs)
    if not first:
        yield len(ours).to_bytes(2, "big") + ours
    said = (ours, theirs) if first else (theirs, ours)
    proofs = secret.key("initiator", *said), secret.key("listener", *said)
    if first:
        yield proofs[0]
        _check((yield from _receive(_PROOF_BYTES)), proofs[1])
    else:
        _check((yield from _receive(_PROOF_BYTES)), proofs[0])
        yield proofs[1]
    seals = Seal(secret.key("from initiator", *said)), Seal(secret.key("from listener", *said))
    return Introduced(peer, *(seals if first else reversed(seals)))


def _receive(size: int) -> Generator[bytes | int, bytes, bytes]:
    if size > MOST_GREETING_BYTES:
        raise NotAPeer("the other side is no engine")
    data = b""
    while len(data) < size:
        part = yield size - len(data)
        if not part:
            raise NotAPeer("the other side hung up while it was asked who it is: it may have another secret")
        data += part
    return data


def _greeting(data: bytes) -> Greeting:
    try:
        found = msgspec.msgpack.decode(data, type=Greeting)
    except msgspec.MsgspecError as error:
        raise NotAPeer("the other side is no engine") from error
    if found.version != VERSION:
        raise NotAPeer(f"the other side speaks version {found.version}, and this one version {VERSION}")
    if len(found.nonce) != _NONCE_BYTES:
        raise NotAPeer("the other side gave no nonce")
    return found


def _check(given: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(given, expected):
        raise NotAPeer("the other side has another secret")
