"""`/pooling` and `/classify`: tasks, forms of the answer, refusals."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

from tenure.checkpoints.profile import ModelProfile
from tenure.pooling import PoolingTask
from tests.api.generation_rig import Rig, assert_refused
from tests.api.pooling_rig import (
    CLASSIFIER,
    CROSS_ENCODER,
    EMBEDDER,
    LABELS,
    LATE_INTERACTION,
    SIZE,
    classify,
    embed,
    framed,
    pooling_rig,
)


def classify_one(ids, params):
    return classify(ids, params, labels=1)


@pytest.fixture
def embedder() -> Rig:
    return pooling_rig()


@pytest.fixture
def classifier() -> Rig:
    return pooling_rig(CLASSIFIER, classify)


# /pooling


def test_a_vector_is_the_default_of_an_embedding_model(embedder):
    body = embedder.post("/pooling", {"input": ["hi", "you"]}).json()
    assert body["id"].startswith("pool-")
    assert (body["object"], body["model"], body["usage"]["prompt_tokens"]) == ("list", "tiny", 9)
    assert [(entry["index"], entry["object"]) for entry in body["data"]] == [(0, "pooling"), (1, "pooling")]
    assert embedder.submitted.pooling.task is PoolingTask.EMBED
    assert np.array(body["data"][1]["data"]).shape == (SIZE,)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_token_embeddings_are_a_matrix(embedder, encoding):
    body = embedder.post("/pooling", {"input": "hi", "task": "token_embed", "encoding_format": encoding}).json()
    data = body["data"][0]["data"]
    found = np.array(data, np.float32) if encoding == "float" else np.frombuffer(base64.b64decode(data), "<f4")
    expected = embed(framed("hi"), embedder.submitted.pooling).astype(np.float32)
    assert expected.shape == (4, SIZE)
    assert (found.reshape(4, SIZE) == expected).all()


def test_the_default_task_is_the_models_own(classifier):
    body = classifier.post("/pooling", {"input": "hi"}).json()
    assert classifier.submitted.pooling.task is PoolingTask.CLASSIFY
    assert len(body["data"][0]["data"]) == len(LABELS)
    for profile, answer, task in (
        (LATE_INTERACTION, embed, PoolingTask.TOKEN_EMBED),
        (CROSS_ENCODER, classify_one, PoolingTask.CLASSIFY),
    ):
        rig = pooling_rig(profile, answer)
        assert rig.post("/pooling", {"input": "hi"}).status_code == 200
        assert rig.submitted.pooling.task is task


def test_token_classes(classifier):
    body = classifier.post("/pooling", {"input": "hi", "task": "token_classify", "use_activation": False}).json()
    assert np.array(body["data"][0]["data"]).shape == (4, len(LABELS))
    assert classifier.submitted.pooling.activation is False


@pytest.mark.parametrize("task", ["classify", "token_classify"])
def test_a_task_that_the_model_cannot_do_is_refused(embedder, task):
    error = assert_refused(
        embedder, embedder.post("/pooling", {"input": "hi", "task": task}), code="model_not_supported"
    )
    assert "token_embed" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"task": "encode"}, "task"),
        ({"task": "score"}, "task"),
        ({"task": "plugin"}, "task"),
        ({"task": ""}, "task"),
        ({"task": 5}, "task"),
        ({"data": {"x": 1}}, "data"),
        ({"dimensions": SIZE}, "dimensions"),
        ({"encoding_format": "bytes"}, "encoding_format"),
        ({"normalize": True}, "normalize"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
    ],
)
def test_pooling_refuses_by_name(embedder, fields, param):
    assert assert_refused(embedder, embedder.post("/pooling", {"input": "hi", **fields}))["param"] == param


def test_a_model_that_only_generates_is_refused():
    rig = Rig()
    error = assert_refused(rig, rig.post("/pooling", {"input": "hi"}), code="model_not_supported")
    assert "generate" in error["message"]


def test_a_conversation_is_read_through_the_models_template(embedder):
    conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    body = embedder.post("/pooling", {"messages": conversation}).json()
    assert embedder.submitted.prompts == [list(b"user:a;assistant:b;")]
    assert len(body["data"]) == 1
    embedder.engine.submitted.clear()
    assert_refused(embedder, embedder.post("/pooling", {"messages": conversation, "input": "a"}))
    assert_refused(embedder, embedder.post("/pooling", {"messages": []}))


@pytest.mark.parametrize(
    ("path", "profile", "instead"),
    [
        ("/pooling", EMBEDDER, "`input`"),
        ("/classify", CLASSIFIER, "`input`"),
        ("/tokenize", EMBEDDER, "`prompt`"),
        ("/v1/chat/completions", ModelProfile(tasks=("generate",)), "/v1/completions"),
    ],
)
def test_a_conversation_for_a_model_without_a_template_is_told_what_it_takes(path, profile, instead):
    rig = pooling_rig(profile)
    rig.context.texts["tiny"] = replace(rig.context.texts["tiny"], template=None)
    reply = rig.post(path, {"messages": [{"role": "user", "content": "a"}]})
    message = assert_refused(rig, reply)["message"]
    assert message.startswith("The model tiny has no chat template")
    assert instead in message
    assert ("completions" in message) == ("completions" in path)


# /classify


def test_classes_have_the_models_labels(classifier):
    body = classifier.post("/classify", {"input": ["a", "b", ""]}).json()
    assert body["id"].startswith("classify-")
    assert body["object"] == "list"
    assert body["usage"] == {"prompt_tokens": 8, "total_tokens": 8, "completion_tokens": 0}
    for index, (entry, text) in enumerate(zip(body["data"], ["a", "b", ""], strict=True)):
        expected = classify(framed(text), classifier.submitted.pooling)[0].astype(np.float32)
        assert entry["index"] == index
        assert (np.array(entry["probs"], np.float32) == expected).all()
        assert entry["num_classes"] == len(LABELS)
        assert entry["label"] == LABELS[int(expected.argmax())]
    assert classifier.submitted.pooling.task is PoolingTask.CLASSIFY
    assert classifier.submitted.pooling.activation is True


def test_one_class_is_classified_too():
    rig = pooling_rig(CROSS_ENCODER, classify_one)
    (entry,) = rig.post("/classify", {"input": "a"}).json()["data"]
    assert (entry["label"], entry["num_classes"]) == ("relevant", 1)
    assert 0 < entry["probs"][0] < 1


def test_raw_logits_when_asked(classifier):
    classifier.post("/classify", {"input": "a", "use_activation": False})
    assert classifier.submitted.pooling.activation is False


@pytest.mark.parametrize("given", [None, [], [[]], ["a", 1]])
def test_classify_refuses_inputs_of_no_form(classifier, given):
    assert assert_refused(classifier, classifier.post("/classify", {"input": given}))["param"] == "input"


def test_classify_is_held_to_the_window_and_truncates():
    rig = pooling_rig(CLASSIFIER, classify, max_model_len=6)
    assert_refused(rig, rig.post("/classify", {"input": "abcdef"}), code="context_length_exceeded")
    rig.post("/classify", {"input": "abcdef", "truncate_prompt_tokens": -1, "truncation_side": "left"})
    assert rig.submitted.prompts == [framed("cdef")]


def test_an_embedding_model_does_not_classify(embedder):
    error = assert_refused(embedder, embedder.post("/classify", {"input": "a"}), code="model_not_supported")
    assert EMBEDDER.tasks[0] in error["message"]


@pytest.mark.parametrize("path", ["/pooling", "/classify"])
def test_nan_is_never_written(path):
    rig = pooling_rig(CLASSIFIER, lambda _ids, _params: np.full((1, 3), np.nan, np.float32))
    reply = rig.post(path, {"input": "a"})
    assert reply.status_code == 500
    assert "not finite" in json.loads(reply.content)["error"]["message"]


# Every route with a body


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/embed", "/v2/embed", "/pooling", "/classify", "/tokenize"])
@pytest.mark.parametrize("body", [b"[]", b"null", b"123", b'"x"', b"", b"{", b"\xff", b'{"model":"\\ud800"}'])
def test_bodies_of_another_kind_are_refused(embedder, path, body):
    assert assert_refused(embedder, embedder.post(path, body))["type"] == "Bad Request"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/embed", "/pooling", "/classify", "/tokenize", "/detokenize"])
def test_an_unknown_model_is_a_404(embedder, path):
    body = {"model": "nope", "input": "a", "texts": ["a"], "prompt": "a", "tokens": [1]}
    assert_refused(embedder, embedder.post(path, body), status=404, code="model_not_found")
