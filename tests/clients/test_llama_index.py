"""LlamaIndex's rerank postprocessors for Cohere and Jina."""

import pytest

from tests.clients.conftest import BEST, DOCUMENTS, QUERY

pytestmark = pytest.mark.filterwarnings("ignore")


def cohere(address, model="minilm"):
    from llama_index.postprocessor.cohere_rerank import CohereRerank

    return CohereRerank(model=model, base_url=address, api_key="none", top_n=2)


def jina(address, model="minilm"):
    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    return JinaRerank(model=model, base_url=f"{address}/v1", api_key="none", top_n=2)


def rerank(postprocessor):
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(place))) for place, text in enumerate(DOCUMENTS)]
    return postprocessor.postprocess_nodes(nodes, query_bundle=QueryBundle(QUERY))


@pytest.mark.parametrize("client", [cohere, jina])
def test_rerank(address, client):
    found = rerank(client(address))
    assert [int(entry.node.node_id) for entry in found] == BEST
    assert found[0].score > found[1].score


def test_errors_say_why(address):
    import cohere as library

    with pytest.raises(RuntimeError, match="no-such-model"):
        rerank(jina(address, "no-such-model"))
    with pytest.raises(library.NotFoundError):
        rerank(cohere(address, "no-such-model"))
