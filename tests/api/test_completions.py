"""Completions, streamed and whole, against hand-written bodies."""

import pytest

from tenure.sampling import TokenLogprobs
from tests.api.generation_rig import END, LENGTH, STOP, Rig, assert_refused, events, output, undated


def strip(event):
    return undated(event, "text_completion", "cmpl-")


def chunk(index, text, finish=None, logprobs=None, stop_reason=None, **more):
    choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish, "stop_reason": stop_reason}
    return {"choices": [choice], **more}


def stream(rig, prompt="hi", **fields):
    return [strip(event) for event in events(rig.complete(prompt, stream=True, **fields))]


def test_a_stream_has_one_chunk_per_delta_and_no_role():
    assert stream(Rig()) == [
        chunk(0, "H"),
        chunk(0, "i"),
        chunk(0, "", "stop", system_fingerprint="tenure-0.0"),
        "[DONE]",
    ]


def test_the_whole_body_has_every_key():
    rig = Rig()
    body = rig.complete().json()
    assert body.pop("id") == rig.submitted.public_id
    assert rig.submitted.public_id.startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "text": "Hi",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": "tenure-0.0",
        "usage": {"prompt_tokens": 2, "total_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": None},
        "kv_transfer_params": None,
    }


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105], [[104, 105]], [104.0, 105]])
def test_all_shapes_of_a_prompt_reach_the_engine_as_the_same_tokens(prompt):
    rig = Rig()
    assert rig.complete(prompt).status_code == 200
    assert rig.submitted.prompts == [[104, 105]]
    assert all(type(token) is int for token in rig.submitted.prompts[0])


def test_two_prompts_and_two_choices_are_numbered_prompt_times_n():
    def script(submit):
        assert (submit.n, submit.prompts) == (2, [[97], [98, 99]])
        return [[output(3, "d", LENGTH), output(0, "a", LENGTH)], [output(2, "c", LENGTH), output(1, "b", LENGTH)]]

    body = Rig(script).complete(["a", "bc"], n=2, echo=True).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "aa"),
        (1, "ab"),
        (2, "bcc"),
        (3, "bcd"),
    ]
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 4


def test_streamed_echo_comes_once_before_the_first_text_of_each_choice():
    found = stream(Rig(), ["a", "b"], echo=True, stream_options={"include_usage": True})
    assert [event["choices"][0]["text"] for event in found[:4]] == ["a", "H", "b", "H"]
    assert found[-2] == {
        "choices": [],
        "usage": {"prompt_tokens": 2, "total_tokens": 8, "completion_tokens": 6},
        "system_fingerprint": "tenure-0.0",
    }


def test_echo_with_logprobs_lists_the_prompt_first_and_null_for_its_first_token():
    rig = Rig()
    choice = rig.complete("ab", echo=True, logprobs=1).json()["choices"][0]
    assert rig.submitted.sampling.prompt_logprobs == 1
    assert choice["text"] == "abHi"
    assert choice["logprobs"] == {
        "text_offset": [0, 1, 2, 3, 4],
        "token_logprobs": [None, -0.5, -0.5, -0.5, -0.5],
        "tokens": ["a", "b", "H", "i", "<end>"],
        "top_logprobs": [None, {"b": -0.5}, {"H": -0.5}, {"i": -0.5}, {"<end>": -0.5}],
    }


def test_streamed_echo_with_logprobs_joins_to_the_whole_answer():
    whole = Rig().complete("ab", echo=True, logprobs=1).json()["choices"][0]["logprobs"]
    found = stream(Rig(), "ab", echo=True, logprobs=1)
    parts = [event["choices"][0]["logprobs"] for event in found[:-1]]
    for key, values in whole.items():
        assert [value for part in parts for value in part[key]] == values


def test_echo_of_a_prompt_alone_asks_for_no_tokens():
    rig = Rig()
    choice = rig.complete("ab", echo=True, logprobs=0, max_tokens=0).json()["choices"][0]
    assert rig.submitted.sampling.max_tokens == 0
    assert choice["text"] == "ab"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["a", "b"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]


def test_echo_may_be_streamed_alone():
    found = stream(Rig(), "ab", echo=True, max_tokens=0)
    assert found == [chunk(0, "ab"), chunk(0, "", "length", system_fingerprint="tenure-0.0"), "[DONE]"]


def test_the_legacy_logprobs_always_hold_the_token_itself():
    def script(submit):
        rows = [TokenLogprobs.of(-0.5, 2, [68, 67], [-0.25, -2.0])]
        return [[output(0, "B", LENGTH, logprobs=rows)]]

    logprobs = Rig(script).complete(logprobs=1).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["B"]
    assert logprobs["top_logprobs"] == [{"B": -0.5, "D": -0.25, "C": -2.0}]


def test_prompt_logprobs_are_by_token_id():
    choice = Rig().complete("ab", prompt_logprobs=1).json()["choices"][0]
    assert choice["prompt_logprobs"] == [None, {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}]
    assert choice["logprobs"] is None


def test_token_ids_are_told_on_demand():
    choice = Rig().complete("ab", return_token_ids=True).json()["choices"][0]
    assert choice["prompt_token_ids"] == [97, 98]
    assert choice["token_ids"] == [72, 105, END]
    found = stream(Rig(), "ab", return_token_ids=True)
    assert found[0]["choices"][0]["prompt_token_ids"] == [97, 98]
    assert [event["choices"][0]["token_ids"] for event in found[:-1]] == [[72], [105], [END]]


def test_a_stop_string_leaves_the_other_choices_alone():
    def script(submit):
        return [[output(0, "ax"), output(1, "b")], [output(0, "yz"), output(1, "c")], [output(1, [END], STOP)]]

    rig = Rig(script)
    body = rig.complete(["p", "q"], stop="xy").json()
    assert [(choice["text"], choice["stop_reason"]) for choice in body["choices"]] == [("a", "xy"), ("bc", None)]
    assert rig.engine.handles[0].finished == [0]


def test_the_begin_token_is_added_unless_refused():
    rig = Rig(begins=True)
    rig.complete("a")
    assert rig.submitted.prompts == [[256, 97]]
    rig = Rig(begins=True)
    rig.complete("a", add_special_tokens=False)
    assert rig.submitted.prompts == [[97]]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]]])
def test_an_input_without_tokens_is_refused_alike_in_all_forms(prompt):
    rig = Rig()
    error = assert_refused(rig, rig.complete(prompt))
    assert error["message"] == "`prompt[0]` has no tokens."
    assert error["param"] == "prompt"


def test_an_input_without_tokens_is_named_by_its_position():
    rig = Rig()
    assert "`prompt[1]`" in assert_refused(rig, rig.complete(["a", ""]))["message"]


def test_an_empty_text_is_normal_where_the_tokenizer_begins_it():
    rig = Rig(begins=True)
    assert rig.complete("").status_code == 200
    assert rig.submitted.prompts == [[256]]


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        1,
        True,
        {},
        [1, "a"],
        ["a", [1]],
        [[1], 2],
        [[1], "a"],
        [True],
        [1.5],
        [[1.5]],
        [-1],
        [260],
        [258],
        [[260]],
        [None],
    ],
)
def test_other_prompts_are_refused(prompt):
    rig = Rig()
    assert_refused(rig, rig.complete(prompt))


def test_more_prompts_than_the_limit_are_refused():
    rig = Rig()
    assert rig.complete(["a"] * 1024).status_code == 200
    rig = Rig()
    assert_refused(rig, rig.complete(["a"] * 1025))
