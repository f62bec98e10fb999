"""Routes are found by path, then by method."""

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
    assert table.match("GET", "/v1/responses/") is None
    assert table.match("GET", "/nowhere") is None
    assert table.work_paths() == ("/v1/responses",)
