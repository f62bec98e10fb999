"""Servers for these tests. After every test each running server must be at rest: a leak fails the test that leaked."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.serving.script import write_script
from tests.serving.server import ServerProcess
from tests.serving.wire import CHAT, COMPLETIONS, LEAVING, Leave

Start = Callable[..., ServerProcess]


class Servers:
    """All servers that run."""

    def __init__(self) -> None:
        self.running: list[ServerProcess] = []

    def start(self, stack: ExitStack, *arguments: str, ready: bool = True, **more: Any) -> ServerProcess:
        server = stack.enter_context(closing(ServerProcess(*arguments, **more)))
        if ready:
            server.wait_ready()
        self.running.append(server)
        stack.callback(self.running.remove, server)
        return server


@pytest.fixture(scope="session")
def servers() -> Servers:
    return Servers()


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SOURCE of the model that recites."""
    folder: Path = write_script(tmp_path_factory.mktemp("models") / "script")
    return f"script={folder}"


@pytest.fixture(scope="session")
def server(servers: Servers, script: str) -> Iterator[ServerProcess]:
    """Both models on one port, with the defaults but for its size."""
    with ExitStack() as stack:
        yield servers.start(stack, "smollm2", script, "--max-num-seqs", "16", "--kv-cache-memory", "1")


@pytest.fixture(scope="session")
def exact_server(servers: Servers) -> Iterator[ServerProcess]:
    """SmolLM2 in steps that do not depend on the time they take."""
    with ExitStack() as stack:
        arguments = ("--step-time", "0", "--max-num-batched-tokens", "512", "--max-num-seqs", "16")
        yield servers.start(stack, "smollm2", *arguments, "--kv-cache-memory", "1")


@pytest.fixture(params=(COMPLETIONS, CHAT))
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LEAVING)
def leave(request: pytest.FixtureRequest) -> Leave:
    return LEAVING[request.param]


@pytest.fixture
def start(servers: Servers) -> Iterator[Start]:
    """Start a server of the test's own, which ends with it."""
    with ExitStack() as stack:
        yield partial(servers.start, stack)


@pytest.fixture(autouse=True)
def at_rest(servers: Servers, start: Start) -> Iterator[None]:
    """See the module's text. A server that the test has ended itself has nothing to show."""
    yield
    for server in servers.running:
        server.check_alive()
        if server.alive:
            server.wait_at_rest()
            server.check_log()
