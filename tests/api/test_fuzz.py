"""Whatever JSON stands in a field: a success or a valid refusal, and only valid values reach the engine."""

import json
import math

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.api.cohere.embed import EmbedRequest
from tenure.api.openai.embedding_types import ClassifyRequest, EmbeddingRequest, PoolingRequest
from tenure.api.openai.request_types import ChatRequest, CompletionRequest
from tenure.api.openai.tokenize_routes import DetokenizeRequest, TokenizeRequest
from tests.api.generation_rig import Rig
from tests.api.pooling_rig import CLASSIFIER, classify, pooling_rig

NUMBERS = st.one_of(
    st.integers(-3, 300),
    st.integers(-(10**25), 10**25),
    st.floats(),
    st.sampled_from([2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 1e-6, 1e300, -0.0, 16.0]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["left", "\ud800", "a\0b"]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["1", "type", "json", "role", "content"]), inner)
    ),
    max_leaves=6,
)
SHARED = Rig()
EMBEDDER = pooling_rig()
CLASSES = pooling_rig(CLASSIFIER, classify)
MESSAGES = [{"role": "user", "content": "hi"}]
READING = [
    *(("/v1/embeddings", {"input": "hi"}, name) for name in EmbeddingRequest.__struct_fields__),
    *(("/pooling", {"input": "hi"}, name) for name in PoolingRequest.__struct_fields__),
    *(("/v2/embed", {"texts": ["hi"]}, name) for name in EmbedRequest.__struct_fields__),
    *(("/v1/embed", {"texts": ["hi"], "embedding_types": None}, name) for name in EmbedRequest.__struct_fields__),
    *(("/tokenize", {"messages": MESSAGES}, name) for name in TokenizeRequest.__struct_fields__),
    *(("/tokenize", {"prompt": "hi"}, name) for name in TokenizeRequest.__struct_fields__),
    *(("/detokenize", {"tokens": [104]}, name) for name in DetokenizeRequest.__struct_fields__),
]


def check(path: str, base: dict, field: str, value: object, rig: Rig = SHARED) -> None:
    rig.engine.submitted.clear()
    body = json.dumps({**base, field: value}).encode()  # surrogates as escapes, NaN and Infinity bare
    reply = rig.post(path, body)
    if reply.status_code == 200 and not rig.engine.submitted:
        assert path.endswith("tokenize")
        return
    if reply.status_code == 200:
        (submit,) = rig.engine.submitted
        msgspec.msgpack.encode(submit)
        sampling = submit.sampling
        assert all(math.isfinite(number) for number in msgspec.structs.astuple(sampling) if isinstance(number, float))
        assert 0 <= sampling.max_tokens <= 2048
        assert all(submit.prompts)
        return
    assert 400 <= reply.status_code < 500, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert rig.engine.submitted == []


def fields_of(kind: type) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind)]


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(field=st.sampled_from(fields_of(ChatRequest)), value=VALUES)
def test_chat(field, value):
    check("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, field, value)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(field=st.sampled_from(fields_of(CompletionRequest)), value=VALUES)
def test_completions(field, value):
    check("/v1/completions", {"prompt": "hi", "max_tokens": 4}, field, value)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(place=st.sampled_from(READING), value=VALUES)
def test_routes_that_read(place, value):
    path, base, field = place
    check(path, base, field, value, EMBEDDER)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(field=st.sampled_from(ClassifyRequest.__struct_fields__), value=VALUES)
def test_classify(field, value):
    check("/classify", {"input": "hi"}, field, value, CLASSES)
