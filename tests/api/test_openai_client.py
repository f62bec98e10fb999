"""The official client reads what the routes write."""

import anyio
import httpx
import openai
import pytest

from tenure.client import GenerationFailed
from tenure.outcomes import Outcome
from tests.api.generation_rig import Rig, output

MESSAGES = [{"role": "user", "content": "hi"}]


def ask(rig, question):
    """Run `question` with a client of the rig's application."""

    async def main():
        transport = httpx.ASGITransport(rig.app)
        async with (
            httpx.AsyncClient(transport=transport) as http,
            openai.AsyncOpenAI(base_url="http://test/v1", api_key="x", http_client=http, max_retries=0) as client,
        ):
            return await question(client)

    return anyio.run(main)


def test_a_chat_answer_with_logprobs():
    async def question(client):
        return await client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1)

    reply = ask(Rig(), question)
    assert reply.choices[0].message.content == "Hi"
    assert [entry.token for entry in reply.choices[0].logprobs.content] == ["H", "i", "<end>"]
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 3


def test_a_chat_stream_with_usage():
    async def question(client):
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, n=2, stream_options={"include_usage": True}
        )
        return [chunk async for chunk in stream]

    chunks = ask(Rig(), question)
    texts = ["", ""]
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content
    assert texts == ["Hi", "Hi"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 6


def test_a_completion_with_echo_and_logprobs():
    async def question(client):
        return await client.completions.create(model="tiny", prompt=["a", "bc"], echo=True, logprobs=1)

    reply = ask(Rig(), question)
    assert [choice.text for choice in reply.choices] == ["aHi", "bcHi"]
    assert reply.choices[1].logprobs.token_logprobs[0] is None
    assert len(reply.choices[1].logprobs.tokens) == 5


def test_the_models():
    async def question(client):
        return [model.id async for model in client.models.list()], (await client.models.retrieve("alias")).id

    assert ask(Rig(), question) == (["tiny", "alias"], "alias")


@pytest.mark.parametrize("stream", [True, False])
def test_a_bad_value_raises_before_anything_is_read(stream):
    async def question(client):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=3, stream=stream)
        return raised.value

    error = ask(Rig(), question)
    assert (error.code, error.param) == ("invalid_request", "temperature")


def test_a_failure_within_a_stream_raises():
    rig = Rig(lambda submit: [[output(0, "a")]])
    rig.engine.failure = GenerationFailed(Outcome.ENGINE_ERROR, "the model's logits are not finite")

    async def question(client):
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError) as raised:
            async for _ in stream:
                pass
        return raised.value

    assert "not finite" in str(ask(rig, question))
