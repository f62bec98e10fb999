"""Who may talk to the server: keys, web pages of other origins, and what a proxy's prefix changes."""

import pytest

from tenure.api.app import route_table
from tenure.config import ApiSettings, CorsConfig
from tenure.http.cors import add_cors_headers, answer_preflights
from tests.api.generation_rig import Rig
from tests.http.rig import LIMITS, serving, talk
from tests.http.web_server import Reply, post
from tests.tasks import run, until

OPEN_PATHS = {"/health", "/ready", "/ping", "/version"}
CORS = CorsConfig(origins=("https://pages.example",), methods=("POST",), headers=("authorization", "x-request-id"))


def cors_talk(*requests: bytes, cors: CorsConfig = CORS, keys: tuple[str, ...] = (), **outcomes: int) -> list[Reply]:
    """As `talk`, to a server whose answers other origins may read as `cors` says."""
    return talk(
        *requests,
        keys=keys,
        inside=lambda app: answer_preflights(app, cors),
        outside=lambda app: add_cors_headers(app, cors),
        **outcomes,
    )


# Keys


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first"},
        {"authorization": "bearer  second "},
        {"x-api-key": "kľúč".encode().decode("latin-1")},
        {"authorization": "Bearer wrong", "x-api-key": "first"},
        {"authorization": "Bearer second", "x-api-key": "wrong"},
        {"authorization": "Basic Zmlyc3Q=", "x-api-key": "second"},
    ],
)
def test_any_of_the_keys_opens_in_either_header(headers: dict[str, str]) -> None:
    async def scenario() -> None:
        async with serving(keys=("first", "second", "kľúč")) as rig, rig.client() as client:
            client.send(post("/hello", **{name.replace("-", "_"): value for name, value in headers.items()}))
            assert (await client.reply()).status == 200
            await rig.idle(ok=1)

    run(scenario)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer"},
        {"authorization": "first"},
        {"authorization": "Basic first"},
        {"authorization": "Bearer firs"},
        {"authorization": "Bearer first1"},
        {"authorization": "Bearer first second"},
        {"authorization": "Bearer FIRST"},
        {"x-api-key": ""},
        {"x-api-key": "first,second"},
        {"x-api-key": "\xff\xfe"},
        {"authorization": "Bearer " + "x" * 5000},
        {"cookie": "x-api-key=first"},
    ],
)
def test_nothing_else_does(headers: dict[str, str]) -> None:
    fields = {name.replace("-", "_"): value for name, value in headers.items()}
    (reply,) = talk(post("/hello", **fields), keys=("first", "second"), invalid=1)
    assert (reply.status, reply.code) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert "first" not in reply.body.decode()


def test_a_key_does_not_stand_in_the_address() -> None:
    (reply,) = talk(post("/hello?api_key=first&x-api-key=first"), keys=("first",), invalid=1)
    assert reply.status == 401


def test_every_route_wants_the_key_but_four() -> None:
    rig = Rig(keys=("k",))
    for route in route_table().routes:
        path = route.path.replace("{model:path}", "tiny").replace("{id}", "x")
        for method in route.methods:
            body = {"content": b"{}", "headers": {"content-type": "application/json"}} if route.body else {}
            bare = rig.request(method, path, **body)
            assert (bare.status_code == 401) == (path not in OPEN_PATHS), (method, path, bare.text)
            given = {**body.get("headers", {}), "x-api-key": "k"}
            assert rig.request(method, path, **{**body, "headers": given}).status_code != 401
    assert {route.path for route in route_table().routes if route.open_without_key} == OPEN_PATHS
    assert rig.request("GET", "/nowhere").status_code == 404
    assert rig.engine.submitted == []


def test_the_key_is_checked_before_a_body_is_read() -> None:
    async def scenario() -> None:
        async with serving(keys=("k",)) as rig, rig.client() as client:
            client.send(post("/hello", b"", content_length=str(LIMITS.max_body_bytes)))
            assert (await client.reply()).status == 401
            await rig.idle(invalid=1)

    run(scenario)


# Web pages


def preflight(origin: str, method: str = "POST", headers: str = "authorization") -> bytes:
    fields = f"origin: {origin}\r\naccess-control-request-method: {method}\r\n"
    fields += f"access-control-request-headers: {headers}\r\n"
    return f"OPTIONS /hello HTTP/1.1\r\nhost: x\r\n{fields}\r\n".encode()


def allowed(reply: Reply) -> str | None:
    return reply.headers.get("access-control-allow-origin")


def test_pages_of_other_origins_are_shut_out_by_default() -> None:
    replies = cors_talk(preflight("https://pages.example"), post("/hello", origin="https://x"), cors=CorsConfig(), ok=1)
    assert [reply.status for reply in replies] == [204, 200]
    assert not [name for reply in replies for name in reply.headers if name.startswith("access-control")]


def test_a_preflight_needs_no_key_and_is_no_work() -> None:
    (reply,) = cors_talk(preflight("https://pages.example"), keys=("k",))
    assert (reply.status, allowed(reply)) == (200, "https://pages.example")
    assert reply.headers["access-control-allow-methods"] == "POST"
    assert "authorization" in reply.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in reply.headers


@pytest.mark.parametrize(
    "request_", [preflight("https://other.example"), preflight("https://pages.example", "DELETE"), preflight("null")]
)
def test_a_preflight_for_what_is_not_allowed(request_: bytes) -> None:
    (reply,) = cors_talk(request_)
    assert reply.status == 400
    assert allowed(reply) in (None, "https://pages.example")


def test_answers_and_errors_can_be_read_by_the_page() -> None:
    ours = {"origin": "https://pages.example"}
    replies = cors_talk(
        post("/hello", x_api_key="k", **ours),
        post("/hello", **ours),
        post("/nowhere", **ours),
        post("/hello", x_api_key="k", content_type="text/plain", **ours),
        post("/fail/api/early", x_api_key="k", **ours),
        post("/fail/bug/early", x_api_key="k", **ours),
        post("/fail/api/stream", x_api_key="k", **ours),
        keys=("k",),
        ok=1,
        invalid=2,
        queue_full=2,
        engine_error=1,
    )
    assert [reply.status for reply in replies] == [200, 401, 404, 415, 429, 500, 200]
    for reply in replies:
        assert allowed(reply) == "https://pages.example"
        assert reply.headers["access-control-expose-headers"] == "X-Request-Id, X-Tenure-Request-Id, Retry-After"
        assert "Origin" in reply.headers["vary"]


def test_other_pages_get_no_leave_to_read_an_answer() -> None:
    (reply,) = cors_talk(post("/hello", origin="https://other.example"), ok=1)
    assert (reply.status, allowed(reply)) == (200, None)


def test_all_origins() -> None:
    everyone = CorsConfig(origins=("*",))
    for reply in cors_talk(
        preflight("https://a", "DELETE", "x-any"), post("/hello", origin="https://a"), cors=everyone, ok=1
    ):
        assert (reply.status, allowed(reply)) == (200, "*")
    cookies = CorsConfig(origins=("*",), credentials=True)
    for reply in cors_talk(preflight("https://a"), post("/hello", origin="https://a"), cors=cookies, ok=1):
        assert (reply.status, allowed(reply)) == (200, "https://a")
        assert reply.headers["access-control-allow-credentials"] == "true"


def test_a_page_that_leaves_ends_its_request() -> None:
    async def scenario() -> None:
        def inside(app):
            return answer_preflights(app, CORS)

        async with serving(inside=inside, outside=lambda app: add_cors_headers(app, CORS)) as rig:
            async with rig.client() as client:
                client.send(post("/stream", origin="https://pages.example"))
                assert b"access-control-allow-origin: https://pages.example" in await client.until(b"data: ")
            await rig.idle_after_arrival(client_cancelled=1)

    run(scenario)


# A proxy's prefix


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/hello", 200),
        ("/llm/hello", 200),
        ("/llm/llm/hello", 404),
        ("/llmhello", 404),
        ("/llm", 404),
        ("/x/hello", 404),
        ("//llm//hello/", 200),
        ("//hello", 200),
    ],
)
def test_routes_with_and_without_the_prefix(path: str, status: int) -> None:
    async def scenario() -> None:
        async with serving(root_path="/llm", keys=("k",)) as rig:
            async with rig.client() as client:
                client.send(post(path, x_api_key="k"))
                assert (await client.reply()).status == status
            async with rig.client() as client:
                client.send(post(path))  # the prefix is no way around the key
                assert (await client.reply()).status == (401 if status == 200 else status)
            await until(lambda: rig.guard.snapshot().open == 0)

    run(scenario)


def test_a_prefix_that_looks_like_a_route() -> None:
    async def scenario() -> None:
        async with serving(root_path="/things") as rig, rig.client() as client:
            for path in ("/things/one", "/things/things/one", "/things/health"):
                client.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                assert (await client.reply()).status == 200
            await rig.idle()

    run(scenario)


def test_the_document_names_the_prefix() -> None:
    assert Rig().request("GET", "/openapi.json").json()["servers"] == [{"url": "/"}]
    behind = Rig(settings=ApiSettings(version="0.0", root_path="/llm"))
    assert behind.request("GET", "/llm/openapi.json").json()["servers"] == [{"url": "/llm"}]
    assert behind.request("GET", "/llm/docs").text == behind.request("GET", "/docs").text
