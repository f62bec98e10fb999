"""Haystack's rankers for Cohere and Jina."""

import pytest

from tests.clients.conftest import BEST, DOCUMENTS, QUERY

pytestmark = pytest.mark.filterwarnings("ignore")


def cohere(address, model="minilm", **more):
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.cohere import CohereRanker

    return CohereRanker(model=model, api_base_url=address, api_key=Secret.from_token("none"), **more)


def jina(address, model="minilm", **more):
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.jina import JinaRanker

    return JinaRanker(model=model, base_url=f"{address}/v1/rerank", api_key=Secret.from_token("none"), **more)


def documents():
    from haystack import Document

    return [Document(content=text, id=str(place)) for place, text in enumerate(DOCUMENTS)]


@pytest.mark.parametrize("ranker", [cohere, jina])
def test_rank(address, ranker):
    found = ranker(address, top_k=2).run(query=QUERY, documents=documents())["documents"]
    assert [int(document.id) for document in found] == BEST
    assert found[0].score > found[1].score


@pytest.mark.parametrize("ranker", [cohere, jina])
def test_rank_all(address, ranker):
    """Jina's ranker sends `top_n: null` here, and Cohere's always sends `max_tokens_per_doc: 4096`."""
    found = ranker(address).run(query=QUERY, documents=documents())["documents"]
    assert sorted(int(document.id) for document in found) == [0, 1, 2, 3]


def test_errors_say_why(address):
    with pytest.raises(Exception, match=r"404|no-such-model"):
        jina(address, "no-such-model").run(query=QUERY, documents=documents())
    with pytest.raises(Exception, match="no-such-model"):
        cohere(address, "no-such-model").run(query=QUERY, documents=documents())
