"""What is known of a request from its head, before anything of it is checked."""

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
    """What is known of a request from its head."""

    route: Route
    method: str
    path: str
    path_params: Mapping[str, str]
    headers: Headers
    request_id: str
    """Made here: the id of the response, and the only identity there is."""
    label: str
    """The caller's `X-Request-Id`, checked to be printable ASCII; empty when absent or refused."""
    label_refusal: ApiError | None
    """Raised when the label's turn among the checks comes."""
    received_at: float
    """Monotonic seconds."""

    @property
    def asks_options(self) -> bool:
        """It asks what a route can do: no work, no body, and no key is needed."""
        return self.method == "OPTIONS"


class RequestOptions(NamedTuple):
    """What the head of a request asks of the engine, and for whom."""

    rank: int | None = None
    """`X-data-parallel-rank`: which engine of the model; its range unchecked."""
    timeout: float | None = None
    """Seconds from its arrival in which it must be over: its `X-Request-Timeout`, or the server's if that is less."""
    owner: str = ""
    """What stands for the API key that it came with."""


async def _unrouted(_call: object) -> None:
    raise AssertionError("the guard refuses before this runs")


UNROUTED = Route("", (), _unrouted, dialect=Dialect.RERANK)
"""Stands for the route of a request that has none. Its error has what clients of any route read."""


def read_head(scope: Scope, match: Match | None, process: str, now: float) -> RequestHead:
    """A request that has just come to the API process of that name, for the route that its path led to."""
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
    """A target may name scheme and host before the path (RFC 9112, 3.2.2)."""
    scheme, separator, rest = scope["path"].partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        return scope
    return {**scope, "path": "/" + rest.partition("/")[2]}


def _read_label(headers: Headers) -> tuple[str, ApiError | None]:
    try:
        return intake.read_label(headers), None
    except ApiError as error:
        return "", error
