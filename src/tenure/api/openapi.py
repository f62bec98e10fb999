"""The OpenAPI 3.1 document, made from the route table and the msgspec types that the handlers decode and encode."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tenure.http.errors import Dialect
from tenure.http.routes import Description, Route
from tenure.prompts.ranges import INT64_MAX, INT64_MIN, RANGES, Range

_WORK_ERRORS = (400, 401, 404, 405, 408, 409, 413, 415, 429, 431, 500, 503, 504)
_PLAIN_ERRORS = (400, 401, 404, 405, 408, 429, 431, 500)
_RETRY_AFTER = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
_STATUS_TEXTS: Mapping[int, str] = {
    400: "The request is malformed or breaks a rule.",
    401: "The API key is missing or wrong.",
    404: "There is no such route or model.",
    405: "The method is not allowed here.",
    408: "Headers or body took too long.",
    409: "The request was ended by its id or label.",
    413: "The body is too large.",
    415: "The media type is not application/json.",
    429: "The queue is full, or there are too many connections or bodies.",
    431: "The headers are too large.",
    500: "This request failed in the server.",
    503: "The engine is loading, draining or lost.",
    504: "A deadline passed.",
}


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str


class ErrorEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """Every error has this shape, in a stream as the last `data:` event."""

    error: ErrorDetail


class RerankErrorEnvelope(ErrorEnvelope, frozen=True, kw_only=True):
    """The envelope of the rerank routes, which repeat the message in `detail` and `message`."""

    detail: str
    message: str


_ENVELOPES: Mapping[Dialect, type] = {Dialect.PLAIN: ErrorEnvelope, Dialect.RERANK: RerankErrorEnvelope}


def build_document(routes: Sequence[Route], version: str, root_path: str = "") -> dict[str, Any]:
    """Return the document of the routes that have a description. `root_path` is the prefix behind a proxy."""
    types = {kind for route in routes if route.about for kind in _types(route.about)} | set(_ENVELOPES.values())
    ordered = sorted(types, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    references = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.about is None:
            continue
        operations = paths.setdefault(re.sub(r":path\}", "}", route.path), {})
        for method in route.methods:
            operations[method.lower()] = _operation(route, method, route.about, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tenure", "version": version, "description": "An inference server for language models."},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": {name: _tidy(schema) for name, schema in components.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _types(about: Description) -> Iterable[type]:
    return (kind for kind in (about.request, about.response, about.chunk) if kind is not None)


def _operation(route: Route, method: str, about: Description, references: Mapping[type, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{route.path}").strip("_"),
        "summary": about.summary,
        "responses": {"200": _success(about, references), **_failures(route, about, references)},
    }
    names = re.findall(r"\{(\w+)(?::path)?\}", route.path)
    if names:
        schema = {"type": "string"}
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
    if about.request is not None:
        content = {"application/json": {"schema": references[about.request]}}
        operation["requestBody"] = {"required": True, "content": content}
    if not route.open_without_key:
        operation["security"] = [{}, {"bearer": []}, {"header": []}]
    return operation


def _success(about: Description, references: Mapping[type, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if about.response is not None:
        content[about.media_type] = {"schema": references[about.response]}
    elif about.media_type != "application/json":
        content[about.media_type] = {"schema": {"type": "string"}}
    if about.chunk is not None:
        name = about.chunk.__name__
        text = f"Server-sent events: each `data:` line holds a {name}, the last one `[DONE]`."
        content["text/event-stream"] = {"schema": {"type": "string", "description": text}}
    return {"description": "Success.", **({"content": content} if content else {})}


def _failures(route: Route, about: Description, references: Mapping[type, Any]) -> dict[str, Any]:
    statuses = set(_WORK_ERRORS if route.work else _PLAIN_ERRORS)
    if route.open_without_key:
        statuses.discard(401)
    if route.body:
        statuses |= {413, 415, 504}
    if about.unready:
        statuses.add(503)
    failures: dict[str, Any] = {}
    for status in sorted(statuses):
        entry: dict[str, Any] = {
            "description": _STATUS_TEXTS[status],
            "content": {"application/json": {"schema": references[_ENVELOPES[route.dialect]]}},
        }
        if status in (429, 503):
            entry["headers"] = {"Retry-After": _RETRY_AFTER}
        failures[str(status)] = entry
    return failures


def _tidy(schema: dict[str, Any]) -> dict[str, Any]:
    """Turn the `x-` annotations of the types into plain JSON schema, with the ranges of the fields."""
    properties = {}
    for name, entry in schema.get("properties", {}).items():
        plain = _plain(entry)
        if name in RANGES and (schema.get("title", "").endswith("Request")):
            plain = {**plain, **_bounds(RANGES[name])}
        properties[name] = plain
    return {**schema, **({"properties": properties} if properties else {})}


def _plain(entry: Any) -> Any:
    if isinstance(entry, list):
        return [_plain(part) for part in entry]
    if not isinstance(entry, dict):
        return entry
    if "x-replace" in entry:
        rest = {key: value for key, value in entry.items() if key not in ("x-replace", "anyOf")}
        return {**entry["x-replace"], **rest}
    if entry.get("x-whole-number"):
        return {"type": "integer"}
    return {key: _plain(value) for key, value in entry.items()}


def _bounds(allowed: Range) -> dict[str, float]:
    bounds: dict[str, float] = {}
    if allowed.low > INT64_MIN:
        bounds["exclusiveMinimum" if allowed.above_low else "minimum"] = allowed.low
    if not allowed.clamped and allowed.high < INT64_MAX:
        bounds["maximum"] = allowed.high
    return {key: value for key, value in bounds.items() if abs(value) != float("inf")}
