"""What engines say to each other about tickets and claims, between `core.claims` and `core.tickets`."""

import msgspec


class PeerMessage(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of what engines say to each other about claims, which are numbered by the side that reads."""

    claim: int


class Claim(PeerMessage, frozen=True, kw_only=True):
    """Answered by `Granted` or `Refused`."""

    ticket: bytes


class BeginRead(PeerMessage, frozen=True, kw_only=True):
    """From now on blocks are read."""


class Confirm(PeerMessage, frozen=True, kw_only=True):
    """All was read; answered by `Confirmed`."""


class Release(PeerMessage, frozen=True, kw_only=True):
    """The blocks are not needed any more. Not answered."""


class ReleaseTicket(msgspec.Struct, frozen=True, tag=True):
    """Whoever brought the ticket may not enter, and will not claim it. Not answered."""

    ticket: bytes


class Granted(PeerMessage, frozen=True, kw_only=True):
    """The prompt's keys and values can be read."""

    block_size: int
    """Of the blocks that hold them, in tokens."""


class Refused(PeerMessage, frozen=True, kw_only=True):
    """There is nothing to read, or not any more."""

    reason: str


class Confirmed(PeerMessage, frozen=True, kw_only=True):
    """Whether what was read is what the ticket stands for. The other side has let go of it."""

    valid: bool


ToReader = Granted | Refused | Confirmed
ToOwner = Claim | BeginRead | Confirm | Release | ReleaseTicket
