"""A server for real clients, which are used as they are installed. None of them may go beyond this machine."""

import gc
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.serving.server import ServerProcess

SETTINGS = {
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MODE": "PRODUCTION",  # else it reads a .env file
    "LANGSMITH_TRACING": "false",
    "NO_PROXY": "127.0.0.1",
}
"""By their documented settings the clients send no telemetry and fetch no price lists."""

QUERY = "What is the capital of France?"
DOCUMENTS = (
    "Bread is made of flour, water and salt.",
    "Paris is the capital of France.",
    "The capital of Spain is Madrid.",
    "",
)
BEST = [1, 2]
"""The documents that fit the query best, best first."""


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was tried beyond this machine; every such attempt fails."""
    tried: list[str] = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(sock, address):
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1"):
            tried.append(str(address))
            raise OSError(f"{address} is not on this machine")
        return connect(sock, address)

    def guarded_look_up(host, *more, **options):
        if host not in ("127.0.0.1", "::1", "localhost", None):
            tried.append(str(host))
            raise OSError(f"{host} is not on this machine")
        return look_up(host, *more, **options)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    return tried


@pytest.fixture(scope="package")  # hence the package: the server ends with the last test in it
def server() -> Iterator[ServerProcess]:
    with closing(ServerProcess("smollm2", "minilm", "--kv-cache-memory", "0.5", "--max-num-seqs", "8")) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def address(server: ServerProcess) -> str:
    return server.address


@pytest.fixture(autouse=True)
def in_order(server: ServerProcess, outside: list[str]) -> Iterator[None]:
    """After each test the server is at rest, and the client has stayed on this machine."""
    yield
    gc.collect()  # what a client leaves open is reported here, not in another test
    server.check_alive()
    server.wait_at_rest()
    assert outside == []
