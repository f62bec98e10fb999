"""The bounds of the HTTP layer, in one value that the protocol, the guard and the streams share."""

from tenure.config import HttpLimits

__all__ = ["HttpLimits"]
