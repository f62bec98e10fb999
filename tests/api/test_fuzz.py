"""Whatever JSON stands in a field: a success or a valid refusal, and only valid values reach the engine."""

import json
import math

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.api.chat_types import ChatRequest
from tenure.api.completion_types import CompletionRequest
from tests.api.generation_rig import Rig

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


def check(path: str, base: dict, field: str, value: object) -> None:
    SHARED.engine.submitted.clear()
    body = json.dumps({**base, field: value}).encode()  # surrogates as escapes, NaN and Infinity bare
    reply = SHARED.post(path, body)
    if reply.status_code == 200:
        (submit,) = SHARED.engine.submitted
        msgspec.msgpack.encode(submit)
        sampling = submit.sampling
        assert all(math.isfinite(number) for number in msgspec.structs.astuple(sampling) if isinstance(number, float))
        assert 0 <= sampling.max_tokens <= 2048
        assert all(submit.prompts)
        return
    assert 400 <= reply.status_code < 500, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert SHARED.engine.submitted == []


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
