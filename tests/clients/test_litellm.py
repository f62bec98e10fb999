"""LiteLLM's rerank, as a hosted vLLM."""

import pytest

from tests.clients.conftest import BEST, DOCUMENTS, QUERY

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("base", ["", "/v2/rerank", "/v1/rerank"])
def test_rerank(address, base):
    import litellm

    documents = [DOCUMENTS[0], {"text": DOCUMENTS[1], "id": 1}, *DOCUMENTS[2:]]
    found = litellm.rerank(
        model="hosted_vllm/minilm",
        api_base=f"{address}{base}",
        query=QUERY,
        documents=documents,
        top_n=2,
        max_tokens_per_doc=200,
        max_tokens_per_query=50,
        truncate_prompt_tokens=-1,
        truncation_side="left",
        instruction="Find the answer.",
    )
    assert [result["index"] for result in found.results] == BEST
    assert found.results[0]["document"]["text"] == DOCUMENTS[1]
    assert found.meta["tokens"]["input_tokens"] > 20


def test_without_documents(address):
    import litellm

    found = litellm.rerank(
        model="hosted_vllm/minilm", api_base=address, query=QUERY, documents=list(DOCUMENTS), return_documents=False
    )
    assert len(found.results) == len(DOCUMENTS)
    assert "document" not in found.results[0]


def test_errors_say_why(address):
    import litellm

    with pytest.raises(Exception, match="no-such-model"):
        litellm.rerank(model="hosted_vllm/no-such-model", api_base=address, query=QUERY, documents=["a"])
