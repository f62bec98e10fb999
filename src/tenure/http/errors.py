"""Every error that a client can get: status, code, type, and the JSON envelope.

Messages are cleaned here and nowhere else: lone surrogates are escaped, echoed values are truncated, and a number
that JSON cannot represent is quoted.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from tenure.errors import EndingError
from tenure.outcomes import Outcome

MAX_ECHO_CHARACTERS = 200
MAX_MESSAGE_CHARACTERS = 4000
DEFAULT_RETRY_AFTER = 1.0


class Dialect(StrEnum):
    """Which fields an error body has besides the envelope `error`."""

    PLAIN = "plain"
    RERANK = "rerank"
    """The message again in `detail` (read by Jina's clients) and `message` (read by Cohere's)."""


class ApiError(EndingError):
    """An answer other than success. `outcome` is what the request is counted as."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        type: str,
        param: str | None = None,
        outcome: Outcome = Outcome.INVALID,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(outcome, clean_text(message))
        self.status = status
        self.code = code
        self.type = type
        self.param = None if param is None else clean_text(param)
        self.retry_after = retry_after
        self._headers = dict(headers or {})

    @property
    def headers(self) -> dict[str, str]:
        """Response headers beyond the content type; `Retry-After` is in whole seconds, at least 1."""
        if self.retry_after is None:
            return self._headers
        return {**self._headers, "retry-after": str(max(1, math.ceil(self.retry_after)))}

    def fields(self) -> dict[str, object]:
        """What `of` makes the same error of, in another process."""
        return {**vars(self), "outcome": self.outcome.value}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "ApiError":
        """Undo `fields`."""
        known = {name.removeprefix("_"): value for name, value in fields.items()}
        return cls(**{**known, "outcome": Outcome(known["outcome"])})

    def body(self, dialect: Dialect = Dialect.PLAIN) -> bytes:
        """The JSON envelope."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        if dialect is Dialect.RERANK:
            return msgspec.json.encode({"error": error, "detail": self.message, "message": self.message})
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """The same as one server-sent event."""
        return b"data: " + self.body() + b"\n\n"


# Texts


def clean_text(text: str) -> str:
    """`text` as valid Unicode of bounded length: lone surrogates become their escapes."""
    if len(text) > MAX_MESSAGE_CHARACTERS:
        text = text[:MAX_MESSAGE_CHARACTERS] + "…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def echo(value: object) -> str:
    """A caller's value as it may be shown in a message: at most 200 characters, never a bare NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"'{value}'"
    text = repr(value[: MAX_ECHO_CHARACTERS + 1] if isinstance(value, str | bytes) else value)
    return clean_text(text if len(text) <= MAX_ECHO_CHARACTERS else text[: MAX_ECHO_CHARACTERS - 1] + "…")


# One constructor for each kind of error


def malformed_request(message: str, param: str | None = None) -> ApiError:
    """Bad JSON, or a body of the wrong shape."""
    return ApiError(400, "invalid_request", message, type="Bad Request", param=param)


def invalid_request(message: str, param: str | None = None) -> ApiError:
    """A well-formed request that breaks a rule."""
    return ApiError(400, "invalid_request", message, type="BadRequestError", param=param)


def unsupported(field: str) -> ApiError:
    """A field of the API that this server does not support."""
    return invalid_request(f"`{field}` is not supported yet.", field)


def context_length_exceeded(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, "context_length_exceeded", message, type="BadRequestError", param=param)


def model_not_found(name: str, available: Sequence[str]) -> ApiError:
    message = f"The model {echo(name)} does not exist. Available models: {', '.join(available) or 'none'}."
    return ApiError(404, "model_not_found", message, type="NotFoundError", param="model")


def model_not_supported(name: str, tasks: Sequence[str]) -> ApiError:
    message = f"The model {echo(name)} cannot serve this route. It can: {', '.join(tasks) or 'nothing'}."
    return ApiError(400, "model_not_supported", message, type="BadRequestError", param="model")


def route_not_found(path: str) -> ApiError:
    return ApiError(404, "route_not_found", f"There is no route {echo(path)}.", type="NotFoundError")


def request_not_found(names: Sequence[str]) -> ApiError:
    message = f"No request is known by {', '.join(map(echo, names[:10]))}."
    return ApiError(404, "request_not_found", message, type="NotFoundError")


def method_not_allowed(method: str, allowed: Sequence[str]) -> ApiError:
    allow = ", ".join(allowed)
    message = f"The method {echo(method)} is not allowed here. Allowed: {allow}."
    return ApiError(405, "method_not_allowed", message, type="MethodNotAllowedError", headers={"allow": allow})


def invalid_api_key() -> ApiError:
    message = "The API key is missing or wrong. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
    headers = {"www-authenticate": "Bearer"}
    return ApiError(401, "invalid_api_key", message, type="AuthenticationError", headers=headers)


def request_timeout(message: str) -> ApiError:
    return ApiError(408, "request_timeout", message, type="RequestTimeoutError")


def request_too_large(limit: int) -> ApiError:
    message = f"The request body is larger than the limit of {limit} bytes."
    return ApiError(413, "request_too_large", message, type="RequestTooLargeError")


def unsupported_media_type(given: str | None) -> ApiError:
    what = "is missing" if given is None else f"is {echo(given)}"
    message = f"The Content-Type must be application/json; it {what}."
    return ApiError(415, "unsupported_media_type", message, type="UnsupportedMediaTypeError")


def headers_too_large(message: str) -> ApiError:
    return ApiError(431, "headers_too_large", message, type="HeadersTooLargeError")


def queue_full(message: str, retry_after: float | None = None) -> ApiError:
    wait = DEFAULT_RETRY_AFTER if retry_after is None else retry_after
    return ApiError(429, "queue_full", message, type="RateLimitError", outcome=Outcome.QUEUE_FULL, retry_after=wait)


def too_many_bodies(limit: int) -> ApiError:
    return queue_full(f"The bodies of open requests would be larger than the limit of {limit} bytes in all.")


def too_many_connections(limit: int) -> ApiError:
    return queue_full(f"The server has reached its limit of {limit} open connections.")


def engine_unavailable(message: str, retry_after: float | None = None) -> ApiError:
    return ApiError(
        503,
        "engine_unavailable",
        message,
        type="ServiceUnavailableError",
        outcome=Outcome.UNAVAILABLE,
        retry_after=DEFAULT_RETRY_AFTER if retry_after is None else retry_after,
    )


def deadline_exceeded(message: str) -> ApiError:
    return ApiError(504, "deadline_exceeded", message, type="GatewayTimeoutError", outcome=Outcome.DEADLINE)


def out_of_time() -> ApiError:
    """The time limit of the request, or of the server, passed before an engine admitted the request."""
    return deadline_exceeded("The request took longer than it may.")


def internal_error(message: str = "The server failed to handle this request.") -> ApiError:
    return ApiError(500, "internal_error", message, type="InternalServerError", outcome=Outcome.ENGINE_ERROR)


def client_stalled() -> ApiError:
    """The client stopped reading. Never sent: the connection is aborted instead."""
    message = "The client stopped reading the response."
    return ApiError(408, "request_timeout", message, type="RequestTimeoutError", outcome=Outcome.STALLED)


def from_outcome(
    outcome: Outcome, message: str, *, code: str | None = None, retry_after: float | None = None
) -> ApiError:
    """The error for a request that an engine refused or ended with `outcome`; `code` refines `invalid`.

    `message` is sent to the client as it is, so an engine's messages must hold no internal details.
    """
    match outcome:
        case Outcome.INVALID:
            return ApiError(400, code or "invalid_request", message, type="BadRequestError")
        case Outcome.QUEUE_FULL:
            return queue_full(message, retry_after)
        case Outcome.UNAVAILABLE | Outcome.WORKER_LOST:
            return engine_unavailable(message, retry_after)
        case Outcome.DEADLINE:
            return deadline_exceeded(message)
        case Outcome.ABORTED | Outcome.CLIENT_CANCELLED:
            why = message or "The request was ended by its id or label."
            return ApiError(409, "aborted", why, type="ConflictError", outcome=Outcome.ABORTED)
        case Outcome.KV_LOST:
            return ApiError(500, "kv_lost", message, type="InternalServerError", outcome=outcome)
        case Outcome.STALLED:
            return client_stalled()
        case _:
            return internal_error(message) if message else internal_error()
