"""Scores from a decoder that is asked whether a document fits a query: what it reads, to the letter."""

from dataclasses import replace

import numpy as np
import pytest

from tenure.checkpoints.profile import ModelProfile, Scoring
from tenure.errors import CallerError
from tenure.pooling import PoolingTask
from tenure.prompts.chat_template import ChatTemplate
from tenure.prompts.reranker_prompt import DEFAULT_INSTRUCTION, reranker_prompt, template_prompt
from tests.api.generation_rig import assert_refused
from tests.api.pooling_rig import pooling_rig

RERANKER = ModelProfile(
    tasks=("score", "classify"), scoring=Scoring.CROSS_ENCODER, labels=("yes",), answer_tokens=("no", "yes")
)
BEGIN, END = reranker_prompt("q", "\0").split("\0")


def likes_length(ids, params):
    logit = np.array([[len(ids) / 1000]], np.float32)
    return 1 / (1 + np.exp(-logit)) if params.activation else logit


def reranker_rig(**more):
    return pooling_rig(RERANKER, likes_length, score_prompt=reranker_prompt, framed=False, **more)


def read(rig):
    return [bytes(ids).decode() for ids in rig.submitted.prompts]


@pytest.mark.parametrize("path", ["/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_query_and_its_documents_are_put_to_the_model_as_questions(path):
    rig = reranker_rig()
    query = {"query": "q"} if "rerank" in path else {"queries": "q"}
    reply = rig.post(path, {**query, "documents": ["a", "longer"]})
    assert reply.status_code == 200, reply.text
    assert read(rig) == [reranker_prompt("q", "a", DEFAULT_INSTRUCTION), reranker_prompt("q", "longer")]
    assert rig.submitted.pooling.task is PoolingTask.CLASSIFY
    if "rerank" in path:
        assert [result["index"] for result in reply.json()["results"]] == [1, 0]


def test_an_instruction_takes_the_place_of_the_default():
    rig = reranker_rig()
    rig.post("/rerank", {"query": "q", "documents": ["a"], "instruction": "Find duplicates"})
    assert read(rig) == [reranker_prompt("q", "a", "Find duplicates")]


@pytest.mark.parametrize("path", ["/score", "/rerank"])
def test_an_instruction_may_stand_among_the_arguments_of_the_template(path):
    rig = reranker_rig()
    body = {"queries" if path == "/score" else "query": "q", "documents": ["a"]}
    kwargs = {"chat_template_kwargs": {"instruction": "Find duplicates", "enable_thinking": False}}
    assert rig.post(path, body | kwargs).status_code == 200
    assert rig.post(path, body | kwargs | {"instruction": "Sort"}).status_code == 200
    assert rig.post(path, body | {"chat_template_kwargs": {}}).status_code == 200
    texts = [bytes(submit.prompts[0]).decode() for submit in rig.engine.submitted]
    assert texts == [reranker_prompt("q", "a", wanted) for wanted in ("Find duplicates", "Sort", None)]
    rig.engine.submitted.clear()
    for wrong in ({"instruction": 1}, [], "Sort"):
        reply = rig.post(path, body | {"chat_template_kwargs": wrong})
        assert (reply.status_code, rig.engine.submitted) == (400, [])
        assert "chat_template_kwargs" in reply.json()["error"]["message"]


def test_the_instruction_that_a_model_was_saved_with():
    profile = replace(RERANKER, prompts={"web": "Search", "other": "Other"}, default_prompt="web")
    rig = pooling_rig(profile, likes_length, score_prompt=reranker_prompt, framed=False)
    rig.post("/rerank", {"query": "q", "documents": ["a"]})
    rig.post("/rerank", {"query": "q", "documents": ["a"], "instruction": "Sort"})
    texts = [bytes(submit.prompts[0]).decode() for submit in rig.engine.submitted]
    assert texts == [reranker_prompt("q", "a", "Search"), reranker_prompt("q", "a", "Sort")]


def test_texts_that_the_models_template_refuses_are_a_400():
    def write(query, document, instruction):
        raise CallerError("no such document")

    rig = pooling_rig(RERANKER, likes_length, score_prompt=write, framed=False)
    error = assert_refused(rig, rig.post("/score", {"queries": "q", "documents": ["a"]}))
    assert "no such document" in error["message"]


def test_without_activation_the_score_is_how_much_yes_exceeds_no():
    rig = reranker_rig()
    reply = rig.post("/score", {"queries": "q", "documents": ["a"], "use_activation": False})
    assert reply.json()["data"][0]["score"] == pytest.approx(len(reranker_prompt("q", "a")) / 1000)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("fields", [{"truncate_prompt_tokens": -1}, {"max_tokens_per_doc": 4000}])
def test_of_what_is_too_long_the_document_alone_is_cut(side, fields):
    window = len(BEGIN + END) + 20
    rig = reranker_rig(max_model_len=window + 1)
    document = "".join(chr(65 + number % 26) for number in range(500))
    reply = rig.post("/score", {"queries": "q", "documents": [document], "truncation_side": side, **fields})
    assert reply.status_code == 200, reply.text
    (text,) = read(rig)
    assert text.startswith(BEGIN)
    assert text.endswith(END)
    kept = text.removeprefix(BEGIN).removesuffix(END)
    assert 15 <= len(kept) <= 21
    assert document.startswith(kept) if side == "right" else document.endswith(kept)


def test_a_query_is_cut_as_well_where_the_whole_may_be():
    window = len(BEGIN + END) + 20
    body = {"queries": "q" * 300, "documents": ["d" * 300, "ee"]}
    rig = reranker_rig(max_model_len=window + 1)
    assert_refused(rig, rig.post("/score", body | {"max_tokens_per_doc": 4000}), code="context_length_exceeded")
    assert rig.post("/score", body | {"truncate_prompt_tokens": -1}).status_code == 200
    first, second = read(rig)
    assert window - 2 <= len(first) <= window + 1
    assert (first.count("q" * 10), first.count("d" * 9)) == (1, 1), "both texts have a part"
    assert second.count("q" * 18) == 1
    assert second.endswith("ee" + END)


def test_a_limit_that_the_prompt_alone_exceeds_is_refused():
    rig = reranker_rig()
    body = {"queries": "q", "documents": ["a", "b"], "truncate_prompt_tokens": 5}
    error = assert_refused(rig, rig.post("/score", body))
    assert (error["param"], "leaves no room for texts" in error["message"]) == ("truncate_prompt_tokens", True)


def test_what_is_too_long_without_leave_to_cut_is_refused():
    rig = reranker_rig(max_model_len=len(BEGIN + END) + 20)
    body = {"queries": "q", "documents": ["d" * 500]}
    assert_refused(rig, rig.post("/score", body), code="context_length_exceeded")
    rig = reranker_rig(max_model_len=len(BEGIN + END) - 5)
    assert_refused(rig, rig.post("/score", body | {"truncate_prompt_tokens": -1}), code="context_length_exceeded")


def test_a_reranker_does_not_chat():
    rig = reranker_rig()
    reply = rig.post("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})
    assert_refused(rig, reply, code="model_not_supported")


@pytest.mark.parametrize("path", ["/score", "/rerank"])
def test_arguments_reach_the_template_of_a_model_that_has_one(path):
    """Whatever they are called; a template has them where it asks for them."""
    source = "{{ tone }} {{ query }} {% for message in messages %}{{ message.content }} {% endfor %}"
    rig = pooling_rig(RERANKER, likes_length, score_prompt=template_prompt(ChatTemplate(source, {})), framed=False)
    body = {"queries" if path == "/score" else "query": "q", "documents": ["a"]}
    kwargs = {"tone": "kind", "query": "name", "messages": [], "unused": 1}
    assert rig.post(path, body | {"chat_template_kwargs": kwargs}).status_code == 200
    assert read(rig) == ["kind name q a "]
