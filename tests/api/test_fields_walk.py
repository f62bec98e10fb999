"""A walk over every field that the API reference names, on every route that takes it.

Each is served, with nonsense refused, or refused by name, or one that the reference itself calls ignored. So no field
that an API has is dropped in silence: a new one, or one that is forgotten in a type, fails here.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.api.generation_rig import Rig, say_hello
from tests.api.pooling_rig import answers, classify, embed
from tests.api.test_route_walk import ALL, EXAMPLES

NONSENSE = ("§", 1.5, [[[]]], {"§": [1]})
SAMPLING = {
    **dict.fromkeys(("temperature", "top_p", "min_p"), 0.5),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), 0.5),
    **dict.fromkeys(("top_k", "repetition_penalty", "n", "max_tokens", "prompt_logprobs", "stream_interval"), 1),
    **dict.fromkeys(("min_tokens", "priority", "length_penalty"), 0),
    **dict.fromkeys(("seed", "truncate_prompt_tokens"), -1),
    "stop_token_ids": [65],
    "allowed_token_ids": [65],
    **dict.fromkeys(("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "stream"), True),
    **dict.fromkeys(("spaces_between_special_tokens", "echo", "add_special_tokens", "return_token_ids"), True),
    "return_tokens_as_token_ids": True,
    "stop": ["a"],
    "logit_bias": {"65": 1},
    "bad_words": ["a"],
    "truncation_side": "left",
    "logprob_token_ids": [],
    "repetition_detection": {"max_pattern_size": 2},
    "cache_salt": "s",
    "model": "tiny",
}
NO_SAMPLING = {
    "use_beam_search": True,
    "thinking_token_budget": 5,
    "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "a"},
    "kv_transfer_params": {"do_remote_decode": True},
    "ec_transfer_params": {"a": 1},
    "vllm_xargs": {"a": 1},
    "watermarking": True,
    "stream_options": {"include_usage": True},
    "best_of": 2,
}
POOLED = {
    "use_activation": True,
    "model": "tiny",
    "truncate_prompt_tokens": -1,
    "truncation_side": "left",
    "padding": "do_not_pad",
    "priority": 1,
    "cache_salt": "s",
}
NOT_POOLED = {"normalize": True, "mm_processor_kwargs": {"a": 1}, "media_io_kwargs": {"a": 1}}
WORDS = {
    **dict.fromkeys(("add_special_tokens", "add_generation_prompt", "continue_final_message"), False),
    "chat_template_kwargs": {},
}
TEMPLATED = {
    **dict.fromkeys(("add_generation_prompt", "continue_final_message"), True),
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"a": 1},
}
"""Of conversations alone: refused beside a text, unless they ask for nothing."""
VECTORS = {"encoding_format": "base64", "embed_dtype": "float32", "endianness": "little"}
PAIRS = {
    **POOLED,
    "max_tokens_per_query": 1,
    "max_tokens_per_doc": 1,
    "instruction": "i",
    "chat_template_kwargs": {"instruction": "i"},
}
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}

EMBED, SCORE, RERANK = ("/v1/embed", "/v2/embed"), ("/score", "/v1/score"), ("/rerank", "/v1/rerank", "/v2/rerank")


def every(routes: Sequence[str], fields: Any) -> dict[str, Any]:
    return dict.fromkeys(routes, fields)


SERVED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **SAMPLING,
        **dict.fromkeys(("logprobs", "add_generation_prompt", "include_reasoning", "return_prompt_text"), True),
        **dict.fromkeys(("continue_final_message", "parallel_tool_calls"), False),
        "messages": MESSAGES,
        "max_completion_tokens": 5,
        "top_logprobs": 0,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"a": 1},
        "documents": [{"text": "a"}],
    },
    "/v1/completions": {**SAMPLING, "prompt": "hi", "logprobs": 1},
    "/v1/embeddings": {**POOLED, **WORDS, **VECTORS, "input": "a", "dimensions": 8},
    "/pooling": {**POOLED, **WORDS, **VECTORS, "input": "a", "task": "embed"},
    "/classify": {**POOLED, **WORDS, "input": "a"},
    **every(
        EMBED,
        {
            **POOLED,
            "texts": ["a"],
            "input_type": "search_query",
            "embedding_types": ["float"],
            "output_dimension": 8,
            "truncate": "END",
            "max_tokens": 5,
        },
    ),
    **every(SCORE, {**PAIRS, "queries": "q", "documents": ["a", "b"]}),
    **every(
        RERANK, {**PAIRS, "query": "q", "documents": ["a"], "rank_fields": ["a"], "top_n": 1, "return_documents": False}
    ),
    "/tokenize": {**WORDS, "prompt": "hi", "return_token_strs": True, "documents": [], "model": "tiny"},
    "/detokenize": {"tokens": [65], "model": "tiny"},
}
REFUSED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **NO_SAMPLING,
        "chat_template": "{{ messages }}",
        "mm_processor_kwargs": {"a": 1},
        "media_io_kwargs": {"a": 1},
        "tools": [TOOL],
        "tool_choice": "auto",
    },
    "/v1/completions": {**NO_SAMPLING, "suffix": "a", "prompt_embeds": "a"},
    "/v1/embeddings": {**NOT_POOLED, **TEMPLATED, "messages": MESSAGES},
    "/pooling": {**NOT_POOLED, **TEMPLATED, "dimensions": 8, "data": {"a": 1}},
    "/classify": {**NOT_POOLED, **TEMPLATED},
    **every(EMBED, {**NOT_POOLED, "images": ["a"], "inputs": [{"content": []}]}),
    **every(SCORE, {**NOT_POOLED, "items": ["a"], "data_1": "a", "text_2": "a"}),
    **every(RERANK, {**NOT_POOLED, "texts": ["a"]}),
    "/tokenize": {**TEMPLATED, "documents": [{"text": "a"}], "tools": [TOOL], "messages": MESSAGES},
}
"""Not served, or not beside the fields of the example."""
IGNORED: dict[str, tuple[str, ...]] = {
    **every(("/v1/chat/completions", "/v1/completions"), ("user", "session_id", "guided_json", "guided_regex")),
    **every(("/v1/embeddings", "/pooling", "/classify", "/v1/embed", "/v2/embed"), ("user", "request_id")),
    **every(SCORE, ("user", "request_id")),
    **every(RERANK, ("user", "request_id", "max_chunks_per_doc", "relevant_spans")),
}
"""By the reference's word, or told of in the log (`session_id`). Ids are the server's own, whatever `request_id` is."""


@pytest.fixture(scope="module")
def rig() -> Rig:
    def script(submit):
        if submit.pooling is None:
            return say_hello(submit)
        return answers(classify if submit.pooling.task == "classify" else embed)(submit)

    return Rig(script, profile=ALL)


def names(error: dict[str, Any], field: str) -> bool:
    return str(error["param"]).startswith(field) or f"`{field}" in error["message"]


@pytest.mark.parametrize("route", SERVED)
def test_what_is_served_is_read(rig, route):
    """The field does no harm with a good value or null, and a bad one is refused in its name."""
    for field, value in SERVED[route].items():
        body = EXAMPLES[route]
        assert rig.post(route, {**body, field: value}).status_code == 200, field
        if field not in body:
            assert rig.post(route, {**body, field: None}).status_code == 200, field
        replies = [rig.post(route, {**body, field: nonsense}) for nonsense in NONSENSE]
        errors = [reply.json()["error"] for reply in replies if reply.status_code == 400]
        assert any(names(error, field) for error in errors), field


@pytest.mark.parametrize("route", REFUSED)
def test_what_is_not_served_is_refused_by_name(rig, route):
    for field, value in REFUSED[route].items():
        reply = rig.post(route, {**EXAMPLES[route], field: value})
        assert reply.status_code == 400, field
        assert names(reply.json()["error"], field), (field, reply.text)
        assert rig.post(route, {**EXAMPLES[route], field: None}).status_code == 200, field


@pytest.mark.parametrize("route", IGNORED)
def test_what_is_ignored_changes_nothing(rig, route):
    plain = rig.post(route, EXAMPLES[route]).json()
    for field in IGNORED[route]:
        for value in (*NONSENSE, None):
            reply = rig.post(route, {**EXAMPLES[route], field: value})
            assert reply.status_code == 200, (field, reply.text)
            told = {key: one for key, one in reply.json().items() if key not in ("id", "created")}
            assert told.items() <= plain.items(), field


@pytest.mark.parametrize(
    ("route", "field"), [("/tokenize", "tools"), ("/tokenize", "chat_template"), ("/pooling", "chat_template")]
)
def test_what_a_conversation_may_not_bring_is_refused(rig, route, field):
    reply = rig.post(route, {"messages": MESSAGES, field: {"tools": [TOOL], "chat_template": "{{ messages }}"}[field]})
    assert reply.status_code == 400
    assert names(reply.json()["error"], field)
