"""The route table: which handler answers a path and method, and what the guard must know of it beforehand."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tenure.http.errors import Dialect

_SLASHES = re.compile("/{2,}")

Handler = Callable[[Any], Awaitable[None]]
"""Called with the `Call` that the dispatcher makes of an exchange."""


@dataclass(frozen=True, slots=True)
class Description:
    """What the OpenAPI document says of a route."""

    summary: str
    request: type | None = None
    response: type | None = None
    chunk: type | None = None
    """The event of a streamed answer."""
    media_type: str = "application/json"
    unready: bool = False
    """May answer 503 though it is no work route: it needs an engine, or tells of engines."""


@dataclass(frozen=True, slots=True)
class Route:
    """One row. Aliases are further rows with the same handler.

    `path` may hold parameters: `{name}` is one segment, `{name:path}` the rest including slashes.
    """

    path: str
    methods: tuple[str, ...]
    handler: Handler
    id_prefix: str = ""
    """Prefix of the ids of its requests."""
    work: bool = False
    """Counted: arrivals, outcomes, load, and a line in the access log."""
    open_without_key: bool = False
    reader: Callable[..., Any] | None = None
    """What reads its JSON body, if it takes one: media type, size and time are checked before the handler runs."""
    dialect: Dialect = Dialect.PLAIN
    """Format of its error bodies, those of the guard included."""
    about: Description | None = None

    @property
    def body(self) -> bool:
        return self.reader is not None


class ReadingHandler(Protocol):
    """A handler that has the reader of its bodies with it."""

    async def __call__(self, call: Any, /) -> None: ...

    def read(self, body: bytes | bytearray, reading: Any, /) -> object: ...


def work_route(
    path: str, handler: ReadingHandler, id_prefix: str, about: Description, dialect: Dialect = Dialect.PLAIN
) -> Route:
    """The row of a route whose requests are work."""
    return Route(path, ("POST",), handler, id_prefix, work=True, reader=handler.read, dialect=dialect, about=about)


@dataclass(frozen=True, slots=True)
class Match:
    """What a path led to. When `allowed` is False, `route` is one that has the path but not the method."""

    route: Route
    path_params: Mapping[str, str] = field(default_factory=dict)
    allowed: bool = True
    allow: tuple[str, ...] = ()


class RouteTable:
    """Looks up routes; literal paths win over patterns, patterns are tried in table order.

    Two paths are the same that differ in a slash at the end, in several slashes for one, or in `root_path`, the prefix
    that a proxy has taken off or not.
    """

    def __init__(self, routes: Iterable[Route], root_path: str = "") -> None:
        self.routes = tuple(routes)
        self._root_path = root_path
        self._literal: dict[str, list[Route]] = {}
        self._patterns: list[tuple[re.Pattern[str], Route]] = []
        for route in self.routes:
            if "{" in route.path:
                self._patterns.append((_compile(route.path), route))
            else:
                self._literal.setdefault(route.path, []).append(route)

    def work_paths(self) -> tuple[str, ...]:
        """The paths of the work routes, each once, in table order."""
        return tuple(dict.fromkeys(route.path for route in self.routes if route.work))

    def match(self, method: str, path: str) -> Match | None:
        """The route for a request; None when no route has this path. HEAD is answered by the route for GET."""
        path = _SLASHES.sub("/", path).removesuffix("/")
        candidates = self._candidates(path)
        if not candidates and path.startswith(self._root_path + "/"):
            candidates = self._candidates(path.removeprefix(self._root_path))
        if not candidates:
            return None
        wanted = "GET" if method == "HEAD" else method
        for route, params in candidates:
            if method in route.methods or wanted in route.methods:
                return Match(route, params)
        route, params = candidates[0]
        allow = tuple(dict.fromkeys(name for route, _ in candidates for name in route.methods))
        return Match(route, params, allowed=False, allow=allow)

    def _candidates(self, path: str) -> list[tuple[Route, dict[str, str]]]:
        found: list[tuple[Route, dict[str, str]]] = [(route, {}) for route in self._literal.get(path, ())]
        if found:
            return found
        for pattern, route in self._patterns:
            if (hit := pattern.fullmatch(path)) is not None:
                found.append((route, hit.groupdict()))
        return found


def _compile(path: str) -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)(:path)?\}", path)
    pattern = re.escape(pieces[0])
    for name, greedy, literal in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        pattern += f"(?P<{name}>{'.+' if greedy else '[^/]+'}){re.escape(literal)}"
    return re.compile(pattern, re.DOTALL)
