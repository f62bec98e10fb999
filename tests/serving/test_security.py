"""A server as one would put it before strangers: HTTPS, keys, limits. What they send does no harm, and what they say
stays between them and the model."""

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from openai import OpenAI

from tests.certificates import self_signed
from tests.serving.conftest import Servers
from tests.serving.script import recited
from tests.serving.server import ServerProcess, until
from tests.serving.wire import CHAT, COMPLETIONS, LEAVING, Wire, post, request

KEY, FILE_KEY = "key-9f3c7a21", "file-key-77ab01"
MANY = 30_000
LIMITS = (
    "--max-body-size",
    "1",
    "--max-json-depth",
    "8",
    "--max-prompts",
    "4",
    "--max-n",
    "4",
    "--max-header-count",
    "40",
)
SLOW = ("--body-timeout", "2", "--header-timeout", "1")
LEAVE = {**LEAVING, "notify": Wire.notify}


@pytest.fixture(scope="module")
def server(servers: Servers, script: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Logs all that it can."""
    folder: Path = tmp_path_factory.mktemp("security")
    made, keys = self_signed(folder, "server"), folder / "keys"
    keys.write_text(f"# for tests\n{FILE_KEY}\n")
    flags = ("--ssl-certfile", str(made.certificate), "--ssl-keyfile", str(made.key), "--api-key-file", str(keys))
    with ExitStack() as stack:
        yield servers.start(
            stack,
            *(script, *flags, "--api-key", KEY, *LIMITS, *SLOW),
            *("--allowed-origins", "https://pages.example", "--kv-cache-memory", "1"),
            headers={"authorization": f"Bearer {KEY}"},
            tls=ssl.create_default_context(cafile=str(made.certificate)),
            environment={"TENURE_LOG_LEVEL": "DEBUG", "TENURE_API_KEY": "environment-key-5512"},
        )


# HTTPS


def test_clients_with_a_key_are_served_over_https(server: ServerProcess) -> None:
    assert server.address.startswith("https://127.0.0.1:")
    assert server.announced()[1].startswith(f"tenure: ready at {server.address} after ")
    assert server.text("x:", 8)
    with server.new_client() as http:
        for key, status in ((KEY, 200), (FILE_KEY, 200), ("environment-key-5512", 401), ("x", 401)):
            given = {"authorization": f"Bearer {key}"}
            assert http.get("/v1/models", headers=given).status_code == status
        with OpenAI(base_url=f"{server.address}/v1", api_key=FILE_KEY, http_client=http) as client:
            chunks = client.completions.create(model="script", prompt="x:", max_tokens=8, stream=True, temperature=0)
            assert "".join(chunk.choices[0].text for chunk in chunks) == recited("x:", 8)


def test_a_client_that_does_not_know_the_certificate_is_kept_away_from_it(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.address, trust_env=False) as http, pytest.raises(httpx.ConnectError):
        http.get("/health")


@pytest.mark.parametrize("data", [b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"\x00" * 512])
def test_what_is_no_tls_is_shut_out(server: ServerProcess, data: bytes) -> None:
    url = httpx.URL(server.address)
    with socket.create_connection((url.host, url.port or 0), timeout=10) as sock:
        sock.sendall(data)
        assert b"HTTP" not in sock.recv(1000)
    assert server.text("x:", 4)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leave", LEAVE)
def test_leaving_over_tls_ends_the_work(server: ServerProcess, path: str, stream: bool, leave: str) -> None:
    label, before = f"tls-{uuid4().hex}", server.outcomes().get("client_cancelled", 0)
    spent = server.work()
    with server.connect() as wire:
        wire.send(post(path, request(path, "x:", MANY, stream=stream), label, key=KEY))
        if stream:
            assert wire.head()[0] == 200
            assert wire.event()
        until(lambda: any(row["label"] == label for row in server.engine()["holders"]))
        LEAVE[leave](wire)
        until(lambda: server.outcomes().get("client_cancelled", 0) == before + 1)
    server.wait_at_rest()
    spent = server.work() - spent
    assert spent.sampled < MANY
    assert spent.wasted == spent.computed


def test_leaving_in_the_middle_of_a_body_over_tls(server: ServerProcess) -> None:
    before = server.outcomes().get("client_cancelled", 0)
    with server.connect() as wire:
        wire.send(post(COMPLETIONS, {"prompt": "x:"}, declared=5000, key=KEY))
        until(lambda: server.load() == 1)
        wire.reset()
    until(lambda: server.outcomes().get("client_cancelled", 0) == before + 1)


# Bad input


def _json(body: object, headers: dict[str, str] | None = None) -> Callable[[ServerProcess], httpx.Response]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"content-type": "application/json", **(headers or {})}
    return lambda server: server.http.post(COMPLETIONS, content=content, headers=given)


PROMPT = {"model": "script", "prompt": "x:"}
BAD: dict[str, tuple[Callable[[ServerProcess], httpx.Response], int, str]] = {
    "no JSON": (_json(b"{"), 400, "JSON"),
    "an array": (_json([]), 400, "object"),
    "null": (_json(b"null"), 400, "object"),
    "a number": (_json(b"123"), 400, "object"),
    "a text": (_json(b'"x"'), 400, "object"),
    "nothing": (_json(b""), 400, "JSON"),
    "not UTF-8": (_json(b'{"prompt": "\xff\xfe"}'), 400, "JSON"),
    "a lone surrogate": (_json(b'{"prompt": "\\ud800"}'), 400, "surrogate"),
    "no media type": (_json(PROMPT, {"content-type": ""}), 415, "application/json"),
    "another media type": (_json(PROMPT, {"content-type": "text/plain"}), 415, "application/json"),
    "a bare NaN": (_json(b'{"prompt": "x:", "temperature": NaN}'), 400, "JSON"),
    "a written NaN": (_json({**PROMPT, "temperature": "NaN"}), 400, "temperature"),
    "a huge number": (_json(b'{"prompt": "x:", "temperature": 1e999}'), 400, ""),
    "a huge integer": (_json(b'{"prompt": "x:", "seed": %d}' % 10**400), 400, "seed"),
    "too many digits": (_json(b'{"prompt": "x:", "metadata": {"x": %s}}' % (b"1" * 641)), 400, "out of range"),
    "no tokens": (_json({**PROMPT, "prompt": ""}), 400, "prompt"),
    "an empty list": (_json({**PROMPT, "prompt": []}), 400, "prompt"),
    "an empty list in a list": (_json({**PROMPT, "prompt": [[]]}), 400, "prompt"),
    "a token that is none": (_json({**PROMPT, "prompt": [10**9]}), 400, "prompt"),
    "a bias beyond the vocabulary": (_json({**PROMPT, "logit_bias": {"99999999": 1}}), 400, "99999999"),
    "too many choices": (_json({**PROMPT, "n": 5, "temperature": 1}), 400, "from 1 to 4"),
    "far too many choices": (_json({**PROMPT, "n": 100_000}), 400, "from 1 to 4"),
    "too many prompts": (_json({**PROMPT, "prompt": ["x:"] * 5}), 400, "at most 4"),
    "too many logprobs": (_json({**PROMPT, "logprobs": 21}), 400, "from 0 to 20"),
    "too deep": (_json(b'{"metadata": ' + b"[" * 8 + b"]" * 8 + b"}"), 400, "limit of 8 levels"),
    "too large": (_json(b" " * (1024 * 1024 + 1)), 413, "limit of 1048576 bytes"),
    "too many headers": (_json(PROMPT, {f"x-{number}": "1" for number in range(40)}), 431, "40 request headers"),
    "too large a header": (_json(PROMPT, {"x-big": "x" * 70_000}), 431, "65536 bytes"),
    "an unknown model": (_json({**PROMPT, "model": "x" * 5000}), 404, "does not exist"),
    "an unknown route": (lambda server: server.http.get("/" + "x" * 5000), 404, "no route"),
    "a wrong method": (lambda server: server.http.delete(COMPLETIONS), 405, "DELETE"),
    "a wrong key": (_json(PROMPT, {"authorization": "Bearer nonsense"}), 401, "API key"),
    "a priority that is none": (_json(PROMPT, {"x-vllm-priority": "high"}), 400, "X-Vllm-Priority"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_answered_as_such_and_does_no_harm(server: ServerProcess, name: str) -> None:
    send, status, words = BAD[name]
    reply = send(server)
    assert reply.status_code == status, reply.text
    assert words in reply.json()["error"]["message"]
    assert len(reply.json()["error"]["message"]) < 500
    assert server.http.get("/health").status_code == 200
    assert server.text("x:", 30) == recited("x:", 30)


def test_a_body_that_does_not_come_is_not_waited_for(server: ServerProcess) -> None:
    with server.connect() as wire:
        wire.send(post(COMPLETIONS, PROMPT, declared=500, key=KEY))
        status, _, body = wire.reply()
        assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
        assert "2 seconds" in json.loads(body)["error"]["message"]
    with server.connect() as wire:
        wire.send(b"POST /v1/comp")
        assert wire.reply()[0] == 408


# What is kept


def test_neither_keys_nor_prompts_are_in_the_log(server: ServerProcess) -> None:
    """ServedModel, streamed, refused, left and malformed requests alike; not at the most talkative level either."""
    secret, wrong = f"my-secret-{uuid4().hex}", f"wrong-{uuid4().hex}"
    label = f"label-{uuid4().hex}"
    for path in (COMPLETIONS, CHAT):
        for more in ({}, {"stream": True}, {"n": 99}, {"stop": secret}, {"user": secret, "metadata": {"a": secret}}):
            server.http.post(path, json=request(path, secret, 4, **more), headers={"x-request-id": label})
        for model in (secret, "script"):
            body = {**request(path, secret, 4, model=model), "temperature": secret, "reasoning_effort": secret}
            server.http.post(path, json=body, headers={"x-request-id": label})
        server.http.post(path, content=f'{{"prompt": "{secret}'.encode(), headers={"content-type": "application/json"})
        server.http.post(path, json=request(path, secret, 4), headers={"authorization": f"Bearer {wrong}"})
        server.http.post(f"{path}?key={secret}", json={}, headers={"x-api-key": wrong, "cookie": secret})
        with server.connect() as wire:
            wire.send(post(path, request(path, secret, MANY, stream=True), label, key=KEY))
            wire.event()
        with server.connect() as wire:
            wire.send(f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n{secret}\r\n\r\n".encode())
            assert wire.reply()[0] == 400
    server.http.get(f"/{secret}")
    server.wait_at_rest()
    server.wait_for_log(label, count=16)
    told = "\n".join([*server.log(), *server.announced()])
    for word in (secret, wrong, KEY, FILE_KEY, "environment-key-5512", "Traceback"):
        assert word not in told


def test_keys_are_told_nowhere(server: ServerProcess) -> None:
    texts = [server.http.get(path).text for path in ("/ledger", "/metrics", "/openapi.json", "/v1/models", "/load")]
    texts.append(server.http.post(COMPLETIONS, json={}, headers={"x-api-key": KEY}).text)
    texts += [Path(f"/proc/{pid}/{name}").read_text() for pid in _children(server) for name in ("environ", "cmdline")]
    for text in texts:
        assert "environment-key-5512" not in text
        assert KEY not in text
        assert FILE_KEY not in text


def _children(server: ServerProcess) -> list[int]:
    return [server.api_pid, server.engine_pid]
