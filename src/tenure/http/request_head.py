"""The head of a request: parsed, matched to a route, and not checked yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

from tenure.http import intake
from tenure.http.errors import ApiError, Dialect
from tenure.http.routes import Match, Route
from tenure.request_id import new_request_id


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The parsed head of a request."""

    route: Route
    method: str
    path: str
    path_params: Mapping[str, str]
    headers: Headers
    request_id: str
    """Made by the server: the id of the response, and the only identity of the request."""
    label: str
    """The caller's `X-Request-Id`, checked to be printable ASCII; empty when absent or refused."""
    label_refusal: ApiError | None
    """The error of an invalid label; raised later, in the documented order of the checks."""
    received_at: float
    """Monotonic seconds."""

    @property
    def asks_options(self) -> bool:
        """Whether the method is OPTIONS: such a request is not work, has no body and needs no key."""
        return self.method == "OPTIONS"


class RequestOptions(NamedTuple):
    """The options for the engine that a request's headers give."""

    rank: int | None = None
    """`X-data-parallel-rank`: which engine of the model; its range unchecked."""
    timeout: float | None = None
    """Deadline in seconds from its arrival: the lesser of `X-Request-Timeout` and the server's own limit."""
    owner: str = ""
    """Identifier of the API key, as `intake.check_key` returns it."""


async def _unrouted(_call: object) -> None:
    raise AssertionError("the guard refuses before this runs")


UNROUTED = Route("", (), _unrouted, dialect=Dialect.RERANK)
"""Stands for the route of a request that has none. Its error has what clients of any route read."""


def read_head(scope: Scope, match: Match | None, process: str, now: float) -> RequestHead:
    """Parse the head of a request of `match`; `process` is the name of this API process, `now` monotonic seconds."""
    route = UNROUTED if match is None else match.route
    headers = Headers(scope=scope)
    label, label_refusal = _read_label(headers)
    return RequestHead(
        route=route,
        method=scope["method"],
        path=scope["path"],
        path_params={} if match is None else match.path_params,
        headers=headers,
        request_id=new_request_id(route.id_prefix, process),
        label=label,
        label_refusal=label_refusal,
        received_at=now,
    )


def in_origin_form(scope: Scope) -> Scope:
    """Return the scope with a path alone: a target may name scheme and host before it (RFC 9112, 3.2.2)."""
    scheme, separator, rest = scope["path"].partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        return scope
    return {**scope, "path": "/" + rest.partition("/")[2]}


def _read_label(headers: Headers) -> tuple[str, ApiError | None]:
    try:
        return intake.read_label(headers), None
    except ApiError as error:
        return "", error
