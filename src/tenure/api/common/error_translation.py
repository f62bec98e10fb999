"""From the errors of the server's parts to those that callers see."""

from tenure.client import GenerationFailed, ModelNotFound, ModelNotSupported
from tenure.errors import CallerError, Refusal
from tenure.http import errors
from tenure.http.errors import ApiError
from tenure.process.fork_server import WorkFailed


def translate(exc: Exception) -> ApiError | None:
    """Return the caller's view of `exc`; None for what is our bug."""
    match exc:
        case Refusal():
            return errors.from_outcome(exc.outcome, exc.message, code=exc.code, retry_after=exc.retry_after)
        case GenerationFailed():
            return errors.from_outcome(exc.outcome, exc.message)
        case ModelNotFound():
            return errors.model_not_found(exc.name, exc.names)
        case ModelNotSupported():
            return errors.model_not_supported(exc.name, exc.tasks)
        case WorkFailed():
            return errors.engine_unavailable("A process that read the request has ended; try again.")
        case CallerError():
            return errors.invalid_request(str(exc))
        case _:
            return None
