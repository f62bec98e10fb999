"""A server that cannot start says why, in a line that a newcomer understands, and leaves nothing."""

import socket
import subprocess
import sys

import pytest

from tests.serving.script import write_script
from tests.serving.server import ServerProcess


def _serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tenure", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def _complaint(*arguments: str) -> str:
    """The one line that a start which fails prints."""
    ended = _serve(*arguments)
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    [line] = ended.stderr.splitlines()
    assert line.startswith("tenure: ")
    return line


def test_port_in_use(script: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        complaint = _complaint(script, "--port", str(port))
    assert complaint == f"tenure: cannot listen on 127.0.0.1:{port}: Address already in use"


def test_address_that_is_not_ours(script: str) -> None:
    assert "cannot listen on 192.0.2.1:8000" in _complaint(script, "--host", "192.0.2.1")


@pytest.mark.parametrize("source", ["no-such-alias", "/no/such/model.gguf", "name=/no/such/folder"])
def test_model_that_is_not_there(source: str) -> None:
    assert f"no model at '{source.rpartition('=')[2]}'" in _complaint(source, "--port", "0")


def test_two_models_of_one_name(script: str) -> None:
    assert "each model needs a name of its own" in _complaint(script, script, "--port", "0")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--max-model-len", "100000"), "--max-model-len 100000 is beyond the model's window of 32768 tokens"),
        (("--kv-cache-memory", "1e-9"), "--kv-cache-memory 1e-09 GiB is less than one block"),
    ],
)
def test_limits_that_only_the_engine_can_check(script: str, flags: tuple[str, str], complaint: str) -> None:
    assert complaint in _complaint(script, "--port", "0", *flags)


def test_broken_weights(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_script(tmp_path_factory.mktemp("broken"))
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    assert "model.safetensors" in _complaint(str(folder), "--port", "0")


def test_broken_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_script(tmp_path_factory.mktemp("broken"))
    (folder / "tokenizer.json").write_text("{")
    assert "tokenizer.json" in _complaint(str(folder), "--port", "0")


def test_what_is_announced(server: ServerProcess) -> None:
    """The ready line names the address, the models and how much fits."""
    announced = server.announced()
    assert announced[0] == "tenure: starting smollm2, script"
    assert announced[1].startswith(f"tenure: ready at {server.address} after ")
    assert announced[2].startswith("  smollm2: generate (float32), window of 8192 tokens, ")
    assert announced[3].startswith("  script: generate (float32), window of 32768 tokens, 32768 KV blocks for 524288")
