"""`langchain-cohere`: the reranker and the embeddings."""

import pytest

from tests.clients.conftest import BEST, DOCUMENTS, QUERY

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def reranker(address):
    from langchain_cohere import CohereRerank

    return CohereRerank(model="minilm", base_url=address, cohere_api_key="none", top_n=2)


@pytest.fixture
def embeddings(address):
    from langchain_cohere import CohereEmbeddings

    return CohereEmbeddings(model="minilm", base_url=address, cohere_api_key="none")


def test_rerank(reranker):
    from langchain_core.documents import Document

    documents = [Document(text, metadata={"place": place}) for place, text in enumerate(DOCUMENTS)]
    found = reranker.compress_documents(documents, QUERY)
    assert [document.metadata["place"] for document in found] == BEST
    assert found[0].metadata["relevance_score"] > found[1].metadata["relevance_score"]
    everything = reranker.rerank(list(DOCUMENTS), QUERY, top_n=None)
    assert sorted(entry["index"] for entry in everything) == [0, 1, 2, 3]


def test_embeddings(embeddings):
    documents = embeddings.embed_documents(list(DOCUMENTS))
    query = embeddings.embed_query(QUERY)
    cosines = [sum(a * b for a, b in zip(query, document, strict=True)) for document in documents]
    ranking = sorted(range(len(documents)), key=lambda index: -cosines[index])
    assert ranking[:2] == BEST
