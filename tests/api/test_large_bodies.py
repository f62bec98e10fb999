"""Large bodies are read in another process, and nobody can tell by the answer; all bodies are UTF-8 or refused."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import msgspec
import pytest

from tenure.api.app import build_app, route_table
from tenure.api.common.body_readers import BodyReaders, worker
from tenure.config import HttpLimits
from tests.api.generation_rig import Rig, assert_refused
from tests.api.pooling_rig import CLASSIFIER, CROSS_ENCODER, EMBEDDER, classify, pooling_rig
from tests.http.rig import serving
from tests.http.web_server import post
from tests.process.fork_servers import fork_server
from tests.tasks import run, until

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
LIMITS = HttpLimits()
IDS = [72, 105] * 20
MANY = {str(token): token / 8 for token in range(256)}
CHAT = {"messages": [{"role": "user", "content": "hé"}], "return_token_ids": True, "return_prompt_text": True}
ECHO = {"prompt": [IDS, IDS], "echo": True, "logprobs": 1, "prompt_logprobs": 1, "seed": 5, "temperature": 0.5}
DOCUMENTS = [{"text": "first", "id": 3}, "second", {"text": "third" * 9}]

Case = tuple[str, Any]
GENERATED: list[Case] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "messages": [], "model": "alias"}),
    ("/v1/chat/completions", {**CHAT, "model": "unknown"}),
    ("/v1/completions", {**ECHO, "n": 2}),
    ("/v1/completions", {**ECHO, "logit_bias": MANY, "allowed_token_ids": list(range(250)), "stop_token_ids": [9]}),
    ("/v1/completions", {"prompt": "x", "stream": True, "guided_json": {}}),
    ("/v1/completions", {"prompt": [1, 2.5]}),
    ("/v1/completions", {"prompt": [10**50]}),
    ("/v1/completions", {"prompt": "a" * 30_000}),
    ("/v1/completions", {"prompt": 5}),
    ("/v1/completions", b'{"prompt": "a"'),
    ("/v1/completions", b'{"prompt": [' + b"1" * 5000 + b"]}"),
    ("/v1/completions", b'{"prompt": ' + b"[" * 100 + b"]" * 100 + b"}"),
    ("/v1/completions", b'{"prompt": [' + b"1," * 1_100_000 + b"1]}"),
    ("/v1/completions", b'{"\xff": 1}'),
    ("/tokenize", {"prompt": "héllo", "return_token_strs": True}),
    ("/detokenize", {"tokens": IDS}),
    ("/v1/requests/cancel", {"ids": ["nobody"]}),
]
EMBEDDED: list[Case] = [
    ("/v1/embeddings", {"input": ["a", "bc"]}),
    ("/v1/embeddings", {"input": IDS, "encoding_format": "base64"}),
    ("/pooling", {"input": "abc", "task": "token_embed"}),
    ("/v1/embed", {"texts": ["a", 'b"c']}),
    ("/v2/embed", {"texts": ["é"], "embedding_types": ["binary", "float", "base64"]}),
    ("/v1/score", {"queries": "q", "documents": ["a", "b"]}),
]
RANKED: list[Case] = [
    ("/rerank", {"query": "q", "documents": DOCUMENTS, "top_n": 2}),
    ("/v2/rerank", {"query": "q", "documents": DOCUMENTS, "return_documents": False}),
    ("/v1/rerank", {"query": "q", "documents": []}),
]


@contextmanager
def forking(rig: Rig) -> Iterator[Rig]:
    """The same server, but all bodies are read in processes of their own."""
    settings = msgspec.structs.replace(rig.context.settings, process_above=-1)
    with fork_server(worker(route_table(), rig.context.texts, settings, LIMITS)) as forks:
        context = replace(rig.context, settings=settings, readers=BodyReaders(forks))
        rig.app = build_app(context, rig.observer, LIMITS)
        yield rig


def told(rig: Rig, path: str, body: Any) -> tuple[int, str, list[Any]]:
    """Status, reply and what the engine was asked for, but for what differs from call to call."""
    reply = rig.post(path, body, {"x-vllm-priority": "7"})
    asked = [msgspec.structs.replace(submit, public_id="", sampling=None) for submit in rig.engine.submitted]
    sampling = [msgspec.structs.replace(submit.sampling, seed=0) for submit in rig.engine.submitted]
    rig.engine.submitted.clear()
    text = re.sub(r'"(id|created)":("[^"]*"|\d+)', "", reply.text)
    return reply.status_code, text, [asked, sampling, dict(rig.counts.outcomes)]


@pytest.mark.parametrize(
    ("make", "cases"),
    [
        (Rig, GENERATED),
        (lambda: pooling_rig(EMBEDDER), EMBEDDED),
        (lambda: pooling_rig(CLASSIFIER, classify), [("/classify", {"input": ["a", "b"]})]),
        (lambda: pooling_rig(CROSS_ENCODER, lambda ids, params: classify(ids, params, 1)), RANKED),
    ],
)
def test_where_a_body_is_read_makes_no_difference(make: Any, cases: list[Case]) -> None:
    here, elsewhere = make(), make()
    statuses = set()
    with forking(elsewhere):
        for path, body in cases:
            expected = told(here, path, body)
            assert told(elsewhere, path, body) == expected, path
            statuses.add(expected[0])
    assert 200 in statuses


def test_the_death_of_a_process_that_reads_is_a_503() -> None:
    """As that of any other process; the API process goes on."""
    rig = Rig()

    def dies(_head: bytearray, _body: bytearray, _taken: object) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with fork_server(dies) as forks:
        settings = msgspec.structs.replace(rig.context.settings, process_above=-1)
        rig.app = build_app(replace(rig.context, settings=settings, readers=BodyReaders(forks)), rig.observer, LIMITS)
        reply = rig.post("/v1/completions", {"prompt": "a"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")
    assert "retry-after" in reply.headers
    assert rig.engine.submitted == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "a", "\xff": 1}',
        b'{"prompt": "a", "metadata": {"a": "\xc3"}}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "a", "unknown": ["\xf5\x80\x80\x80"]}',
    ],
)
def test_bytes_that_are_not_utf_8_are_refused_wherever_they_are(body: bytes) -> None:
    rig = Rig()
    error = assert_refused(rig, rig.post("/v1/completions", body))
    assert "is not UTF-8" in error["message"]


def test_utf_8_is_not_refused() -> None:
    assert Rig().post("/v1/completions", '{"prompt": "a", "é": {"日": "🌃"}}'.encode()).status_code == 200


def test_a_body_that_has_been_decoded_makes_room_for_others() -> None:
    """Though its request is still being worked on."""

    async def scenario() -> None:
        async with serving(limits=HttpLimits(max_open_body_bytes=100, linger_timeout=0.1)) as rig:
            async with rig.client() as first, rig.client() as second:
                for client in (first, second):
                    client.send(post("/read", json.dumps("x" * 90).encode()))
                    running = rig.context.running + 1
                    await until(lambda running=running: rig.context.running == running)
                    await until(lambda: rig.guard.snapshot().body_bytes == 0)
                rig.context.release.set()
                assert [(await client.reply()).status for client in (first, second)] == [200, 200]
            await rig.idle(ok=2)

    run(scenario)
