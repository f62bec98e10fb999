"""`POST /v1/embeddings`: every form of input, every field, exact numbers, and inputs beyond the window."""

import base64
import threading
from dataclasses import replace

import numpy as np
import pytest

from tenure.checkpoints.profile import ModelProfile
from tenure.client import GenerationFailed
from tenure.config import ApiSettings
from tenure.errors import Refusal
from tenure.outcomes import Outcome
from tenure.pooling import PoolingTask
from tests.api.generation_rig import assert_refused
from tests.api.pooling_rig import CLASSIFIER, EMBEDDER, SIZE, classify, draw, embed, framed, pooling_rig

PATH = "/v1/embeddings"
MATRYOSHKA = replace(EMBEDDER, dimensions=(2, 4))
PROMPTED = replace(EMBEDDER, prompts={"query": "Q: ", "document": "D: "}, default_prompt="document")
CUTTING = ApiSettings(version="0.0", truncate_long_inputs=True)
CHUNKING = ApiSettings(version="0.0", chunk_long_inputs=True, max_chunked_len=100)


def vectors(reply) -> np.ndarray:
    """The embeddings of a reply, in order, as float32."""
    assert reply.status_code == 200, reply.text
    data = reply.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    found = [entry["embedding"] for entry in data]
    if isinstance(found[0], str):
        return np.stack([np.frombuffer(base64.b64decode(one), "<f4") for one in found])
    return np.array(found, dtype=np.float32)


def unit(*parts: np.ndarray, weights=(1,)) -> np.ndarray:
    mean = np.average(np.stack(parts).astype(np.float64), axis=0, weights=weights)
    return mean / np.linalg.norm(mean)


def test_the_reply_of_two_texts(rig):
    reply = rig.post(PATH, {"input": ["hi", "you"], "model": "alias", "user": 5}, headers={"x-request-id": "mine"})
    body = reply.json()
    assert body["id"].startswith("embd-")
    assert (body["object"], body["model"]) == ("list", "tiny")
    assert isinstance(body["created"], int)
    assert [entry["object"] for entry in body["data"]] == ["embedding", "embedding"]
    assert body["usage"] == {"prompt_tokens": 9, "total_tokens": 9, "completion_tokens": 0}
    submit = rig.submitted
    assert submit.prompts == [framed("hi"), framed("you")]
    assert submit.pooling.task is PoolingTask.EMBED
    assert (submit.n, submit.sampling.max_tokens, submit.segments, submit.label) == (1, 0, [], "mine")
    assert (vectors(reply)[0] == embed(framed("hi"), submit.pooling)[0]).all()


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hi", [framed("hi")]),
        (["hi"], [framed("hi")]),
        (["a", "b"], [framed("a"), framed("b")]),
        ([256, 104, 105, 257], [framed("hi")]),
        ([5, 6.0], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        ("", [[256, 257]]),
        ([""], [[256, 257]]),
        (["a", ""], [framed("a"), [256, 257]]),
    ],
)
def test_forms_of_input(rig, given, prompts):
    body = rig.post(PATH, {"input": given}).json()
    assert rig.submitted.prompts == prompts
    assert body["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert len(body["data"]) == len(prompts)


@pytest.mark.parametrize(
    "given", [None, [], [[]], [[1], []], ["a", 1], ["a", [1]], [1, [1]], [1, "a"], 5, {}, [None], [True], [[["a"]]]]
)
def test_inputs_of_no_form_are_refused(rig, given):
    error = assert_refused(rig, rig.post(PATH, {"input": given}))
    assert "input" in (error["param"] or "")


@pytest.mark.parametrize(("given", "place"), [("", "`input`"), ([""], "`input`"), (["a", "", "b"], "`input[1]`")])
def test_a_text_without_tokens_is_refused_alone_and_in_a_batch(given, place):
    rig = pooling_rig(framed=False)
    assert place in assert_refused(rig, rig.post(PATH, {"input": given}))["message"]


@pytest.mark.parametrize(
    ("given", "place"),
    [([[5], [260]], "input[1][0]"), ([5, 258], "input[1]"), ([5, -1], "input[1]"), ([1.5], "input[0]")],
)
def test_an_id_that_is_none_is_named(rig, given, place):
    assert place in assert_refused(rig, rig.post(PATH, {"input": given}))["message"]


def test_lone_surrogates_are_refused(rig):
    assert_refused(rig, rig.post(PATH, b'{"input":["a","\\ud800"]}'))


def test_special_tokens_may_be_left_out(rig):
    rig.post(PATH, {"input": "hi", "add_special_tokens": False})
    assert rig.submitted.prompts == [list(b"hi")]


@pytest.mark.parametrize("value", ["float", "base64", None])
def test_both_encodings_hold_the_same_bits(rig, value):
    found = vectors(rig.post(PATH, {"input": ["hi", "you"], "encoding_format": value}))
    expected = np.stack([embed(ids, rig.submitted.pooling)[0] for ids in (framed("hi"), framed("you"))])
    assert (found == expected.astype(np.float32)).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoding_format", "hex"),
        ("encoding_format", ""),
        ("encoding_format", "bytes"),
        ("encoding_format", 5),
        ("embed_dtype", "float16"),
        ("endianness", "big"),
        ("dimensions", 0),
        ("dimensions", -1),
        ("dimensions", SIZE + 1),
        ("dimensions", 4),
        ("dimensions", 1.5),
        ("dimensions", True),
        ("dimensions", 10**30),
        ("use_activation", 1),
        ("normalize", True),
        ("normalize", False),
        ("truncate_prompt_tokens", -2),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", 2049),
        ("truncate_prompt_tokens", 1.5),
        ("truncation_side", "middle"),
        ("add_special_tokens", "yes"),
        ("messages", [{"role": "user", "content": "hi"}]),
        ("priority", 2**63),
        ("cache_salt", "a/b"),
        ("mm_processor_kwargs", {"a": 1}),
    ],
)
def test_values_that_are_refused_by_name(rig, field, value):
    error = assert_refused(rig, rig.post(PATH, {"input": "hello", field: value}))
    assert field in error["message"] or field in (error["param"] or "")


@pytest.mark.parametrize(
    "field", ["model", "user", "dimensions", "encoding_format", "priority", "truncation_side", "messages"]
)
def test_null_is_the_same_as_absent(rig, field):
    assert rig.post(PATH, {"input": "hello", field: None}).status_code == 200


def test_fields_reach_the_engine(rig):
    body = {"input": "hi", "use_activation": False, "cache_salt": "s", "embed_dtype": "float32", "endianness": "little"}
    rig.post(PATH, body)
    assert (rig.submitted.pooling.activation, rig.submitted.cache_salt) == (False, "s")


@pytest.mark.parametrize(("asked", "sent"), [(SIZE, None), (4, 4), (2, 2), (4.0, 4)])
def test_dimensions_of_a_matryoshka_model(asked, sent):
    rig = pooling_rig(MATRYOSHKA)
    found = vectors(rig.post(PATH, {"input": "hi", "dimensions": asked}))
    assert rig.submitted.pooling.dimensions == sent
    assert found.shape == (1, asked)
    assert np.linalg.norm(found[0]) == pytest.approx(1, abs=1e-6)


def test_other_dimensions_of_a_matryoshka_model_are_told_what_there_is():
    rig = pooling_rig(MATRYOSHKA)
    assert "2, 4, 8" in assert_refused(rig, rig.post(PATH, {"input": "hi", "dimensions": 3}))["message"]


def test_the_native_size_is_served_by_every_model(rig):
    assert vectors(rig.post(PATH, {"input": "hi", "dimensions": SIZE})).shape == (1, SIZE)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 4}, "ab"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, "ef"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, "ab"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, "f"),
        ({"truncate_prompt_tokens": 8}, "abcdef"),
        ({"truncate_prompt_tokens": -1}, "abcdef"),
    ],
)
@pytest.mark.parametrize("ids", [False, True])
def test_truncation_keeps_the_special_tokens(rig, fields, kept, ids):
    reply = rig.post(PATH, {"input": framed("abcdef") if ids else "abcdef", **fields})
    assert rig.submitted.prompts == [framed(kept)]
    assert reply.json()["usage"]["prompt_tokens"] == len(kept) + 2


@pytest.mark.parametrize("limit", [1, 2])
def test_truncation_that_leaves_no_text_is_refused(rig, limit):
    error = assert_refused(rig, rig.post(PATH, {"input": "abc", "truncate_prompt_tokens": limit}))
    assert error["param"] == "truncate_prompt_tokens"


def test_truncation_to_the_window_takes_all_of_it():
    rig = pooling_rig(max_model_len=10)
    rig.post(PATH, {"input": "x" * 50, "truncate_prompt_tokens": -1})
    assert rig.submitted.prompts == [framed("x" * 8)]


@pytest.mark.parametrize("given", ["x" * 9, ["a", "x" * 9], [7] * 11])
def test_an_input_beyond_the_window_is_refused(given):
    rig = pooling_rig(max_model_len=10)
    error = assert_refused(rig, rig.post(PATH, {"input": given}), code="context_length_exceeded")
    assert "reduce the length of the input prompt" in error["message"]
    assert "`input[1]`" in error["message"] or len(given) != 2
    assert error["param"] == "input"


def test_most_of_a_text_that_is_far_too_long_is_never_tokenised():
    rig = pooling_rig(max_model_len=10)
    tokenizer = rig.context.texts["tiny"].tokenizer
    lengths: list[int] = []
    whole = tokenizer.encode_plain
    tokenizer.encode_plain = lambda texts, between=None: lengths.extend(map(len, texts)) or whole(texts)
    reply = rig.post(PATH, {"input": ["a", "x" * 50_000]})
    error = assert_refused(rig, reply, code="context_length_exceeded")
    assert "`input[1]` has at least" in error["message"]
    assert sum(lengths) < 1000
    assert rig.post(PATH, {"input": "x" * 50_000, "truncate_prompt_tokens": -1}).status_code == 200


def test_an_input_may_fill_the_window():
    rig = pooling_rig(max_model_len=10)
    assert rig.post(PATH, {"input": "x" * 8}).status_code == 200
    assert rig.submitted.prompts == [framed("x" * 8)]


def test_the_length_that_the_models_authors_recommend_is_the_window():
    rig = pooling_rig(replace(EMBEDDER, max_length=6))
    assert rig.post(PATH, {"input": "abcd"}).status_code == 200
    rig.engine.submitted.clear()
    assert_refused(rig, rig.post(PATH, {"input": "abcde"}), code="context_length_exceeded")
    assert rig.post(PATH, {"input": "abcde", "truncate_prompt_tokens": -1}).json()["usage"]["prompt_tokens"] == 6


def test_a_long_batch_is_read_and_written_off_the_event_loop():
    rig = pooling_rig(max_model_len=20_000)
    tokenizer = rig.context.texts["tiny"].tokenizer
    assert rig.post(PATH, {"input": ["x" * 9000, "y"]}).status_code == 200
    assert threading.get_ident() not in tokenizer.encoded_by


def test_more_inputs_than_a_request_may_have_are_refused():
    rig = pooling_rig(settings=ApiSettings(version="0.0", max_inputs=2))
    assert rig.post(PATH, {"input": ["a", "b"]}).status_code == 200
    rig.engine.submitted.clear()
    assert "at most 2" in assert_refused(rig, rig.post(PATH, {"input": ["a", "b", "c"]}))["message"]


def classify_or_embed(ids, params):
    return classify(ids, params) if params.task is PoolingTask.CLASSIFY else embed(ids, params)


def test_the_default_prompt_of_a_model_goes_in_front_of_texts_alone():
    rig = pooling_rig(PROMPTED)
    rig.post(PATH, {"input": ["a", "b"]})
    rig.post(PATH, {"input": [[97], [98]]})
    assert [submit.prompts for submit in rig.engine.submitted] == [[framed("D: a"), framed("D: b")], [[97], [98]]]


@pytest.mark.parametrize("path", [PATH, "/pooling"])
def test_a_request_names_the_prompt_that_it_wants(path):
    rig = pooling_rig(PROMPTED)
    for ids in ([97, 98], [[97], [98]]):
        error = assert_refused(rig, rig.post(path, {"input": ids, "prompt_name": "query"}))
        assert "token ids are read as they are" in error["message"]
    assert rig.post(path, {"input": ["a"], "prompt_name": "query"}).status_code == 200
    assert rig.submitted.prompts == [framed("Q: a")]
    rig.engine.submitted.clear()
    error = assert_refused(rig, rig.post(path, {"input": "a", "prompt_name": "passage"}))
    assert (error["param"], "query, document" in error["message"]) == ("prompt_name", True)
    rig = pooling_rig()
    error = assert_refused(rig, rig.post(path, {"input": "a", "prompt_name": "query"}))
    assert "the model has no prompts" in error["message"]


def test_a_prompt_is_for_what_is_embedded():
    rig = pooling_rig(CLASSIFIER, classify)
    error = assert_refused(rig, rig.post("/pooling", {"input": "a", "prompt_name": "query"}))
    assert error["param"] == "prompt_name"


# Inputs beyond the window


@pytest.mark.parametrize("path", [PATH, "/pooling", "/classify"])
def test_where_the_operator_says_so_long_inputs_are_cut(path):
    profile = CLASSIFIER if path == "/classify" else EMBEDDER
    body = {"input": ["abcdefghijkl", "mn"]}
    rig = pooling_rig(profile, classify_or_embed, max_model_len=10)
    assert_refused(rig, rig.post(path, body), code="context_length_exceeded")
    rig = pooling_rig(profile, classify_or_embed, max_model_len=10, settings=CUTTING)
    assert rig.post(path, body).status_code == 200
    assert rig.submitted.prompts == [framed("abcdefgh"), framed("mn")]
    rig.engine.submitted.clear()
    assert rig.post(path, body | {"truncate_prompt_tokens": 5}).status_code == 200
    assert rig.submitted.prompts == [framed("abc"), framed("mn")]


def test_a_long_input_is_the_weighted_mean_of_its_chunks():
    rig = pooling_rig(max_model_len=10, settings=CHUNKING)
    text = "abcdefghijklmnopqrs"  # 19 tokens: 8, 8 and 3 beside two special ones each
    reply = rig.post(PATH, {"input": ["short", text, "end"]})
    parts = [framed(part) for part in ("abcdefgh", "ijklmnop", "qrs")]
    assert rig.submitted.prompts == [framed("short"), *parts, framed("end")]
    params = rig.submitted.pooling
    expected = unit(*(embed(ids, params)[0] for ids in parts), weights=(8, 8, 3))
    found = vectors(reply)
    assert found[1] == pytest.approx(expected, abs=1e-6)
    assert (found[0] == embed(framed("short"), params)[0].astype(np.float32)).all()
    assert reply.json()["usage"]["prompt_tokens"] == 7 + 10 + 10 + 5 + 5


def test_each_chunk_stands_behind_the_prompt_of_the_model():
    rig = pooling_rig(PROMPTED, max_model_len=10, settings=CHUNKING)
    reply = rig.post(PATH, {"input": ["abcdefghijkl", "short"]})
    parts = [framed("D: abcde"), framed("D: fghij"), framed("D: kl")]
    assert rig.submitted.prompts == [*parts, framed("D: short")]
    params = rig.submitted.pooling
    expected = unit(*(embed(ids, params)[0] for ids in parts), weights=(5, 5, 2))
    assert vectors(reply)[0] == pytest.approx(expected, abs=1e-6)


def test_chunks_are_not_normalised_where_the_request_or_the_model_does_not():
    for profile, fields in ((EMBEDDER, {"use_activation": False}), (replace(EMBEDDER, normalize=False), {})):
        rig = pooling_rig(profile, lambda ids, _: draw(ids, SIZE)[None], max_model_len=10, settings=CHUNKING)
        found = vectors(rig.post(PATH, {"input": "abcdefghij", **fields}))
        parts = [draw(framed(part), SIZE) for part in ("abcdefgh", "ij")]
        assert found[0] == pytest.approx(np.average(parts, axis=0, weights=(8, 2)), abs=1e-6)


def test_token_ids_are_chunked_between_their_special_tokens():
    rig = pooling_rig(max_model_len=6, settings=CHUNKING)
    rig.post(PATH, {"input": framed("abcdef")})
    rig.post(PATH, {"input": list(b"abcdefgh")})
    first, second = (submit.prompts for submit in rig.engine.submitted)
    assert first == [framed("abcd"), framed("ef")]
    assert second == [list(b"abcdef"), list(b"gh")]


def test_chunks_of_a_matryoshka_model_are_cut_and_of_length_1():
    rig = pooling_rig(MATRYOSHKA, max_model_len=6, settings=CHUNKING)
    found = vectors(rig.post(PATH, {"input": "abcdefgh", "dimensions": 4}))
    assert found.shape == (1, 4)
    assert np.linalg.norm(found[0]) == pytest.approx(1, abs=1e-6)


def test_chunks_whose_mean_is_zero_are_no_vector():
    def opposite(ids, _params):
        return np.full((1, SIZE), 1.0 if ids[1] == ord("a") else -1.0, dtype=np.float32)

    rig = pooling_rig(answer=opposite, max_model_len=3, settings=CHUNKING)
    reply = rig.post(PATH, {"input": "ab"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert "cancel each other out" in reply.json()["error"]["message"]


def test_the_most_that_is_chunked_is_enforced_before_the_engine_is_asked():
    rig = pooling_rig(max_model_len=10, settings=CHUNKING)
    assert rig.post(PATH, {"input": "x" * 98}).status_code == 200
    rig.engine.submitted.clear()
    error = assert_refused(rig, rig.post(PATH, {"input": "x" * 99}), code="context_length_exceeded")
    assert "at most 100" in error["message"]


def test_special_tokens_that_fill_the_window_leave_nothing_to_chunk():
    rig = pooling_rig(max_model_len=2, settings=CHUNKING)
    assert_refused(rig, rig.post(PATH, {"input": "abc"}))


# Endings


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_a_number_that_is_not_finite_is_a_clean_500(bad, encoding):
    def broken(ids, params):
        found = embed(ids, params)
        found[0, 3] = bad if ids == framed("b") else found[0, 3]
        return found

    rig = pooling_rig(answer=broken)
    reply = rig.post(PATH, {"input": ["a", "b"], "encoding_format": encoding})
    assert reply.status_code == 500
    error = reply.json()["error"]
    assert error["code"] == "internal_error"
    assert "not finite" in error["message"]
    assert rig.counts.outcomes == {"engine_error": 1}


def test_an_engine_that_finds_nan_says_so_in_the_envelope():
    rig = pooling_rig()
    rig.engine.failure = GenerationFailed(Outcome.ENGINE_ERROR, "the model gave NaN")
    reply = rig.post(PATH, {"input": "a"})
    assert reply.status_code == 500
    assert "the model gave NaN" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(Outcome.ABORTED, 409), (Outcome.UNAVAILABLE, 503), (Outcome.DEADLINE, 504), (Outcome.ENGINE_ERROR, 500)],
)
def test_an_end_by_the_engine_is_told(outcome, status):
    rig = pooling_rig()
    rig.engine.failure = GenerationFailed(outcome, "why")
    rig.engine.script = lambda _submit: []
    assert rig.post(PATH, {"input": "a"}).status_code == status


def test_an_answer_that_lacks_an_item_is_a_500():
    rig = pooling_rig()
    whole = rig.engine.script
    rig.engine.script = lambda submit: whole(submit)[:-1]
    reply = rig.post(PATH, {"input": ["a", "b"]})
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"


def test_a_refusal_is_told():
    rig = pooling_rig()
    rig.engine.refusal = Refusal(Outcome.QUEUE_FULL, "queue_full", "no room", 3.0)
    reply = rig.post(PATH, {"input": "a"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")


@pytest.mark.parametrize("named", [{}, {"model": "tiny"}])
@pytest.mark.parametrize(("profile", "answer"), [(CLASSIFIER, classify), (ModelProfile(tasks=("generate",)), embed)])
def test_a_model_that_does_not_embed_says_what_it_can(profile, answer, named):
    rig = pooling_rig(profile, answer)
    error = assert_refused(rig, rig.post(PATH, {"input": "a", **named}), code="model_not_supported")
    assert profile.tasks[0] in error["message"]
