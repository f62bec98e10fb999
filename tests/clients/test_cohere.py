"""`cohere`: rerank and embed of both clients."""

import pytest

from tests.clients.conftest import BEST, DOCUMENTS, QUERY

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def v1(address):
    import cohere

    return cohere.Client(api_key="none", base_url=address)


@pytest.fixture
def v2(address):
    import cohere

    return cohere.ClientV2(api_key="none", base_url=address)


def test_rerank_v1(v1):
    documents = [{"text": DOCUMENTS[0], "id": "bread"}, *DOCUMENTS[1:]]
    found = v1.rerank(model="minilm", query=QUERY, documents=documents, top_n=2, return_documents=True)
    assert [result.index for result in found.results] == BEST
    assert [result.document.text for result in found.results] == [DOCUMENTS[index] for index in BEST]
    assert found.results[0].relevance_score > found.results[1].relevance_score


def test_rerank_v1_by_fields(v1):
    documents = [{"title": "Spain", "body": DOCUMENTS[2]}, {"title": "France", "body": DOCUMENTS[1]}]
    found = v1.rerank(model="minilm", query=QUERY, documents=documents, rank_fields=["title", "body"])
    assert [result.index for result in found.results] == [1, 0]


def test_rerank_v1_without_documents(v1):
    found = v1.rerank(
        model="minilm", query=QUERY, documents=list(DOCUMENTS), return_documents=False, max_chunks_per_doc=None
    )
    assert len(found.results) == len(DOCUMENTS)
    assert all(result.document is None for result in found.results)


def test_rerank_v2(v2):
    found = v2.rerank(model="minilm", query=QUERY, documents=list(DOCUMENTS), top_n=2, max_tokens_per_doc=4096)
    assert [result.index for result in found.results] == BEST
    assert found.meta.billed_units.search_units == 1
    assert found.meta.tokens.input_tokens > 20
    assert found.id.startswith("score-")


def test_nulls_travel(v2):
    found = v2.rerank(model="minilm", query=QUERY, documents=list(DOCUMENTS), top_n=None, max_tokens_per_doc=None)
    assert len(found.results) == len(DOCUMENTS)


async def _rerank(address):
    import cohere

    async with cohere.AsyncClientV2(api_key="none", base_url=address) as client:
        return await client.rerank(model="minilm", query=QUERY, documents=list(DOCUMENTS), top_n=1)


def test_rerank_async(address):
    import anyio

    assert anyio.run(_rerank, address).results[0].index == BEST[0]


def test_embed_v1(v1):
    found = v1.embed(model="minilm", texts=["hello", "world"], input_type="search_document")
    assert [len(vector) for vector in found.embeddings] == [384, 384]
    assert found.meta.billed_units.input_tokens == 6


def test_embed_v2(v2):
    kinds = ["float", "base64", "binary"]
    found = v2.embed(model="minilm", texts=["hello", "world"], input_type="search_query", embedding_types=kinds)
    assert [len(vector) for vector in found.embeddings.float_] == [384, 384]
    assert [len(vector) for vector in found.embeddings.binary] == [48, 48]
    assert len(found.embeddings.base64) == 2
    assert found.meta.billed_units.input_tokens == 6


def test_both_clients_embed_alike(v1, v2):
    one = v1.embed(model="minilm", texts=["hello"], input_type="search_query").embeddings[0]
    other = v2.embed(model="minilm", texts=["hello"], input_type="search_query", embedding_types=["float"])
    assert one == pytest.approx(other.embeddings.float_[0], abs=1e-6)


def test_errors_say_why(v1, v2):
    import cohere

    with pytest.raises(cohere.BadRequestError) as empty:
        v2.rerank(model="minilm", query=QUERY, documents=[])
    assert "documents" in empty.value.body["message"]
    with pytest.raises(cohere.NotFoundError) as missing:
        v1.rerank(model="no-such-model", query=QUERY, documents=["a"])
    assert "no-such-model" in missing.value.body["message"]
    with pytest.raises(cohere.BadRequestError) as unfit:
        v2.rerank(model="smollm2", query=QUERY, documents=["a"])
    assert "generate" in unfit.value.body["message"]
