"""One decoder served three times on one port: it chats, reranks, and embeds."""

import math
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import numpy as np
import pytest

from tenure.checkpoints.tokens import answer_ids
from tenure.prompts.reranker_prompt import reranker_prompt
from tenure.source import resolve_source
from tests.serving.conftest import Servers
from tests.serving.server import ServerProcess

QUERY = "What is the capital of France?"
DOCUMENTS = ["Paris is the capital of France.", "The sea cucumber has no brain.", "Lyon lies on the Rhone."]


@pytest.fixture(scope="module")
def reranker(servers: Servers) -> Iterator[ServerProcess]:
    with ExitStack() as stack:
        models = ("chat=smollm2", "reranker=smollm2", "vectors=smollm2")
        arguments = ("--task", "reranker=score", "vectors=embed", "--max-num-seqs", "8", "--kv-cache-memory", "0.3")
        yield servers.start(stack, *models, *arguments)


def answered(reply: httpx.Response) -> dict:  # type: ignore[type-arg]
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def test_chat_and_rerank_on_one_port(reranker: ServerProcess) -> None:
    http = reranker.http
    body = {"model": "reranker", "query": QUERY, "documents": DOCUMENTS}
    results = answered(http.post("/v1/rerank", json=body))["results"]
    message = {"role": "user", "content": "Hello"}
    chat = answered(
        http.post(
            "/v1/chat/completions", json={"model": "chat", "messages": [message], "max_tokens": 4, "ignore_eos": True}
        )
    )
    again = answered(http.post("/score", json={"model": "reranker", "queries": QUERY, "documents": DOCUMENTS}))
    assert chat["choices"][0]["message"]["content"]
    assert chat["usage"]["completion_tokens"] == 4
    assert sorted(result["index"] for result in results) == [0, 1, 2]
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    by_index = {entry["index"]: entry["score"] for entry in again["data"]}
    assert [by_index[result["index"]] for result in results] == pytest.approx(scores, abs=1e-5)
    assert reranker.ledger()["engines"]  # both engines report, and `at_rest` finds nothing left in either


def test_a_score_is_what_the_same_model_would_answer(reranker: ServerProcess) -> None:
    no, yes = answer_ids(resolve_source("smollm2"), ("no", "yes"))
    prompt = reranker_prompt(QUERY, DOCUMENTS[0])
    body = {"model": "chat", "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprob_token_ids": [no, yes]}
    http = reranker.http
    listed = answered(http.post("/v1/completions", json={**body, "logprobs": 5}))["choices"][0]["logprobs"]
    pair = {"model": "reranker", "queries": QUERY, "documents": DOCUMENTS[0]}
    (entry,) = answered(http.post("/score", json=pair))["data"]
    raw = answered(http.post("/score", json={**pair, "use_activation": False}))["data"][0]["score"]
    (best,) = listed["top_logprobs"]
    assert raw == pytest.approx(best["yes"] - best["no"], abs=1e-3)
    assert entry["score"] == pytest.approx(1 / (1 + math.exp(-raw)), abs=1e-5)


def test_embeddings_and_cosines(reranker: ServerProcess) -> None:
    body = {"model": "vectors", "input": [QUERY, *DOCUMENTS], "encoding_format": "float"}
    embedded = answered(reranker.http.post("/v1/embeddings", json=body))
    vectors = np.array([entry["embedding"] for entry in embedded["data"]])
    assert vectors.shape == (4, 576)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    scored = answered(reranker.http.post("/score", json={"model": "vectors", "queries": QUERY, "documents": DOCUMENTS}))
    assert [entry["score"] for entry in scored["data"]] == pytest.approx(vectors[1:] @ vectors[0], abs=1e-5)


def test_each_says_what_it_cannot_do(reranker: ServerProcess) -> None:
    http = reranker.http
    messages = [{"role": "user", "content": "Hello"}]
    chat = http.post("/v1/chat/completions", json={"model": "reranker", "messages": messages})
    rank = http.post("/rerank", json={"model": "chat", "query": QUERY, "documents": DOCUMENTS})
    assert (chat.status_code, rank.status_code) == (400, 400)
    assert "score" in chat.json()["error"]["message"]
    assert "generate" in rank.json()["error"]["message"]
