"""Large bodies on a whole server: they are read beside the API process."""

import psutil

from tests.serving.conftest import Start
from tests.serving.server import ServerProcess, until


def test_a_large_body_is_answered_as_a_small_one(server: ServerProcess) -> None:
    ids = [token % 90 + 10 for token in range(100_000)]
    small = server.text(ids[-20:], 4, "smollm2")
    assert server.text(ids, 4, "smollm2", truncate_prompt_tokens=20, truncation_side="left") == small
    error = server.http.post("/v1/completions", json={"prompt": ids}).json()["error"]
    assert error["code"] == "context_length_exceeded"


def test_each_api_process_has_a_fork_server_and_no_worker_stays(server: ServerProcess) -> None:
    (fork_server,) = psutil.Process(server.api_pid).children()
    assert server.http.post("/tokenize", json={"prompt": "a " * 100_000}).json()["count"] > 100_000
    descriptors = [file.fd for file in fork_server.open_files() if file.fd > 2]
    assert descriptors == []
    assert not fork_server.net_connections("tcp"), "it would keep the port when the server has ended"
    assert fork_server.children() == []


def test_a_fork_server_that_is_killed_leaves_nothing_behind(start: Start, script: str) -> None:
    """Large bodies are read by the API process itself then."""
    server = start(script)
    process = psutil.Process(server.api_pid)
    process.children()[0].kill()
    until(lambda: not process.children())
    assert server.http.post("/tokenize", json={"prompt": "a " * 100_000}).json()["count"] > 100_000
