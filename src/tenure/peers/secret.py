"""The secret of a cluster, which its servers share and nobody else has, and the keys that are made of it."""

import hashlib
import hmac

from tenure.errors import CallerError

_LEAST_BYTES = 16


class Secret:
    """It is never shown, sent or logged; for each purpose there is another key."""

    def __init__(self, value: bytes) -> None:
        """Raises CallerError for a secret that could be guessed."""
        if len(value) < _LEAST_BYTES:
            raise CallerError(f"the secret of a cluster needs {_LEAST_BYTES} bytes at least")
        self._value = value

    def __repr__(self) -> str:
        return "Secret()"

    def key(self, purpose: str, *parts: bytes) -> bytes:
        """32 bytes that depend on all parts; `purpose` keeps keys for different uses apart."""
        return sign(self._value, purpose.encode(), *parts)


def sign(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104) of parts, each with its length, so that no two lists of parts have the same."""
    found = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()
