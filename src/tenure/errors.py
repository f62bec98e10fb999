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

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message


class Refusal(ResourceError, EndingError):
    """A request is not admitted, and nothing of it is held: an engine's gate makes one, its caller raises it.

    `code` is the error code of the HTTP API. `retry_after`: seconds after which there should be room; None where nobody
    knows, or waiting would not help.
    """

    def __init__(self, outcome: Outcome, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(outcome, message)
        self.code = code
        self.retry_after = retry_after


def too_large(items: int, tokens: int, most_items: int, most_tokens: int) -> Refusal | None:
    """The refusal of a request that is larger by itself than a limit of its engine; None for one that is not."""
    for what, wanted, limit in (("items", items, most_items), ("prompt tokens", tokens, most_tokens)):
        if wanted > limit:
            message = f"the request has {wanted} {what}; this server takes at most {limit} at a time"
            return Refusal(Outcome.INVALID, "invalid_request", message)
    return None


class InternalError(TenureError):
    """Our bug: an invariant does not hold."""
