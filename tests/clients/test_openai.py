"""`openai`: embeddings, which it asks for in base64 unless it is told otherwise."""

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def client(address):
    import openai

    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_base64_is_the_default_and_holds_the_same_numbers(client):
    implicit = client.embeddings.create(model="minilm", input=["Hello, world.", ""])
    floats = client.embeddings.create(model="minilm", input=["Hello, world.", ""], encoding_format="float")
    assert [entry.index for entry in implicit.data] == [0, 1]
    assert [len(entry.embedding) for entry in implicit.data] == [384, 384]
    for one, other in zip(implicit.data, floats.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert sum(number**2 for number in one.embedding) == pytest.approx(1, abs=1e-5)
    assert implicit.usage.prompt_tokens == implicit.usage.total_tokens > 4
    assert implicit.model == "minilm"


def test_token_ids(client):
    by_text = client.embeddings.create(model="minilm", input="hello")
    by_ids = client.embeddings.create(model="minilm", input=[[101, 7592, 102]])
    assert by_ids.data[0].embedding == pytest.approx(by_text.data[0].embedding, abs=1e-5)


def test_errors_have_types(client):
    import openai

    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="no-such-model", input="hello")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as unfit:
        client.embeddings.create(model="smollm2", input="hello")
    assert unfit.value.code == "model_not_supported"
    with pytest.raises(openai.BadRequestError) as long:
        client.embeddings.create(model="minilm", input="word " * 5000)
    assert long.value.code == "context_length_exceeded"
