"""Embeddings by MiniLM as clients get them: against sentence-transformers, beyond the window, left in the middle."""

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from tenure.source import resolve_source
from tests.serving.conftest import Servers
from tests.serving.server import ServerProcess, until
from tests.serving.wire import LEAVING, post

TEXTS = ["Hello, world.", "", "the cat sat on the mat " * 5, "Ünïcödé 你好 🐴", "a"]
WINDOW, SPECIAL = 256, 2
WORDS = [("panda", "bear", "china", "river")[number % 4] for number in range(600)]
"""Each is one token."""


@pytest.fixture(scope="module")
def reference() -> Any:
    import sentence_transformers  # noqa: PLC0415 - seconds to import

    return sentence_transformers.SentenceTransformer(str(resolve_source("minilm").path), device="cpu")


@pytest.fixture(scope="module")
def server(servers: Servers) -> Iterator[ServerProcess]:
    with ExitStack() as stack:
        yield servers.start(stack, "minilm", "--chunk-long-inputs", "--max-chunked-len", "1000")


def answer(server: ServerProcess, path: str, **body: Any) -> dict[str, Any]:
    reply = server.http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def vectors(server: ServerProcess, **body: Any) -> np.ndarray:
    data = answer(server, "/v1/embeddings", **body)["data"]
    if isinstance(data[0]["embedding"], str):
        return np.stack([np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in data])
    return np.array([entry["embedding"] for entry in data], dtype=np.float32)


def test_as_sentence_transformers(server: ServerProcess, reference: Any) -> None:
    found = vectors(server, input=TEXTS)
    assert np.abs(found - reference.encode(TEXTS)).max() < 1e-4
    assert np.abs(vectors(server, input=TEXTS[2]) - found[2]).max() < 1e-5
    assert vectors(server, input=TEXTS, encoding_format="base64").shape == found.shape


def test_cut_as_sentence_transformers_cuts(server: ServerProcess, reference: Any) -> None:
    text = " ".join(WORDS)
    reply = answer(server, "/v1/embeddings", input=text, truncate_prompt_tokens=-1)
    assert reply["usage"]["prompt_tokens"] == WINDOW
    assert np.abs(np.array(reply["data"][0]["embedding"]) - reference.encode(text)).max() < 1e-4


def test_token_ids_are_those_of_tokenize(server: ServerProcess) -> None:
    listed = [answer(server, "/tokenize", prompt=text) for text in TEXTS]
    ids = [entry["tokens"] for entry in listed]
    assert np.abs(vectors(server, input=ids) - vectors(server, input=TEXTS)).max() < 1e-5
    assert answer(server, "/v1/embeddings", input=TEXTS)["usage"]["prompt_tokens"] == sum(e["count"] for e in listed)


def test_beyond_the_window_it_is_the_mean_of_chunks(server: ServerProcess, reference: Any) -> None:
    room = WINDOW - SPECIAL
    chunks = [WORDS[start : start + room] for start in range(0, len(WORDS), room)]
    parts = reference.encode([" ".join(chunk) for chunk in chunks])
    mean = np.average(parts, axis=0, weights=[len(chunk) for chunk in chunks])
    reply = answer(server, "/v1/embeddings", input=" ".join(WORDS))
    assert reply["usage"]["prompt_tokens"] == len(WORDS) + SPECIAL * len(chunks)
    expected = mean / np.linalg.norm(mean)
    assert np.abs(np.array(reply["data"][0]["embedding"]) - expected).max() < 1e-4


def test_the_most_that_is_chunked(server: ServerProcess) -> None:
    before = server.work("minilm")
    reply = server.http.post("/v1/embeddings", json={"input": "panda " * 999})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert (server.work("minilm") - before).computed == 0


@pytest.mark.parametrize(
    ("path", "field", "leave"),
    [
        ("/v1/embeddings", "input", "close"),
        ("/v1/embeddings", "input", "reset"),
        ("/v1/embed", "texts", "close"),
        ("/v2/embed", "texts", "half-close"),
        ("/pooling", "input", "close"),
    ],
)
def test_a_client_that_leaves(server: ServerProcess, path: str, field: str, leave: str) -> None:
    """What is left of 500 texts is gone, and a small request sent right after is not kept waiting (F01, F11)."""
    texts = [f"{number} bears of china " * 25 for number in range(500)]
    before, label = server.work("minilm"), uuid4().hex
    with server.connect() as wire:
        wire.send(post(path, {field: texts}, label))
        until(lambda: server.work("minilm").steps > before.steps)
        LEAVING[leave](wire)
    vectors(server, input="a")
    server.wait_at_rest()
    assert (server.work("minilm") - before).computed < 500 * 125 / 2, "most of it was never computed"
    [line] = server.wait_for_log(label)
    assert f"route={path} " in line
    assert "status=499 outcome=client_cancelled" in line
