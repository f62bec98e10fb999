"""Texts that are tokenised in a worker thread: whole when somebody waits for them, and no further when nobody does."""

import threading
from functools import partial

import anyio
import anyio.to_thread
import pytest

from tenure.api.common.body_readers import BodyReaders
from tenure.api.common.body_reading import BodyReading, RoutedRequest
from tenure.config import ApiSettings, HttpLimits
from tenure.http.intake import Body, BodyBudget
from tenure.process.compute_threads import Workers
from tenure.prompts.text_inputs import encode_texts
from tests.api.generation_rig import ByteTokenizer, Rig, no_stop
from tests.api.pooling_rig import EMBEDDER

LONG = "x" * 40_000


class SlowTokenizer(ByteTokenizer):
    """Waits in its first call until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = anyio.Event()
        self.release = threading.Event()
        self.calls: list[int] = []

    def encode_plain(self, texts, between=no_stop):
        self.calls.append(len(texts))
        if len(self.calls) == 1:
            anyio.from_thread.run_sync(self.begun.set)
            assert self.release.wait(10)
        return super().encode_plain(texts, between)


@pytest.mark.parametrize("texts", [[], ["a"], ["a", "", "b"], [LONG, "a", LONG, LONG], ["y" * 20_000] * 5 + ["z"]])
def test_texts_are_tokenised_in_order_however_they_are_split(texts):
    assert encode_texts(ByteTokenizer(), texts) == [list(text.encode()) for text in texts]


def test_a_request_that_is_cancelled_is_not_tokenised_to_its_end():
    async def scenario() -> SlowTokenizer:
        tokenizer = SlowTokenizer()
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                work = partial(encode_texts, tokenizer, ["a", LONG, LONG, LONG])
                group.start_soon(Workers().run_if_long, work, 1, 0)
                await tokenizer.begun.wait()
                group.cancel_scope.cancel()
                tokenizer.release.set()
        return tokenizer

    assert anyio.run(scenario).calls == [2]


def test_large_bodies_wait_for_large_bodies_alone_and_are_cancelled_while_they_wait():
    begun, release = threading.Semaphore(0), threading.Event()
    ran: list[str] = []

    def large(name: str) -> None:
        ran.append(name)
        begun.release()
        assert release.wait(10)

    async def scenario() -> None:
        readers, settings = BodyReaders(), ApiSettings(version="0.0", thread_above=0, process_above=8192)
        reading = BodyReading({}, settings, HttpLimits(), RoutedRequest("/x", ()), lambda: None)

        async def read(work, size):
            body = Body(BodyBudget(size))
            body.add(bytes(size))
            return await readers.read(lambda _body, _reading: work(), body, reading, str)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for name in ("first", "second"):
                    group.start_soon(read, partial(large, name), 10_000)
                for _ in range(2):
                    await anyio.to_thread.run_sync(begun.acquire)
                async with anyio.create_task_group() as impatient:
                    for _ in range(50):
                        impatient.start_soon(read, partial(large, "late"), 10_000)
                    await anyio.wait_all_tasks_blocked()
                    assert (await read(lambda: "small", 8000))[0] == "small"
                    impatient.cancel_scope.cancel()
                release.set()

    anyio.run(scenario)
    assert sorted(ran) == ["first", "second"]


class EndlessTokenizer(ByteTokenizer):
    """Has no end, but looks up now and then."""

    def encode_plain(self, texts, between=no_stop):
        while True:
            between()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": LONG, "truncate_prompt_tokens": 5}),
        ("/v2/embed", {"texts": [LONG]}),
        ("/pooling", {"input": [LONG], "truncate_prompt_tokens": -1}),
        ("/rerank", {"query": "a", "documents": [LONG], "max_tokens_per_doc": 5}),
        ("/v1/score", {"queries": "a", "documents": [LONG], "truncate_prompt_tokens": -1}),
        ("/tokenize", {"prompt": LONG}),
    ],
)
@pytest.mark.parametrize("by", ["the request", "the server"])
def test_texts_are_not_read_beyond_the_requests_time(path, body, by):
    settings = ApiSettings(version="0.0", request_timeout=0.05 if by == "the server" else 60)
    rig = Rig(profile=EMBEDDER, tokenizer=EndlessTokenizer(), settings=settings)
    headers = {"x-request-timeout": "0.05" if by == "the request" else "60"}
    reply = rig.post(path, body, headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert rig.engine.submitted == []
    assert rig.counts.outcomes == ({} if path == "/tokenize" else {"deadline": 1})


def test_prompts_are_not_read_beyond_the_requests_time():
    rig = Rig(tokenizer=EndlessTokenizer())
    body = {"prompt": LONG, "truncate_prompt_tokens": -1}
    reply = rig.post("/v1/completions", body, {"x-request-timeout": "0.05"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
