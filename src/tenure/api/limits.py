"""The bounds of the HTTP layer, in one value that the protocol, the guard and the streams share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Sizes in bytes, times in seconds."""

    max_header_bytes: int = 64 * 1024
    max_header_count: int = 256
    header_timeout: float = 10.0
    """From the first byte of a request (or the start of a connection) to the end of its headers."""
    max_body_bytes: int = 32 * 1024 * 1024
    max_body_depth: int = 64
    body_timeout: float = 30.0
    """From the end of the headers to the end of the body."""
    max_trailing_bytes: int = 64 * 1024
    """What a client may send ahead of time, beyond the request that is being answered."""
    linger_timeout: float = 5.0
    """How long a refused client may go on sending, so that it gets to read why it was refused."""
    stall_timeout: float = 30.0
    """How long one write may wait for a client that does not read."""
    keep_alive_interval: float = 0.0
    """Silence in a stream after which a comment line is sent; 0 is off."""
