"""Routes are found by path, then by method."""

import pytest

from tenure.api.app import route_table
from tenure.http.routes import Route, RouteTable


async def handler(_call: object) -> None: ...


def test_routes_are_found_by_path_then_method() -> None:
    table = RouteTable(
        [
            Route("/v1/responses/{id}/cancel", ("POST",), handler),
            Route("/v1/responses/{id:path}", ("GET",), handler),
            Route("/v1/responses", ("POST",), handler, work=True),
            Route("/ping", ("GET",), handler),
            Route("/ping", ("POST",), handler),
        ]
    )
    cancel = table.match("POST", "/v1/responses/r1/cancel")
    assert cancel is not None
    assert (cancel.route.path, dict(cancel.path_params)) == ("/v1/responses/{id}/cancel", {"id": "r1"})
    slashes = table.match("GET", "/v1/responses/org/a.b")
    assert slashes is not None
    assert dict(slashes.path_params) == {"id": "org/a.b"}
    head = table.match("HEAD", "/ping")
    assert head is not None
    assert head.allowed
    wrong = table.match("PUT", "/ping")
    assert wrong is not None
    assert (wrong.allowed, wrong.allow) == (False, ("GET", "POST"))
    assert table.match("GET", "v1/responses") is None
    assert table.match("GET", "/nowhere") is None
    assert table.work_paths() == ("/v1/responses",)


@pytest.mark.parametrize("root_path", ["", "/llm"])
def test_slashes_too_many_lead_to_the_same_route(root_path: str) -> None:
    """Clients that join a base with a slash at its end and a path write `//v1/…`; scrapers write `/metrics/`."""
    table = route_table(root_path)
    for route in table.routes:
        path = route.path.replace("{id}", "chatcmpl-1").replace("{model:path}", "org/name")
        plain = table.match(route.methods[0], path)
        assert plain is not None
        for written in (f"/{path}", f"{path}/", f"//{path.replace('/', '///')}//", f"{root_path}/{path}/"):
            found = table.match(route.methods[0], written)
            assert found is not None, written
            assert (found.route, found.path_params, found.allowed) == (route, plain.path_params, True)
    assert table.match("GET", "/v1") is table.match("GET", "//") is table.match("GET", "/healthz/") is None
