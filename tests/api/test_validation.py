"""Every sampling field: values that are taken as they are, values at the edge, values that are refused."""

import logging
import threading

import pytest

from tenure.config import ApiSettings
from tenure.prompts.text_model import GenerationDefaults
from tenure.sampling import RepetitionDetection, TokenLogprobs
from tenure.wire.messages import ItemOutput, Submit
from tests.api.generation_rig import END, LENGTH, Rig, assert_refused, events, output

INT64 = 2**63 - 1
TOO_MANY_BIASES = {f"{token:0{digits}}": 1 for token in range(200) for digits in (4, 5)}


@pytest.fixture(scope="module")
def shared() -> Rig:
    return Rig()


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.engine.submitted.clear()
    return shared


BOTH = [
    ("temperature", [0, 0.7, 2, 2.0], [-0.1, 2.01, "1", True, [], {}]),
    ("top_p", [0.1, 1], [0, -1, 1.1, "x", False]),
    ("top_k", [-1, 0, 5, 5.0, INT64], [-2, 1.5, "5", True, 2**63]),
    ("min_p", [0, 0.5, 1], [-0.01, 1.01, "0"]),
    ("presence_penalty", [-2, 0, 2], [-2.1, 2.1, "0", True]),
    ("frequency_penalty", [-2, 0, 2], [-2.1, 2.1, [0]]),
    ("repetition_penalty", [0.1, 1.3, 1e300], [0, -1, "1"]),
    ("length_penalty", [0, -3, 1.0], ["1", True]),
    ("n", [1, 2, 128, 2.0], [0, -1, 129, 512, 100000, 1.5, "2", True, 10**30]),
    ("best_of", [1], [0, 2, 100000, 1.5]),
    ("seed", [0, -1, INT64, -(2**63)], [2**63, -(2**63) - 1, 1.5, "1", 10**40]),
    ("stop", ["a", ["a"], ["a", "b", "c", "d"], []], ["", [""], ["a", ""], ["a"] * 5, 1, [1], {"a": 1}]),
    ("stop_token_ids", [[], [0], [259], [7.0]], [[260], [258], [-1], ["a"], [1.5], 3, [True], [10**30], [0] * 261]),
    ("include_stop_str_in_output", [True, False], [1, "true"]),
    ("ignore_eos", [True, False], [1, "true", 0]),
    ("min_tokens", [0, 1, 4.0], [-1, 6, 1.5, "1", 10**30]),
    ("skip_special_tokens", [True, False], [1, "no"]),
    ("spaces_between_special_tokens", [True, False], [1, "no"]),
    (
        "logit_bias",
        [{}, {"1": 5}, {"259": -100.0}, {"0": 1000}],
        [{"260": 1}, {"258": 1}, {"-1": 1}, {"a": 1}, {"1": "x"}, [1], {"1": None}, TOO_MANY_BIASES],
    ),
    ("bad_words", [[], ["a"], ["two words"], ["x" * 1024]], [[""], [" "], "a", [1], ["a"] * 129, ["x" * 1025]]),
    ("allowed_token_ids", [[1], [0, 259]], [[], [260], [258], [-1], ["a"], 5, [0] * 261]),
    ("truncate_prompt_tokens", [-1, 1, 2048], [-2, 0, 2049, 1.5, "1", 10**30]),
    ("truncation_side", ["left", "right"], ["middle", "", 1]),
    ("prompt_logprobs", [0, 1, 20], [21, -1, -2, 10**9, 1.5, True]),
    ("logprob_token_ids", [[]], [[260], [1], [-1], ["a"], [1] * 129]),
    ("use_beam_search", [False], [True, 1]),
    (
        "repetition_detection",
        [{}, {"max_pattern_size": 4}],
        [{"max_pattern_size": -1}, {"max_pattern_size": 4, "min_count": 1}, 5],
    ),
    ("thinking_token_budget", [-1], [-2, 0, 100, "1"]),
    ("stream_interval", [1, 100], [0, -1, 1.5]),
    ("priority", [0, -5, INT64, -(2**63)], [2**63, 1.5, "1"]),
    ("cache_salt", ["a", "x" * 128], ["", "x" * 129, "a@b", "a/b", "a\\b", "a\0b", 5]),
    ("return_token_ids", [True, False], [1]),
    ("return_tokens_as_token_ids", [True, False], ["x"]),
    ("add_special_tokens", [True, False], [1]),
    ("echo", [True, False], [1]),
    ("stream_options", [{}, {"include_usage": None}], [{"include_usage": True}, {"include_usage": False}, 1, []]),
    ("response_format", [{"type": "text"}], [{"type": "json_object"}, {"type": "json_schema"}, {}, "text"]),
    ("structured_outputs", [{}], [{"json": {}}, {"regex": "a"}]),
    ("kv_transfer_params", [{}], [{"do_remote_decode": True}]),
    ("ec_transfer_params", [{}], [{"a": 1}]),
    ("watermarking", [False], [True, {"seed": 1}]),
    ("user", ["me", 5, {}], []),
    ("metadata", [{"a": "b"}, 3], []),
    ("store", [True, "x"], []),
    ("guided_json", [{"type": "object"}], []),
    ("unknown_field", [1, "x", {"a": [None]}], []),
    ("model", ["tiny", "alias", "", None], [5, []]),
]
CHAT = [
    ("max_tokens", [1, 5, 5.0, 100000000, 10**30, 1e30], [0, -1, 1.5, "5", True]),
    ("max_completion_tokens", [1, 10**30], [0, -1, 1.5, "5"]),
    ("logprobs", [True, False], [1, "true", 0]),
    ("top_logprobs", [0, None], [1, -1, 21, "1", 1.5]),
    ("add_generation_prompt", [True, False], [1]),
    ("continue_final_message", [False], [True, 1]),
    ("reasoning_effort", ["none", "high", "max"], ["much", 1]),
    ("include_reasoning", [True, False], [1]),
    ("chat_template", [], ["{{ messages }}", ""]),
    ("chat_template_kwargs", [{}, {"a": [1, {"b": None}]}], [1, []]),
    ("documents", [[], [{"text": "a"}]], [1, ["a"]]),
    ("return_prompt_text", [True, False], [1]),
    ("mm_processor_kwargs", [{}], [{"a": 1}]),
    ("media_io_kwargs", [{}], [{"a": 1}]),
    ("tools", [], [[], [{"type": "function", "function": {"name": "f"}}], 1]),
    ("tool_choice", ["none"], ["auto", "required", {"type": "function"}]),
    ("parallel_tool_calls", [True, False], [1]),
    (
        "messages",
        [
            [{"role": "user", "content": "a\0b"}],
            [{"role": "anything", "content": [{"type": "text", "text": "a"}]}],
            [{"role": "assistant", "content": None}],
            [{"role": "user", "content": "a", "name": "me", "unknown": 1}],
            [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}],
        ],
        [
            [],
            "hi",
            {},
            [1],
            [{}],
            [{"content": "a"}],
            [{"role": "user", "content": 5}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}],
            [{"role": "user", "content": [{"type": "text"}]}],
            [{"role": "user", "content": [{"text": "a"}]}],
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
        ],
    ),
]
COMPLETIONS = [
    ("max_tokens", [1, 16.0, 100000000, 10**30], [0, -1, 1.5, "5", True]),
    ("logprobs", [0, 1, 20, 5.0], [-1, -2, 21, 10**9, 1.5, True, "1"]),
    ("suffix", ["", None], ["end", 1]),
    ("prompt_embeds", [None], ["AAAA", []]),
]


def cases(*tables):
    valid = [(name, value) for table in tables for name, good, _ in table for value in [*good, None]]
    invalid = [(name, value) for table in tables for name, _, bad in table for value in bad]
    skipped = {"messages"}  # the one field that must not be null
    return [case for case in valid if not (case[0] in skipped and case[1] is None)], invalid


CHAT_VALID, CHAT_INVALID = cases(BOTH, CHAT)
COMPLETION_VALID, COMPLETION_INVALID = cases(BOTH, COMPLETIONS)


def budget(field: str) -> dict:
    """Room for `min_tokens` up to five."""
    return {"max_tokens": 5} if field == "min_tokens" else {}


@pytest.mark.parametrize(("field", "value"), CHAT_VALID, ids=str)
def test_chat_accepts(rig, field, value):
    reply = rig.chat("hello", **{**budget(field), field: value})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(("field", "value"), CHAT_INVALID, ids=str)
def test_chat_refuses_and_names_the_field(rig, field, value):
    error = assert_refused(rig, rig.chat("hello", **{**budget(field), field: value}))
    assert field in error["message"] or field in (error["param"] or "")


@pytest.mark.parametrize(("field", "value"), COMPLETION_VALID, ids=str)
def test_completions_accept(rig, field, value):
    reply = rig.complete("hello", **{**budget(field), field: value})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(("field", "value"), COMPLETION_INVALID, ids=str)
def test_completions_refuse_and_name_the_field(rig, field, value):
    error = assert_refused(rig, rig.complete("hello", **{**budget(field), field: value}))
    assert field in error["message"] or field in (error["param"] or "")


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b'"NaN"', b"1e400", b"-1e999"])
@pytest.mark.parametrize("field", [b"temperature", b"top_p", b"min_p", b"presence_penalty", b"repetition_penalty"])
def test_numbers_that_are_none_are_refused_and_not_echoed(rig, field, value):
    error = assert_refused(rig, rig.post("/v1/completions", b'{"prompt":"a","%s":%s}' % (field, value)))
    assert value.decode().strip('"') not in error["message"]


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b"123", b'"x"', b"true", b"", b"{", b"{}x", b"\xff", b"\xef\xbb\xbf{}", b"{'a':1}"]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_bodies_of_another_kind_are_refused(rig, path, body):
    error = assert_refused(rig, rig.post(path, body))
    assert error["type"] == "Bad Request"


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"\\ud800"}',
        b'{"prompt":["\\udc00"]}',
        b'{"prompt":"a","stop":"\\ud800x"}',
        b'{"prompt":"a","bad_words":["\\ud83d"]}',
        b'{"prompt":"a","user":"\\ud800"}',
        b'{"prompt":"\xed\xa0\x80"}',
        b'{"prompt":"a","stream":true,"cache_salt":"\\ud800\\ud800"}',
    ],
)
def test_lone_surrogates_are_refused_before_a_stream_begins(rig, body):
    assert_refused(rig, rig.post("/v1/completions", body))


@pytest.mark.parametrize(
    "place", [b'"content":"\\ud800"', b'"content":"a","name":"\\ud800"', b'"content":"a","x":"\\ud800"']
)
def test_lone_surrogates_in_messages_are_refused(rig, place):
    assert_refused(rig, rig.post("/v1/chat/completions", b'{"stream":true,"messages":[{"role":"user",%s}]}' % place))


def test_nul_inside_text_is_kept_whole(rig):
    rig.chat("a\0b")
    assert bytes(rig.submitted.prompts[0]) == b"user:a\0b;>"


def test_deep_nesting_is_refused(rig):
    body = b'{"prompt":"a","user":' + b"[" * 5000 + b"]" * 5000 + b"}"
    assert_refused(rig, rig.post("/v1/completions", body))


# What the engine is asked for


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text"}, {"type": "refusal", "text": "a"}]
)
def test_a_part_that_is_no_text_is_named(rig, part):
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
    error = assert_refused(rig, rig.chat(messages=messages))
    assert "messages[1].content[1]" in error["message"]
    assert error["param"] == "messages"


def test_the_fields_reach_the_engine(rig):
    rig.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.2,
        seed=-3,
        stop_token_ids=[65, 66, 65],
        logit_bias={"65": 1000, "66": -1000},
        allowed_token_ids=[65, 66, 67],
        bad_words=["ab"],
        ignore_eos=True,
        min_tokens=2,
        max_tokens=9,
        logprobs=True,
        top_logprobs=3,
        logprob_token_ids=[70],
        prompt_logprobs=2,
        n=2,
        priority=4,
        cache_salt="s",
        repetition_detection={"max_pattern_size": 3, "min_pattern_size": 2, "min_count": 5},
        headers={"x-request-id": "label-1"},
    )
    submit, sampling = rig.submitted, rig.submitted.sampling
    assert (submit.n, submit.priority, submit.cache_salt, submit.label) == (2, 0, "s", "label-1")
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.0, -1.0, 1.2)
    assert (sampling.seed, sampling.ignore_eos, sampling.min_tokens, sampling.max_tokens) == (-3, True, 2, 9)
    assert sampling.stop_token_ids == (65, 66)
    assert sampling.eos_token_ids == (END,)
    assert sampling.logit_bias == ((65, 100.0), (66, -100.0))
    assert sampling.allowed_token_ids == (65, 66, 67)
    assert sampling.bad_words == ((97, 98),)
    assert (sampling.logprobs, sampling.logprob_token_ids, sampling.prompt_logprobs) == (0, (70,), 2)
    assert sampling.repetition_detection == RepetitionDetection(max_size=3, min_size=2, min_count=5)


def test_a_servers_seed_is_for_requests_that_give_none():
    rig = Rig(settings=ApiSettings(version="0.0", seed=-7))
    rig.complete()
    rig.complete(seed=None)
    rig.complete(seed=0)
    rig.complete(seed=-1)
    assert [submit.sampling.seed for submit in rig.engine.submitted] == [-7, -7, 0, -7]


@pytest.mark.parametrize("temperature", [0, 1e-6, 9.9e-6])
def test_a_tiny_temperature_is_greedy_and_allows_one_choice(rig, temperature):
    rig.complete(temperature=temperature)
    assert rig.submitted.sampling.temperature == 0.0
    rig.engine.submitted.clear()
    assert assert_refused(rig, rig.complete(temperature=temperature, n=2))["param"] == "n"


@pytest.mark.parametrize("server", [None, -1])
def test_requests_without_a_seed_are_given_different_ones(server):
    """-1 is none, as vLLM and llama.cpp have it, in a request and for the server."""
    rig = Rig(settings=ApiSettings(version="0.0", seed=server))
    for given in ({}, {"seed": None}, {"seed": -1}, {"seed": -1.0}):
        rig.complete(**given)
    seeds = {submit.sampling.seed for submit in rig.engine.submitted}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_server_may_take_more_stop_strings():
    rig = Rig(settings=ApiSettings(version="0.0", max_stop_strings=6))
    assert rig.chat(stop=list("abcdef")).status_code == 200
    assert "at most 6 " in rig.chat(stop=list("abcdefg")).json()["error"]["message"]


@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "f"}}]])
def test_tools_that_are_not_to_be_called_are_ignored(rig, tools):
    plain = rig.chat().json()
    reply = rig.chat(tools=tools, tool_choice="none").json()
    assert reply["choices"] == plain["choices"]
    assert reply["usage"] == plain["usage"]


@pytest.mark.parametrize("ask", ["chat", "complete"])
@pytest.mark.parametrize(
    ("options", "end", "each"),
    [
        ({"continuous_usage_stats": True, "include_usage": False}, False, False),
        ({"continuous_usage_stats": True, "include_usage": True}, True, True),
        ({"include_usage": True}, True, False),
        ({"continuous_usage_stats": False}, False, False),
    ],
)
def test_usage_in_a_stream(rig, ask, options, end, each):
    """`include_usage` has the last word."""
    *chunks, last, done = events(getattr(rig, ask)(stream=True, stream_options=options))
    assert done == "[DONE]"
    assert (last["choices"] == []) == ("usage" in last) == end
    assert all(("usage" in chunk) == each for chunk in chunks)


NAMED = [70, 71]


def names_two(submit: Submit) -> list[list[ItemOutput]]:
    """As an engine does that reports no best tokens, but those that are named."""
    assert (submit.sampling.logprobs, submit.sampling.logprob_token_ids) == (0, tuple(NAMED))
    rows = [TokenLogprobs.of(-0.5, 1, NAMED, [-1.0, -0.5])]
    return [[output(0, [token], finish, logprobs=rows)] for token, finish in ((65, None), (71, LENGTH))]


@pytest.mark.parametrize("most", [0, 1, 5])
def test_named_tokens_are_in_place_of_the_best(most):
    """With the token itself, once."""
    rig = Rig(names_two)
    logprobs = rig.chat(logprobs=True, top_logprobs=most, logprob_token_ids=NAMED).json()["choices"][0]["logprobs"]
    tops = [[(top["token"], top["logprob"]) for top in entry["top_logprobs"]] for entry in logprobs["content"]]
    assert tops == [[("A", -0.5), ("F", -1.0), ("G", -0.5)], [("F", -1.0), ("G", -0.5)]]
    legacy = rig.complete(logprobs=most, logprob_token_ids=NAMED).json()["choices"][0]["logprobs"]
    assert legacy["top_logprobs"] == [{"A": -0.5, "F": -1.0, "G": -0.5}, {"G": -0.5, "F": -1.0}]


def test_each_field_that_constrains_nothing_is_logged_once(caplog):
    rig = Rig()
    for _ in range(3):
        assert rig.complete(guided_json={"type": "object"}).status_code == 200
        assert rig.chat(guided_regex="a", guided_json="{}").status_code == 200
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["guided_json" in line for line in lines] == [True, False]
    assert ["guided_regex" in line for line in lines] == [False, True]


def test_the_offending_key_of_logit_bias_is_named(rig):
    error = assert_refused(rig, rig.complete(logit_bias={"1": 1, "99999": 1}))
    assert "99999" in error["message"]


def test_the_request_wins_over_the_generation_config_and_that_over_the_table():
    defaults = GenerationDefaults(temperature=0.3, top_k=9, repetition_penalty=1.1, max_tokens=40)
    rig = Rig(defaults=defaults)
    rig.chat(top_k=5)
    sampling = rig.submitted.sampling
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty) == (0.3, 5, 1.1)
    assert (sampling.top_p, sampling.max_tokens) == (1.0, 40)
    rig = Rig(defaults=GenerationDefaults(temperature=0.0))
    assert_refused(rig, rig.chat(n=2))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 2048 - 9),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 3}, 3),
        ({"max_tokens": 10**12}, 2048 - 9),
        ({"max_completion_tokens": 2048}, 2048 - 9),
    ],
)
def test_the_tokens_of_a_chat_answer(rig, fields, expected):
    rig.chat(**fields)
    assert rig.submitted.sampling.max_tokens == expected


@pytest.mark.parametrize(("fields", "expected"), [({}, 16), ({"max_tokens": None}, 16), ({"max_tokens": 5000}, 2046)])
def test_the_tokens_of_a_completion(rig, fields, expected):
    rig.complete(**fields)
    assert rig.submitted.sampling.max_tokens == expected


def test_tokens_are_clamped_to_the_block_pool():
    rig = Rig(num_blocks=2)
    rig.chat()
    assert rig.submitted.sampling.max_tokens == 32 - 9


@pytest.mark.parametrize(
    ("card", "length"), [({"max_model_len": 8}, 8), ({"max_model_len": 8}, 50), ({"num_blocks": 1}, 16)]
)
@pytest.mark.parametrize("path", ["chat", "complete"])
def test_a_prompt_without_room_for_one_token_is_refused(card, length, path):
    rig = Rig(**card)
    error = assert_refused(rig, getattr(rig, path)("x" * length), code="context_length_exceeded")
    assert "reduce the length of the input prompt" in error["message"]
    assert error["param"] == ("messages" if path == "chat" else "prompt")


def test_a_prompt_that_fills_the_window_is_refused_also_when_nothing_is_generated():
    rig = Rig(max_model_len=8)
    error = assert_refused(rig, rig.complete("x" * 8, echo=True, max_tokens=0), code="context_length_exceeded")
    assert "reduce the length of the input prompt" in error["message"]
    assert rig.complete("x" * 7, echo=True, max_tokens=0).status_code == 200


def test_truncation_keeps_the_asked_side(rig):
    rig.complete("abcdef", truncate_prompt_tokens=2, truncation_side="left")
    rig.complete("abcdef", truncate_prompt_tokens=2, truncation_side="right")
    rig.complete("abcdef", truncate_prompt_tokens=2)
    assert [bytes(submit.prompts[0]) for submit in rig.engine.submitted] == [b"ef", b"ab", b"ab"]


def test_truncation_to_the_window_leaves_room_for_one_token():
    rig = Rig(max_model_len=10)
    assert rig.complete("x" * 100, truncate_prompt_tokens=-1).status_code == 200
    assert len(rig.submitted.prompts[0]) == 9


def test_truncation_from_the_left_keeps_the_begin_token():
    rig = Rig(begins=True)
    rig.complete("abcdef", truncate_prompt_tokens=3, truncation_side="left")
    assert rig.submitted.prompts[0] == [256, ord("e"), ord("f")]


@pytest.mark.parametrize("headers", [{}, {"x-vllm-priority": "-7"}])
def test_who_asks_for_it_does_not_jump_the_queue(rig, headers):
    assert rig.chat(priority=-9, headers=headers).status_code == 200
    assert rig.submitted.priority == 0


def test_priorities_count_where_the_server_says_so():
    rig = Rig(settings=ApiSettings(version="0.0", scheduling_policy="priority"))
    rig.chat(priority=4)
    rig.chat(priority=1, headers={"x-vllm-priority": "-7"})
    assert [submit.priority for submit in rig.engine.submitted] == [4, -7]


@pytest.mark.parametrize("value", ["x", "1.5", "", str(2**63)])
def test_a_priority_header_that_is_no_integer_is_refused(rig, value):
    assert_refused(rig, rig.chat(headers={"x-vllm-priority": value}))


def test_a_rank_beyond_the_engines_is_refused(rig):
    assert rig.chat(headers={"x-data-parallel-rank": "0"}).status_code == 200
    rig.engine.submitted.clear()
    assert_refused(rig, rig.chat(headers={"x-data-parallel-rank": "1"}))


@pytest.mark.parametrize("count", [1, -1])
def test_prompt_logprobs_are_not_streamed(rig, count):
    assert_refused(rig, rig.complete(prompt_logprobs=count, stream=True))


def test_all_logprobs_only_where_the_server_allows_them():
    rig = Rig(settings=ApiSettings(version="0.0", max_logprobs=-1))
    rig.complete(logprobs=-1, prompt_logprobs=10**6)
    assert rig.submitted.sampling.logprobs == -1
    assert rig.submitted.sampling.prompt_logprobs == -1


def test_continuous_usage_needs_usage(rig):
    assert_refused(rig, rig.chat(stream=True, stream_options={"continuous_usage_stats": True}))


def test_an_unknown_model_is_named_with_those_that_there_are(rig):
    error = assert_refused(rig, rig.chat(model="nope"), status=404, code="model_not_found")
    assert error["param"] == "model"
    assert "tiny" in error["message"]
    assert "alias" in error["message"]


def test_a_model_that_cannot_generate_is_refused():
    rig = Rig(tasks=("embed",))
    error = assert_refused(rig, rig.chat(model="tiny"), code="model_not_supported")
    assert "embed" in error["message"]


def test_an_engine_that_is_not_ready_is_a_503():
    rig = Rig()
    rig.engine.card = None
    reply = rig.chat()
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "1"
    assert reply.json()["error"]["code"] == "engine_unavailable"


def test_a_long_conversation_is_handled_in_a_thread_with_the_same_result():
    rig = Rig(max_model_len=100_000, num_blocks=100_000)
    rig.chat("x" * 20_000)
    assert len(rig.submitted.prompts[0]) == 20_000 + len("user:;>")


@pytest.mark.parametrize("ask", ["chat", "complete"])
def test_nothing_of_a_long_body_is_tokenised_on_the_event_loop(ask):
    rig = Rig(max_model_len=100_000, num_blocks=100_000)
    tokenizer = rig.context.texts["tiny"].tokenizer
    getattr(rig, ask)("x", bad_words=[f"{number}" + "w" * 500 for number in range(30)])
    assert len(rig.submitted.sampling.bad_words) == 30
    assert threading.get_ident() not in tokenizer.encoded_by


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"bad_words": ["x" * 1025]}, "1024"),
        ({"stop_token_ids": [0] * 261}, "260"),
        ({"allowed_token_ids": [0] * 261}, "260"),
        ({"logprobs": 1, "logprob_token_ids": [0] * 129}, "128"),
        ({"logit_bias": TOO_MANY_BIASES}, "260"),
    ],
)
def test_lists_and_words_beyond_a_limit_are_told_the_limit(rig, fields, limit):
    assert f"at most {limit}" in assert_refused(rig, rig.complete(**fields))["message"]


def test_an_id_between_those_of_tokens_that_is_none_is_refused_by_name(rig):
    error = assert_refused(rig, rig.complete(logprobs=1, logprob_token_ids=[257, 258]))
    assert "`logprob_token_ids[1]` is not a token" in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": [END], "min_tokens": 2},
        {"allowed_token_ids": [97, 98], "bad_words": ["a", "b"]},
        {"allowed_token_ids": [97, END], "min_tokens": 1, "stop_token_ids": [97]},
    ],
)
def test_masks_that_leave_no_token_are_refused(fields: dict[str, object]) -> None:
    rig = Rig()
    reply = rig.complete(prompt="x", max_tokens=4, **fields)
    assert reply.status_code == 400
    assert "no token to draw" in reply.json()["error"]["message"]
    assert rig.engine.submitted == []


def test_masks_that_leave_a_token_are_served() -> None:
    reply = Rig().complete(prompt="x", max_tokens=4, allowed_token_ids=[97, 98], bad_words=["a"], min_tokens=1)
    assert reply.status_code == 200


def test_a_text_that_can_never_fit_is_refused_before_it_is_tokenised() -> None:
    rig = Rig(max_model_len=100)
    for reply in (rig.complete(prompt="x" * 10_000), rig.chat("x" * 10_000)):
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert "reduce the length of the input prompt" in reply.json()["error"]["message"]
    assert rig.context.texts["tiny"].tokenizer.encoded_by == set()  # type: ignore[attr-defined]


def test_a_long_text_that_is_to_be_cut_is_served() -> None:
    assert Rig(max_model_len=100).complete(prompt="x" * 10_000, truncate_prompt_tokens=50).status_code == 200


def test_more_prompt_logprobs_than_an_answer_may_hold_are_refused() -> None:
    settings = ApiSettings(version="0", max_logprobs=-1)
    rig = Rig(max_model_len=100_000, num_blocks=10_000, settings=settings)
    reply = rig.complete(prompt="x" * 50_000, max_tokens=1, prompt_logprobs=-1)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "prompt_logprobs"


def silent(submit: Submit) -> list[list[ItemOutput]]:
    """Every item ends at once, without a word about its prompt."""
    return [[output(index, "", LENGTH) for index in range(len(submit.prompts) * submit.n)]]


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize(
    ("lengths", "fields"),
    [
        ([200_000], {"prompt_logprobs": 19}),
        ([150_000, 50_000], {"prompt_logprobs": 19}),
        ([1500, 500], {"prompt_logprobs": 19, "n": 100}),
        ([8000], {"logprobs": 4, "echo": True, "n": 100}),
    ],
)
def test_the_prompt_logprobs_of_all_prompts_and_choices_are_at_most_four_million(
    lengths: list[int], fields: dict[str, object], extra: int
) -> None:
    """To the token: an answer has those of each prompt once for each of its choices."""
    rig = Rig(silent, max_model_len=300_000, num_blocks=20_000)
    reply = rig.complete(["x" * (length + extra) for length in lengths], max_tokens=1, **fields)
    assert reply.status_code == (400 if extra else 200)
    if extra:
        assert assert_refused(rig, reply)["param"] == "prompt_logprobs"


@pytest.mark.parametrize("extra", [0, 1])
def test_the_prompt_logprobs_of_a_conversation_count_for_each_choice(extra: int) -> None:
    rig = Rig(silent, max_model_len=300_000, num_blocks=20_000)
    around = len("user:;>")
    reply = rig.chat("x" * (2000 - around + extra), max_tokens=1, prompt_logprobs=19, n=100)
    assert reply.status_code == (400 if extra else 200)
