"""However a request for vectors or scores ends, its outcome is one that every request has: no vector is needed."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from safetensors.torch import load_file, save_file

from tests.models.tiny_encoders import save_encoder
from tests.serving.conftest import Servers, Start
from tests.serving.server import ServerProcess, until
from tests.serving.wire import Wire, post
from tests.text.test_pairs import bert_folder, transformers

MANY = [f"{number} bears of china " * 25 for number in range(500)]
STEP_TOKENS = 2048
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": MANY},
    "/v2/embed": {"texts": MANY, "input_type": "search_document"},
    "/pooling": {"input": MANY},
    "/score": {"queries": "bears", "documents": MANY},
    "/v2/rerank": {"query": "bears", "documents": MANY},
}


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder of MiniLM's size, for which one word of its vocabulary is not a number."""
    folder = bert_folder(tmp_path_factory.mktemp("poisoned"))
    with transformers() as library:
        tokenizer = library.AutoTokenizer.from_pretrained(folder)
        size = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12}
        more = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "initializer_range": 0.02}
        save_encoder("Bert", folder, "ForSequenceClassification", num_labels=1, **size, **more)
        word = tokenizer.convert_tokens_to_ids("panda")
    weights = load_file(folder / "model.safetensors")
    weights["bert.embeddings.word_embeddings.weight"][word] = float("nan")
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def readers(servers: Servers, poisoned: Path) -> Iterator[ServerProcess]:
    with ExitStack() as stack:
        yield servers.start(stack, "minilm", f"poisoned={poisoned}")


@pytest.fixture(scope="module")
def stepper(servers: Servers, poisoned: Path) -> Iterator[ServerProcess]:
    """The same in steps that do not depend on the time they take, which is long."""
    with ExitStack() as stack:
        steps = ("--step-time", "0", "--max-num-batched-tokens", str(STEP_TOKENS))
        yield servers.start(stack, "minilm", f"poisoned={poisoned}", *steps)


@pytest.mark.parametrize("path", ["/score", "/rerank", "/v1/rerank", "/v2/rerank", "/classify"])
def test_numbers_that_are_none_are_a_clean_500(readers: ServerProcess, path: str) -> None:
    """The text that has them takes its request with it, and no other."""

    def ask(*texts: str) -> Any:
        fields = {"/score": ("queries", "documents"), "/classify": ("input", "input")}
        one, several = fields.get(path, ("query", "documents"))
        body = {"model": "poisoned", one: "hello world", several: list(texts)}
        return readers.http.post(path, json=body)

    def scores(reply: Any) -> list[float]:
        found = reply.json()
        return [
            entry.get("score", entry.get("relevance_score", entry.get("probs")))
            for entry in found.get("data", found.get("results"))
        ]

    good = scores(ask("the bear", "hello"))
    counted = readers.outcomes().get("engine_error", 0)
    reply = ask("the bear", "the panda is a bear", "hello")
    assert reply.status_code == 500
    error = reply.json()["error"]
    assert error["code"] == "internal_error"
    assert "not finite" in error["message"]
    if "rerank" in path:
        assert reply.json()["detail"] == reply.json()["message"] == error["message"]
    until(lambda: readers.outcomes().get("engine_error", 0) == counted + 1)
    assert scores(ask("the bear", "hello")) == good


def test_the_rest_of_a_request_that_fails_is_gone_before_its_answer(stepper: ServerProcess) -> None:
    """The first of 500 documents fails: the others are cancelled, and the step in which some are is awaited."""
    before = stepper.work("poisoned")
    body = {"model": "poisoned", "query": "bears", "documents": ["the panda", *MANY[1:]]}
    status = stepper.http.post("/rerank", json=body).status_code
    held = stepper.engine("poisoned")["holders"]
    spent = stepper.work("poisoned") - before
    assert (status, held) == (500, [])
    assert spent.steps <= 2
    assert spent.computed == spent.wasted <= 2 * STEP_TOKENS
    one = stepper.http.post("/rerank", json={**body, "documents": ["a bear"]}).json()
    assert (stepper.work("poisoned") - before).computed == spent.computed + one["usage"]["prompt_tokens"]


@pytest.mark.parametrize("model", ["minilm", "poisoned"])
def test_a_client_that_leaves_costs_one_more_step(stepper: ServerProcess, model: str) -> None:
    """The one that runs then, and at most the one that is planned already, of more than 25."""
    before, label = stepper.work(model), uuid4().hex
    with stepper.connect() as wire:
        wire.send(post("/rerank", {"model": model, "query": "bears", "documents": MANY}, label))
        until(lambda: stepper.work(model).steps > before.steps)
        wire.close()
    stepper.wait_at_rest()
    spent = stepper.work(model) - before
    assert spent.steps <= 2
    assert spent.computed == spent.wasted <= 2 * STEP_TOKENS
    [line] = stepper.wait_for_log(label)
    assert "status=499 outcome=client_cancelled" in line


@pytest.mark.parametrize("path", ROUTES)
def test_a_request_is_ended_by_its_id(readers: ServerProcess, path: str) -> None:
    label, before = uuid4().hex, readers.work("minilm")
    with readers.connect() as wire:
        wire.send(post(path, {"model": "minilm", **ROUTES[path]}, label))
        until(lambda: readers.work("minilm").steps > before.steps)
        [public_id] = {row["request"] for row in readers.engine("minilm")["holders"] if row["label"] == label}
        assert readers.http.post(f"/v1/requests/{public_id}/cancel").json()["outcome"] == "aborted"
        status, _, body = wire.reply()
    assert (status, json.loads(body)["error"]["code"]) == (409, "aborted")
    assert (readers.work("minilm") - before).computed < 500 * 125 / 2


def test_a_request_that_does_not_fit_is_refused_whole(start: Start) -> None:
    """Sixteen items are admitted at a time: seventeen never, ten only when there is room for all ten."""
    server = start("minilm", "--max-num-seqs", "4", "--max-num-queued-reqs", "12")
    whole = {"model": "minilm", "input": MANY[:17]}
    reply = server.http.post("/v1/embeddings", json=whole)
    assert reply.status_code == 400
    assert "at most 16" in reply.json()["error"]["message"]
    with server.connect() as wire:
        wire.send(post("/v1/embeddings", {"model": "minilm", "input": MANY[:10]}))
        until(lambda: server.engine("minilm")["permits"]["items"]["held"] == 10)
        refused = server.http.post("/v1/rerank", json={"query": "bears", "documents": MANY[:9]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert server.engine("minilm")["permits"]["items"]["held"] <= 10
        assert wire.reply()[0] == 200
    assert server.http.post("/v1/rerank", json={"query": "bears", "documents": MANY[:9]}).status_code == 200


def _left_alone(wire: Wire) -> tuple[int, dict[str, Any]]:
    status, _, body = wire.reply()
    return status, json.loads(body)


def test_an_engine_that_dies_ends_it_at_once(start: Start) -> None:
    server = start("minilm")
    with server.connect() as wire:
        wire.send(post("/v2/rerank", {"query": "bears", "documents": MANY}))
        until(lambda: server.engine("minilm")["items"]["running"] > 0)
        psutil.Process(server.engine_pid).send_signal(signal.SIGKILL)
        status, body = _left_alone(wire)
    assert (status, body["error"]["code"]) == (503, "engine_unavailable")
    assert body["detail"] == body["error"]["message"]
    until(lambda: server.http.get("/ready").status_code == 200)
    assert server.http.post("/rerank", json={"query": "bears", "documents": ["a bear"]}).status_code == 200


def test_a_server_that_stops_ends_it_with_a_word(start: Start) -> None:
    server = start("minilm", "--shutdown-timeout", "0.2")
    with server.connect() as wire:
        wire.send(post("/v2/rerank", {"query": "bears", "documents": MANY}))
        until(lambda: server.engine("minilm")["items"]["running"] > 0)
        server.send_signal(signal.SIGTERM)
        status, body = _left_alone(wire)
    assert (status, body["error"]["code"]) == (503, "engine_unavailable")
    assert server.wait(60) == 0
