"""`/rerank`, `/v1/rerank` and `/v2/rerank`: one handler, the shapes that Jina's and Cohere's clients send and read."""

import math

import anyio
import numpy as np
import pytest

from tenure.client import GenerationFailed
from tenure.config import ApiSettings, HttpLimits
from tenure.errors import Refusal
from tenure.outcomes import Outcome
from tests.api.generation_rig import BEGIN, END
from tests.api.pooling_rig import CLASSIFIER, CROSS_ENCODER, EMBEDDER, LATE_INTERACTION, pooling_rig

PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")


def by_length(ids, params):
    """The longer the document, the better it fits: a tenth per character."""
    document = ids[ids.index(END) + 1 : -1]
    return np.array([[len(document) / 10]], np.float32)


def rerank_rig(**more):
    return pooling_rig(CROSS_ENCODER, by_length, **more)


@pytest.fixture(params=PATHS)
def path(request):
    return str(request.param)


def results(reply):
    assert reply.status_code == 200, reply.text
    assert "null" not in reply.text
    return reply.json()["results"]


def ranking(reply):
    """Index and logit of each result."""
    scores = [(entry["index"], entry["relevance_score"]) for entry in results(reply)]
    return [(index, pytest.approx(math.log(score / (1 - score)), abs=1e-6)) for index, score in scores]


def read(rig):
    """The documents that the model read."""
    return [bytes(ids[ids.index(END) + 1 : -1]).decode() for ids in rig.submitted.prompts]


def refused(rig, reply, status=400, code="invalid_request"):
    """The three ways in which clients read why."""
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"error", "detail", "message"}
    assert body["detail"] == body["message"] == body["error"]["message"] != ""
    assert body["error"]["code"] == code
    assert rig.engine.submitted == []
    return body["error"]


def test_the_best_come_first(path):
    rig = rerank_rig()
    reply = rig.post(path, {"model": "tiny", "query": "q", "documents": ["aa", "", "aaaa"]})
    body = reply.json()
    assert body["id"].startswith("score-")
    assert body["model"] == "tiny"
    assert [set(entry) for entry in results(reply)] == [{"index", "document", "relevance_score"}] * 3
    assert ranking(reply) == [(2, 0.4), (0, 0.2), (1, 0.0)]
    assert [entry["document"] for entry in results(reply)] == [{"text": "aaaa"}, {"text": "aa"}, {"text": ""}]
    tokens = 3 * 4 + 6
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert rig.submitted.segments == [3, 3, 3]
    assert rig.submitted.prompts[0] == [BEGIN, ord("q"), END, *b"aa", END]


def test_meta_is_for_cohere_alone():
    documents = ["d"] * 101
    for path in PATHS:
        body = rerank_rig().post(path, {"query": "q", "documents": documents, "top_n": 1}).json()
        if path != "/v2/rerank":
            assert set(body) == {"id", "model", "results", "usage"}
            continue
        tokens = 101 * 5
        assert body["meta"] == {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 2, "input_tokens": tokens},
            "tokens": {"input_tokens": tokens},
        }
        assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


@pytest.mark.parametrize(("documents", "units"), [(1, 1), (100, 1), (101, 2), (250, 3)])
def test_search_units(documents, units):
    body = rerank_rig().post("/v2/rerank", {"query": "q", "documents": ["d"] * documents}).json()
    assert body["meta"]["billed_units"]["search_units"] == units


def test_ties_in_the_order_of_the_request(path):
    reply = rerank_rig().post(path, {"query": "q", "documents": ["ab", "x", "cd", "y", "ab", "ef"]})
    assert [entry["index"] for entry in results(reply)] == [0, 2, 4, 5, 1, 3]


@pytest.mark.parametrize(("top_n", "given"), [(1, 1), (2, 2), (2.0, 2), (3, 3), (4, 3), (10**30, 3), (None, 3)])
def test_top_n(path, top_n, given):
    reply = rerank_rig().post(path, {"query": "q", "documents": ["a", "bb", "ccc"], "top_n": top_n})
    assert [entry["index"] for entry in results(reply)] == [2, 1, 0][:given]


@pytest.mark.parametrize("top_n", [0, -1, 1.5, True, "2", [1]])
def test_top_n_that_is_none(path, top_n):
    rig = rerank_rig()
    error = refused(rig, rig.post(path, {"query": "q", "documents": ["a"], "top_n": top_n}))
    assert error["param"] == "top_n"


@pytest.mark.parametrize("shown", [True, None])
def test_documents_come_back_as_they_were(path, shown):
    documents = ["plain", {"text": "an object", "id": 7, "tags": ["x"], "nested": {"k": 1.5}}, "plain"]
    reply = rerank_rig().post(path, {"query": "q", "documents": documents, "return_documents": shown})
    by_index = {entry["index"]: entry["document"] for entry in results(reply)}
    assert by_index == {0: {"text": "plain"}, 1: documents[1], 2: {"text": "plain"}}


def test_documents_that_are_not_wanted_are_left_out(path):
    reply = rerank_rig().post(path, {"query": "q", "documents": ["a", {"text": "b"}], "return_documents": False})
    assert [set(entry) for entry in results(reply)] == [{"index", "relevance_score"}] * 2


def test_scores_near_one_are_told_apart_and_ranked_by_what_they_come_from(path):
    logits = np.array([24, 36, 60, 28, 25, -60, 30, 61], np.float32)
    rig = pooling_rig(CROSS_ENCODER, lambda ids, params: logits[[ids[ids.index(END) + 1] - ord("0")]][None])
    found = results(rig.post(path, {"query": "q", "documents": list("01234567")}))
    assert [entry["index"] for entry in found] == [7, 2, 1, 6, 3, 4, 0, 5]
    scores = [entry["relevance_score"] for entry in found]
    assert scores[2:] == [1 / (1 + math.exp(-logit)) for logit in (36, 30, 28, 25, 24, -60)]
    assert scores[0] == 1.0 > scores[2] > scores[3] > scores[4] > scores[5] > scores[6] > scores[7] > 0


def test_one_bare_document(path):
    rig = rerank_rig()
    assert ranking(rig.post(path, {"query": {"text": "q"}, "documents": "abc"})) == [(0, 0.3)]
    assert read(rig) == ["abc"]


def test_rank_fields():
    rig = rerank_rig()
    documents = [
        {"title": "T", "body": "B", "text": "unread"},
        {"body": "only", "title": None},
        {"text": "no such field"},
        {"title": 5, "body": ["x", 1]},
        "a string",
    ]
    reply = rig.post("/v1/rerank", {"query": "q", "documents": documents, "rank_fields": ["title", "body"]})
    expected = ["title: T\nbody: B", "body: only", "no such field", 'title: 5\nbody: ["x",1]', "a string"]
    assert read(rig) == expected
    by_index = {entry["index"]: entry["document"] for entry in reply.json()["results"]}
    assert by_index[0] == documents[0]
    assert by_index[1] == {"body": "only", "title": None, "text": "body: only"}
    assert by_index[4] == {"text": "a string"}


@pytest.mark.parametrize("rank_fields", [None, []])
def test_rank_fields_that_name_none(rank_fields):
    rig = rerank_rig()
    results(rig.post("/v1/rerank", {"query": "q", "documents": [{"text": "t", "x": "y"}], "rank_fields": rank_fields}))
    assert read(rig) == ["t"]


@pytest.mark.parametrize("rank_fields", [None, ["title"]])
def test_a_document_with_nothing_to_read_is_named(path, rank_fields):
    rig = rerank_rig()
    body = {"query": "q", "documents": ["a", {"text": "b"}, {"body": "c"}], "rank_fields": rank_fields}
    assert "`documents[2]`" in refused(rig, rig.post(path, body))["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": None, "documents": ["a"]}, "query"),
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": None}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": [7]}, "documents[0]"),
        ({"query": ["q"], "documents": ["a"]}, "query"),
        ({"query": {}, "documents": ["a"]}, "query"),
        ({"query": "q", "documents": ["a"], "return_documents": "yes"}, "return_documents"),
        ({"query": "q", "documents": ["a"], "max_tokens_per_doc": -5}, "max_tokens_per_doc"),
        ({"query": "q", "texts": ["a"]}, "documents"),
    ],
)
def test_what_is_refused(path, body, param):
    rig = rerank_rig()
    assert refused(rig, rig.post(path, body))["param"] == param


def test_too_many_documents():
    rig = rerank_rig(settings=ApiSettings(version="0.0", max_inputs=2))
    for documents in (["a", "b", "c"], [{}, {}, {}]):  # their number is looked at before they are
        error = refused(rig, rig.post("/rerank", {"query": "q", "documents": documents}))
        assert "at most 2" in error["message"]


def test_null_is_unset_and_what_is_unknown_is_ignored(path):
    names = ("top_n", "return_documents", "rank_fields", "max_tokens_per_doc", "max_tokens_per_query", "instruction")
    others = ("max_chunks_per_doc", "truncate_prompt_tokens", "truncation_side", "priority", "model", "relevant_spans")
    body = {"query": "q", "documents": ["a", "bb"]}
    plain = rerank_rig().post(path, body).json()
    nulls = rerank_rig().post(path, {**body, **dict.fromkeys((*names, *others))})
    assert results(nulls) == plain["results"]
    more = {"max_chunks_per_doc": 5, "relevant_spans": True, "whatever": {"x": 1}, "instruction": "be kind"}
    assert results(rerank_rig().post(path, {**body, **more})) == plain["results"]


def test_documents_are_cut_to_what_the_window_leaves(path):
    rig = rerank_rig(max_model_len=16)
    reply = rig.post(path, {"query": "query", "documents": ["d" * 50, "e"], "max_tokens_per_doc": 4096})
    assert read(rig) == ["d" * 8, "e"]
    assert [entry["document"]["text"] for entry in results(reply)] == ["d" * 50, "e"], "they come back uncut"
    rig = rerank_rig(max_model_len=16)
    error = refused(
        rig, rig.post(path, {"query": "query", "documents": ["e", "d" * 50]}), code="context_length_exceeded"
    )
    assert "`documents[1]`" in error["message"]
    rig = rerank_rig(max_model_len=16, settings=ApiSettings(version="0.0", truncate_long_inputs=True))
    results(rig.post(path, {"query": "query", "documents": ["e", "d" * 50]}))
    assert read(rig) == ["e", "d" * 8]


@pytest.mark.parametrize("profile", [EMBEDDER, LATE_INTERACTION])
def test_models_that_read_texts_alone(profile, path):
    rig = pooling_rig(profile)
    reply = rig.post(path, {"query": "who", "documents": ["you", "who", "me"], "top_n": 2})
    assert results(reply)[0]["index"] == 1
    assert len(results(reply)) == 2
    assert len(rig.submitted.prompts) == 4, "the query once"
    assert reply.json()["usage"]["prompt_tokens"] == 5 + 5 + 5 + 4


class TestErrorsThatClientsCanRead:
    def test_before_the_handler(self, path):
        rig = rerank_rig()
        refused(rig, rig.post(path, {}, {"content-type": "text/plain"}), 415, "unsupported_media_type")
        refused(rig, rig.request("GET", path), 405, "method_not_allowed")
        refused(rig, rig.post(path, b"{"))
        refused(rig, rig.post(path, {"query": "q", "documents": ["a"], "model": "no"}), 404, "model_not_found")
        refused(rig, rig.post(path, {}, {"x-data-parallel-rank": "x"}))

    def test_a_model_that_cannot(self, path):
        rig = pooling_rig(CLASSIFIER)
        reply = rig.post(path, {"model": "tiny", "query": "q", "documents": ["a"]})
        assert "classify" in refused(rig, reply, code="model_not_supported")["message"]

    def test_a_full_queue(self, path):
        rig = rerank_rig()
        rig.engine.refusal = Refusal(Outcome.QUEUE_FULL, "queue_full", "no room", 2.5)
        reply = rig.post(path, {"query": "q", "documents": ["a"]})
        rig.engine.submitted.clear()
        refused(rig, reply, 429, "queue_full")
        assert reply.headers["retry-after"] == "3"

    def test_an_engine_that_ends_it(self, path):
        rig = rerank_rig()
        rig.engine.failure = GenerationFailed(Outcome.ENGINE_ERROR, "the model gave NaN")
        rig.engine.script = lambda submit: []
        reply = rig.post(path, {"query": "q", "documents": ["a"]})
        rig.engine.submitted.clear()
        assert "NaN" in refused(rig, reply, 500, "internal_error")["message"]
        assert rig.counts.outcomes == {"engine_error": 1}
        assert "NaN" not in reply.text.replace("gave NaN", "")

    def test_a_key_that_is_missing(self, path):
        rig = rerank_rig(keys=["secret"])
        refused(rig, rig.post(path, {"query": "q", "documents": ["a"]}), 401, "invalid_api_key")

    def test_a_body_that_is_too_large(self, path):
        rig = rerank_rig(limits=HttpLimits(max_body_bytes=100))
        refused(rig, rig.post(path, {"query": "q" * 100, "documents": ["a"]}), 413, "request_too_large")

    def test_a_body_that_takes_too_long(self, path):
        rig = rerank_rig(limits=HttpLimits(body_timeout=0.01))

        async def endless():
            yield b"{"
            await anyio.sleep_forever()

        reply = rig.request("POST", path, content=endless(), headers={"content-type": "application/json"})
        refused(rig, reply, 408, "request_timeout")

    @pytest.mark.parametrize(
        ("outcome", "status", "code"),
        [
            (Outcome.ABORTED, 409, "aborted"),
            (Outcome.UNAVAILABLE, 503, "engine_unavailable"),
            (Outcome.DEADLINE, 504, "deadline_exceeded"),
        ],
    )
    def test_what_an_engine_says_of_its_end(self, path, outcome, status, code):
        rig = rerank_rig()
        rig.engine.failure = GenerationFailed(outcome, "it ended")
        rig.engine.script = lambda submit: []
        reply = rig.post(path, {"query": "q", "documents": ["a"]})
        rig.engine.submitted.clear()
        assert refused(rig, reply, status, code)["message"] == "it ended"
