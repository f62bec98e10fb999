"""`/tokenize` and `/detokenize`: every token, of any length, without an engine's work."""

import threading

import pytest

from tests.api.generation_rig import Rig, assert_refused
from tests.api.pooling_rig import framed, pooling_rig


@pytest.fixture
def rig() -> Rig:
    return pooling_rig()


def test_a_text(rig):
    reply = rig.post("/tokenize", {"prompt": "hi"})
    assert reply.json() == {"count": 4, "max_model_len": 2048, "tokens": framed("hi"), "token_strs": None}
    assert rig.counts.arrivals == 0
    assert rig.engine.submitted == []


def test_special_tokens_may_be_left_out_and_pieces_be_shown(rig):
    body = rig.post("/tokenize", {"prompt": "hi", "add_special_tokens": False, "return_token_strs": True}).json()
    assert (body["tokens"], body["token_strs"], body["count"]) == (list(b"hi"), ["h", "i"], 2)


def test_an_empty_text_is_a_text():
    assert pooling_rig(framed=False).post("/tokenize", {"prompt": ""}).json()["tokens"] == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [({}, "user:a;>"), ({"add_generation_prompt": True}, "user:a;>"), ({"add_generation_prompt": False}, "user:a;")],
)
def test_a_conversation(rig, fields, text):
    body = rig.post("/tokenize", {"messages": [{"role": "user", "content": "a"}], **fields}).json()
    assert bytes(body["tokens"]) == text.encode()


def test_a_conversation_with_special_tokens(rig):
    messages = [{"role": "user", "content": "a"}]
    body = rig.post("/tokenize", {"messages": messages, "add_special_tokens": True}).json()
    assert body["tokens"] == framed("user:a;>")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": None},
        {"prompt": "a", "messages": [{"role": "user", "content": "a"}]},
        {"prompt": 5},
        {"prompt": ["a"]},
        {"messages": []},
        {"messages": [{"content": "a"}]},
        {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]},
        {"messages": [{"role": "user", "content": "a"}], "chat_template": "x"},
        {"prompt": "a", "return_token_strs": "yes"},
    ],
)
def test_tokenize_refuses(rig, body):
    assert_refused(rig, rig.post("/tokenize", body))


def test_there_is_no_limit_of_length_and_a_long_text_leaves_the_event_loop():
    rig = pooling_rig(max_model_len=10)
    body = rig.post("/tokenize", {"prompt": "x" * 20_000}).json()
    assert (body["count"], body["max_model_len"]) == (20_002, 10)
    assert threading.get_ident() not in rig.context.texts["tiny"].tokenizer.encoded_by


def test_the_way_back(rig):
    assert rig.post("/detokenize", {"tokens": [*"hé".encode(), 33.0]}).json() == {"prompt": "hé!"}
    assert rig.post("/detokenize", {"tokens": framed("a")}).json() == {"prompt": "<begin>a<end>"}
    assert rig.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}
    assert rig.counts.arrivals == 0


@pytest.mark.parametrize("tokens", [None, "a", [260], [258], [-1], [1.5], ["a"], [True], [[1]], [10**30]])
def test_detokenize_refuses_what_is_no_token(rig, tokens):
    assert "tokens" in assert_refused(rig, rig.post("/detokenize", {"tokens": tokens}))["param"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_any_model_will_do_and_one_that_loads_is_a_503(path):
    rig = Rig()
    body = {"prompt": "a", "tokens": [97]}
    assert rig.post(path, body).status_code == 200
    rig.engine.card = None
    reply = rig.post(path, body)
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
