"""What every response of one call has in common."""

from dataclasses import dataclass

import msgspec

ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True)
class ReplyHead:
    """`created` is in Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str


def fingerprint(version: str) -> str:
    """What computed the answer; it changes with the server's version."""
    return f"tenure-{version}"
