"""Three families of errors: the caller's fault, a resource or a remote, our bug.

Foreign exceptions are translated into these at the boundary where they arise.
"""

from tenure.outcomes import Outcome


class TenureError(Exception):
    """Base of all errors that Tenure raises on purpose."""


class CallerError(TenureError):
    """What was asked for is wrong; asking again will not help. The message is fit for the caller's eyes."""


class ResourceError(TenureError):
    """A file, a process, a peer or a limit stands in the way; the same call may succeed later or elsewhere."""


class EndingError(TenureError):
    """An error that says how the request ends which it is raised in."""

    outcome: Outcome


class InternalError(TenureError):
    """Our bug: an invariant does not hold."""
