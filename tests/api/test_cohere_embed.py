"""`POST /v2/embed` and `POST /v1/embed`: Cohere's fields, types and replies."""

import base64
from dataclasses import replace

import numpy as np
import pytest

from tenure.config import ApiSettings
from tests.api.generation_rig import Rig, assert_refused
from tests.api.pooling_rig import EMBEDDER, SIZE, embed, framed, pooling_rig

PATHS = ["/v1/embed", "/v2/embed"]
PROMPTED = replace(EMBEDDER, prompts={"query": "Q: ", "clustering": "C: "}, default_prompt=None)
BOTH_PROMPTS = replace(EMBEDDER, prompts={"search_query": "SQ: ", "query": "Q: ", "passage": "P: "})
CORPUS = replace(EMBEDDER, prompts={"query": "Q: ", "corpus": "K: "})
DEFAULTED = replace(EMBEDDER, prompts={"query": "Q: ", "plain": "T: "}, default_prompt="plain")


def expected(rig: Rig, text: str) -> np.ndarray:
    return embed(framed(text), rig.submitted.pooling)[0].astype(np.float32)


def test_v2_answers_by_type(rig):
    body = rig.post("/v2/embed", {"model": "tiny", "texts": ["hi", "you"]}).json()
    assert body["response_type"] == "embeddings_by_type"
    assert body["texts"] == ["hi", "you"]
    assert body["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 9, "image_tokens": 0}}
    assert body["id"]
    assert list(body["embeddings"]) == ["float"]
    found = np.array(body["embeddings"]["float"], dtype=np.float32)
    assert (found == np.stack([expected(rig, "hi"), expected(rig, "you")])).all()


def test_v1_without_types_answers_with_a_plain_list(rig):
    body = rig.post("/v1/embed", {"texts": ["hi"], "embedding_types": None}).json()
    assert body["response_type"] == "embeddings_floats"
    assert body["meta"]["api_version"] == {"version": "1"}
    assert body["meta"]["billed_units"]["input_tokens"] == 4
    assert (np.array(body["embeddings"], dtype=np.float32) == expected(rig, "hi")).all()


def test_v1_with_types_answers_by_type(rig):
    body = rig.post("/v1/embed", {"texts": ["hi"], "embedding_types": ["float"]}).json()
    assert body["response_type"] == "embeddings_by_type"
    assert list(body["embeddings"]) == ["float"]
    assert body["meta"]["api_version"] == {"version": "1"}


@pytest.mark.parametrize("path", PATHS)
def test_all_types_are_of_one_vector(rig, path):
    types = ["ubinary", "float", "binary", "base64", "float"]
    found = rig.post(path, {"texts": ["hi"], "embedding_types": types}).json()["embeddings"]
    assert set(found) == set(types)
    vector = expected(rig, "hi")
    assert (np.array(found["float"][0], dtype=np.float32) == vector).all()
    assert (np.frombuffer(base64.b64decode(found["base64"][0]), "<f4") == vector).all()
    bits = [int("".join("1" if number > 0 else "0" for number in vector), 2)]
    assert found["ubinary"] == [bits]
    assert found["binary"] == [[bits[0] - 128]]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"texts": []}, "texts"),
        ({"texts": None}, "texts"),
        ({"texts": "a"}, "texts"),
        ({"texts": [1]}, "texts"),
        ({"inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "texts"),
        ({"texts": None, "inputs": []}, "inputs"),
        ({"texts": None, "inputs": [{"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "inputs"),
        ({"texts": None, "inputs": [{"content": [{"type": "text"}]}]}, "inputs"),
        ({"images": ["data:image/png;base64,AAAA"]}, "images"),
        ({"texts": None, "images": ["data:image/png;base64,AAAA"]}, "images"),
        ({"embedding_types": []}, "embedding_types"),
        ({"embedding_types": ["int8"]}, "embedding_types"),
        ({"embedding_types": ["float", "uint8"]}, "embedding_types"),
        ({"embedding_types": "float"}, "embedding_types"),
        ({"input_type": "poem"}, "input_type"),
        ({"input_type": ""}, "input_type"),
        ({"output_dimension": 4}, "output_dimension"),
        ({"output_dimension": 0}, "output_dimension"),
        ({"truncate": "LEFT"}, "truncate"),
        ({"truncate": "end"}, "truncate"),
        ({"truncate": ""}, "truncate"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
    ],
)
def test_values_that_are_refused_by_name(rig, path, fields, param):
    error = assert_refused(rig, rig.post(path, {"texts": ["a"], **fields}))
    assert error["param"] is not None
    assert error["param"].startswith(param)


@pytest.mark.parametrize("path", PATHS)
def test_null_is_the_same_as_absent(rig, path):
    names = ["images", "inputs", "input_type", "embedding_types", "output_dimension", "truncate", "max_tokens", "model"]
    assert rig.post(path, {"texts": ["a"], **dict.fromkeys(names)}).status_code == 200


def test_inputs_of_text_parts(rig):
    part = {"type": "text", "text": "ab"}
    body = rig.post("/v2/embed", {"inputs": [{"content": [part, part]}, {"content": [part]}]}).json()
    assert rig.submitted.prompts == [framed("abab"), framed("ab")]
    assert body["texts"] == ["abab", "ab"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, "abcdefgh"),
        ({"truncate": "END"}, "abcdefgh"),
        ({"truncate": "START"}, "efghijkl"),
        ({"max_tokens": 5}, "abc"),
        ({"max_tokens": 5, "truncate": "START"}, "jkl"),
        ({"max_tokens": 10**30}, "abcdefgh"),
    ],
)
def test_texts_are_cut_as_truncate_says(path, fields, kept):
    rig = pooling_rig(max_model_len=10)
    assert rig.post(path, {"texts": ["abcdefghijkl"], **fields}).status_code == 200
    assert rig.submitted.prompts == [framed(kept)]


def test_a_limit_that_leaves_no_room_beside_the_prompt_is_refused_by_its_name():
    rig = pooling_rig(CORPUS)
    reply = rig.post("/v2/embed", {"texts": ["abc"], "input_type": "search_query", "max_tokens": 5})
    error = assert_refused(rig, reply)
    assert (error["param"], "no room beside the 5 tokens" in error["message"]) == ("max_tokens", True)


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 5}, {"max_tokens": 10**9}])
def test_truncate_none_refuses_what_is_too_long(fields):
    settings = ApiSettings(version="0.0", truncate_long_inputs=True)  # the request's word counts for more
    rig = pooling_rig(max_model_len=10, settings=settings)
    reply = rig.post("/v2/embed", {"texts": ["a", "abcdefghijkl"], "truncate": "NONE", **fields})
    assert "texts[1]" in assert_refused(rig, reply, code="context_length_exceeded")["message"]


def test_truncate_none_chunks_where_the_server_does():
    settings = ApiSettings(version="0.0", chunk_long_inputs=True)
    rig = pooling_rig(max_model_len=6, settings=settings)
    body = rig.post("/v2/embed", {"texts": ["abcdef"], "truncate": "NONE"}).json()
    assert rig.submitted.prompts == [framed("abcd"), framed("ef")]
    assert body["meta"]["billed_units"]["input_tokens"] == 10


@pytest.mark.parametrize("input_type", ["search_document", "search_query", "classification", "clustering", "image"])
def test_standard_input_types_are_ignored_by_a_model_without_prompts(rig, input_type):
    assert rig.post("/v2/embed", {"texts": ["a"], "input_type": input_type}).status_code == 200
    assert rig.submitted.prompts == [framed("a")]


@pytest.mark.parametrize(
    ("profile", "input_type", "prompt"),
    [
        (PROMPTED, "query", "Q: "),
        (PROMPTED, "search_query", "Q: "),
        (PROMPTED, "clustering", "C: "),
        (PROMPTED, "search_document", ""),
        (PROMPTED, None, ""),
        (BOTH_PROMPTS, "search_query", "SQ: "),
        (BOTH_PROMPTS, "search_document", "P: "),
        (CORPUS, "search_document", "K: "),
        (DEFAULTED, None, "T: "),
        (DEFAULTED, "search_document", "T: "),
        (DEFAULTED, "query", "Q: "),
    ],
)
def test_input_types_name_the_models_prompts(profile, input_type, prompt):
    rig = pooling_rig(profile)
    body = rig.post("/v2/embed", {"texts": ["a"], "input_type": input_type}).json()
    assert rig.submitted.prompts == [framed(prompt + "a")]
    assert body["texts"] == ["a"]


@pytest.mark.parametrize("input_type", ["classification", "poem", "document"])
def test_an_input_type_that_a_model_with_prompts_lacks_is_refused(input_type):
    rig = pooling_rig(PROMPTED)
    error = assert_refused(rig, rig.post("/v2/embed", {"texts": ["a"], "input_type": input_type}))
    assert "query, clustering" in error["message"]


def test_output_dimension_of_a_matryoshka_model():
    rig = pooling_rig(replace(EMBEDDER, dimensions=(4,)))
    body = rig.post("/v2/embed", {"texts": ["a"], "output_dimension": 4}).json()
    assert len(body["embeddings"]["float"][0]) == 4
    assert rig.post("/v2/embed", {"texts": ["a"], "output_dimension": SIZE}).status_code == 200
    rig.engine.submitted.clear()
    packed = {"texts": ["a"], "output_dimension": 4, "embedding_types": ["ubinary"]}
    assert "multiple of 8" in assert_refused(rig, rig.post("/v2/embed", packed))["message"]


def test_a_text_without_tokens_is_named():
    rig = pooling_rig(framed=False)
    assert "`texts[1]`" in assert_refused(rig, rig.post("/v2/embed", {"texts": ["a", ""]}))["message"]
    assert "`texts`" in assert_refused(rig, rig.post("/v1/embed", {"texts": [""]}))["message"]
