"""The official client against a real server with a real model: what a newcomer does first."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.serving.script import recited
from tests.serving.server import ServerProcess

MESSAGES = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]


@contextmanager
def official(server: ServerProcess) -> Iterator[OpenAI]:
    http = httpx.Client(trust_env=False)
    with OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, http_client=http) as client:
        yield client


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with official(server) as client:
        yield client


def asynchronously(server: ServerProcess, scenario: Callable[[AsyncOpenAI], Awaitable[None]]) -> None:
    async def run() -> None:
        http = httpx.AsyncClient(trust_env=False)
        address = f"{server.address}/v1"
        async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0, http_client=http) as client:
            await scenario(client)

    asyncio.run(run())


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2", "script"]
    assert client.models.retrieve("script").id == "script"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_chat_makes_sense(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=MESSAGES, max_tokens=30, temperature=0)
    [choice] = answer.choices
    assert "Paris" in (choice.message.content or "")
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "smollm2"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_streamed_is_the_same(client: OpenAI) -> None:
    options = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 30, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert [c.usage for c in chunks if c.usage is not None] == [whole.usage]
    assert chunks[-1].choices == []
    assert len({chunk.id for chunk in chunks}) == 1


def test_completions(client: OpenAI) -> None:
    answer = client.completions.create(model="script", prompt=["one", "two"], max_tokens=40, temperature=0)
    assert [choice.text for choice in answer.choices] == [recited("one", 40), recited("two", 40)]
    assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 80)


def test_completion_streamed_is_the_same(client: OpenAI) -> None:
    with client.completions.create(model="script", prompt="x", max_tokens=57, temperature=0, stream=True) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == recited("x", 57)
    assert all(chunk.usage is None for chunk in chunks)


def test_choices_differ_and_are_complete(exact_server: ServerProcess) -> None:
    """In steps of equal shapes, with the prompt in the cache: else two candidates that are close may change places."""
    options = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 16, "temperature": 1.5, "n": 3, "seed": 7}
    with official(exact_server) as client:
        client.chat.completions.create(**options)
        whole = client.chat.completions.create(**options)
        chunks = list(client.chat.completions.create(**options, stream=True))
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert whole.usage is not None
    joined = {0: "", 1: "", 2: ""}
    for chunk in chunks:
        joined[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert list(joined.values()) == texts


def test_a_seed_gives_the_same_again(client: OpenAI) -> None:
    def draw(seed: int) -> str:
        prompt = "Once upon a time"
        answer = client.completions.create(model="smollm2", prompt=prompt, max_tokens=12, temperature=1.0, seed=seed)
        return answer.choices[0].text

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_logprobs_of_a_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2", messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert answer.usage is not None
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token, "at temperature 0 the best one is taken"
    assert b"".join(bytes(token.bytes or ()) for token in content).decode() == answer.choices[0].message.content


def test_logprobs_of_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(model="script", prompt="abc", max_tokens=10, temperature=0, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs == pytest.approx([0.0] * 10, abs=1e-6)
    assert logprobs.text_offset is not None
    assert logprobs.text_offset[0] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(client: OpenAI, stream: bool) -> None:
    """The string spans tokens and begins within one; no part of it is shown (F52)."""
    options = {"model": "script", "prompt": "abc", "max_tokens": 300, "temperature": 0, "stop": ["🐴 pě", "nowhere"]}
    if stream:
        chunks = list(client.completions.create(**options, stream=True))
        text, reason = "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].choices[0].finish_reason
    else:
        choice = client.completions.create(**options).choices[0]
        text, reason = choice.text, choice.finish_reason
    assert text == recited("abc", 300).split("🐴 pě")[0]
    assert reason == "stop"


def test_errors_have_their_classes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(model="smollm2", messages=MESSAGES, temperature=-1)
    assert hot.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="script", prompt=[65] * 40_000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as empty:
        list(client.chat.completions.create(model="smollm2", messages=[], stream=True))
    assert empty.value.status_code == 400


def test_many_at_once(server: ServerProcess) -> None:
    async def scenario(client: AsyncOpenAI) -> None:
        async def one(number: int) -> None:
            prompt = f"number {number}"
            answer = await client.completions.create(model="script", prompt=prompt, max_tokens=100, temperature=0)
            assert answer.choices[0].text == recited(prompt, 100)

        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(one(number))

    asynchronously(server, scenario)


def test_asynchronous_streams(server: ServerProcess) -> None:
    async def scenario(client: AsyncOpenAI) -> None:
        async def one(number: int) -> None:
            prompt = f"stream {number}"
            stream = await client.completions.create(
                model="script", prompt=prompt, max_tokens=100, temperature=0, stream=True
            )
            assert "".join([chunk.choices[0].text async for chunk in stream]) == recited(prompt, 100)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(one(number))

    asynchronously(server, scenario)


def test_closing_a_stream_cancels_it(server: ServerProcess) -> None:
    before = server.ledger()["http"]["outcomes"].get("client_cancelled", 0)

    async def scenario(client: AsyncOpenAI) -> None:
        for _ in range(3):
            async with await client.chat.completions.create(
                model="script", messages=MESSAGES, max_tokens=30_000, stream=True
            ) as stream:
                await anext(aiter(stream))

    asynchronously(server, scenario)
    after = server.wait_at_rest()["http"]["outcomes"]["client_cancelled"]
    assert after == before + 3


def test_a_timeout_of_the_client_cancels(server: ServerProcess, client: OpenAI) -> None:
    before = server.ledger()["http"]["outcomes"].get("client_cancelled", 0)
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model="script", prompt="slow", max_tokens=30_000, timeout=0.5)
    assert server.wait_at_rest()["http"]["outcomes"]["client_cancelled"] == before + 1
