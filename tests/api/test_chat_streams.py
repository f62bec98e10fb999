"""Chat completions, streamed and whole, against hand-written bodies."""

import pytest

from tenure.client import GenerationFailed
from tenure.errors import Refusal
from tenure.outcomes import Outcome
from tests.api.generation_rig import END, LENGTH, STOP, ByteTokenizer, Rig, events, output, row, undated

PROMPT = "user:hi;>"


def strip(event):
    return undated(event, "chat.completion.chunk", "chatcmpl-")


def chunk(index, delta, finish=None, logprobs=None, **more):
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    if finish is not None:
        choice["stop_reason"] = more.pop("stop_reason", None)
    return {"choices": [choice], **more}


def stream(rig, **fields):
    return [strip(event) for event in events(rig.chat(stream=True, **fields))]


def test_a_stream_has_role_text_and_finish_in_this_order():
    assert stream(Rig()) == [
        chunk(0, {"role": "assistant", "content": ""}),
        chunk(0, {"content": "H"}),
        chunk(0, {"content": "i"}),
        chunk(0, {"content": ""}, "stop", system_fingerprint="tenure-0.0"),
        "[DONE]",
    ]


def test_the_whole_body_has_every_key():
    rig = Rig()
    reply = rig.chat()
    body = reply.json()
    identifier = body.pop("id")
    assert identifier.startswith("chatcmpl-")
    assert len(identifier) == len("chatcmpl-") + 32
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi",
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": "tenure-0.0",
        "usage": {
            "prompt_tokens": len(PROMPT),
            "total_tokens": len(PROMPT) + 3,
            "completion_tokens": 3,
            "prompt_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
    }
    assert rig.submitted.public_id == identifier
    assert rig.submitted.prompts == [list(PROMPT.encode())]
    assert rig.counts.outcomes == {"ok": 1}


def test_two_choices_with_usage_have_one_role_and_one_finish_each():
    def script(submit):
        return [[output(0, "a"), output(1, "x")], [output(1, "y", LENGTH)], [output(0, "b"), output(0, [END], STOP)]]

    usage = {"prompt_tokens": len(PROMPT), "total_tokens": len(PROMPT) + 5, "completion_tokens": 5}
    assert stream(Rig(script), n=2, stream_options={"include_usage": True}) == [
        chunk(0, {"role": "assistant", "content": ""}),
        chunk(1, {"role": "assistant", "content": ""}),
        chunk(0, {"content": "a"}),
        chunk(1, {"content": "x"}),
        chunk(1, {"content": "y"}, "length"),
        chunk(0, {"content": "b"}),
        chunk(0, {"content": ""}, "stop"),
        {"choices": [], "usage": usage, "system_fingerprint": "tenure-0.0"},
        "[DONE]",
    ]


def test_continuous_usage_grows_to_the_final_figures():
    found = stream(Rig(), stream_options={"include_usage": True, "continuous_usage_stats": True})
    counted = [event["usage"]["completion_tokens"] for event in found[:-1]]
    assert counted == [0, 1, 2, 3, 3]
    assert all(event["usage"]["prompt_tokens"] == len(PROMPT) for event in found[:-1])
    assert found[-2]["choices"] == []


def test_a_stop_string_across_tokens_is_never_sent_and_ends_the_item():
    def script(submit):
        return [[output(0, "AB")], [output(0, "CD")], [output(0, "EF")], [output(0, "GH", LENGTH)]]

    rig = Rig(script)
    found = stream(rig, stop=["CDE"], stream_options={"include_usage": True})
    assert found == [
        chunk(0, {"role": "assistant", "content": ""}),
        chunk(0, {"content": "AB"}),
        chunk(0, {"content": ""}, "stop", stop_reason="CDE"),
        {
            "choices": [],
            "usage": {"prompt_tokens": 9, "total_tokens": 14, "completion_tokens": 5},
            "system_fingerprint": "tenure-0.0",
        },
        "[DONE]",
    ]
    assert rig.engine.handles[0].finished == [0]


def test_the_engine_is_not_told_of_a_stop_string_in_the_last_output():
    rig = Rig(lambda submit: [[output(0, "abcd", LENGTH)]])
    body = rig.chat(stop="cd").json()
    assert body["choices"][0]["message"]["content"] == "ab"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["stop_reason"] == "cd"
    assert rig.engine.handles[0].finished == []


def test_held_text_that_is_no_stop_string_after_all_is_sent():
    rig = Rig(lambda submit: [[output(0, "xC")], [output(0, "D")], [output(0, "!", LENGTH)]])
    found = stream(rig, stop=["CDE"])
    assert "".join(event["choices"][0]["delta"]["content"] for event in found[:-1]) == "xCD!"


class Longer(ByteTokenizer):
    """With two tokens of several letters."""

    def token_bytes(self, token):
        return {258: b" s", 259: b"tuff "}.get(token) or super().token_bytes(token)


@pytest.mark.parametrize("fields", [{"logprobs": True}, {"return_token_ids": True}])
@pytest.mark.parametrize("interval", [1, 2])
def test_text_that_may_be_a_stop_string_waits_for_its_whole_token(fields, interval):
    """Each chunk's text, ids and logprobs are those of the same tokens."""
    tokens, tokenizer = [97, 258, 259, *"日".encode(), 258, 33], Longer()

    def script(submit):
        last = len(tokens) - 1
        return [[output(0, [t], LENGTH if i == last else None, logprobs=[row(t)])] for i, t in enumerate(tokens)]

    found = stream(Rig(script, tokenizer=tokenizer), stop=["star"], stream_interval=interval, **fields)
    chunks = [event["choices"][0] for event in found[1:-1]]
    if "logprobs" in fields:
        parts = [b"".join(bytes(one["bytes"]) for one in chunk["logprobs"]["content"]) for chunk in chunks]
    else:
        parts = [b"".join(map(tokenizer.token_bytes, chunk["token_ids"])) for chunk in chunks]
    assert [part.decode() for part in parts] == [chunk["delta"]["content"] for chunk in chunks]
    assert b"".join(parts) == b"".join(map(tokenizer.token_bytes, tokens))


def test_the_stop_token_is_told_and_its_text_is_not():
    rig = Rig(lambda submit: [[output(0, "ab")], [output(0, "!", STOP, stop_token=33)]])
    choice = rig.chat(stop_token_ids=[33]).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", 33)


def test_characters_are_whole_and_a_cut_one_is_valid_text_with_its_bytes_in_the_logprobs():
    data = "a😀".encode() + "😀".encode()[:2]

    def script(submit):
        rows = [output(0, [byte], logprobs=[row(byte)]) for byte in data[:-1]]
        return [[one] for one in rows] + [[output(0, [data[-1]], LENGTH, logprobs=[row(data[-1])])]]

    found = stream(Rig(script), logprobs=True)
    texts = [event["choices"][0]["delta"]["content"] for event in found[:-1]]
    assert "".join(texts) == "a😀\ufffd"
    assert "😀" in texts
    listed = [entry for event in found[1:-1] for entry in event["choices"][0]["logprobs"]["content"]]
    assert bytes(byte for entry in listed for byte in entry["bytes"]) == data


def test_logprobs_are_finite_and_aligned_with_the_text_of_their_chunk():
    def script(submit):
        return [
            [output(0, "H", logprobs=[row(72, -0.25, (73, float("-inf")))])],
            [output(0, [END], STOP, logprobs=[row(END)])],
        ]

    rig = Rig(script)
    found = stream(rig, logprobs=True, top_logprobs=2)
    assert rig.submitted.sampling.logprobs == 2
    assert found[1]["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "H",
                "logprob": -0.25,
                "bytes": [72],
                "top_logprobs": [
                    {"token": "H", "logprob": -0.25, "bytes": [72]},
                    {"token": "I", "logprob": -9999.0, "bytes": [73]},
                ],
            }
        ]
    }


def test_token_ids_come_with_the_opening_and_each_chunk():
    found = stream(Rig(), return_token_ids=True, logprobs=True, return_tokens_as_token_ids=True)
    assert found[0]["prompt_token_ids"] == list(PROMPT.encode())
    assert [event["choices"][0]["token_ids"] for event in found[1:-1]] == [[72], [105], [257]]
    assert found[1]["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:72"
    assert "prompt_token_ids" not in found[1]


def test_echo_repeats_the_last_message_of_the_same_role():
    fields = {"echo": True, "add_generation_prompt": False, "continue_final_message": True}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Well"}]
    found = stream(Rig(), messages=messages, **fields)
    assert [event["choices"][0]["delta"].get("content") for event in found[:-1]] == ["", "Well", "H", "i", ""]
    rig = Rig()
    assert rig.chat(messages=messages, **fields).json()["choices"][0]["message"]["content"] == "WellHi"
    assert bytes(rig.submitted.prompts[0]) == b"user:a;assistant:Well"


def test_echo_shows_the_parts_of_a_message_as_the_template_does():
    parts = [{"type": "text", "text": "One"}, "two", {"type": "refusal", "refusal": "three"}]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": parts}]
    rig = Rig()
    reply = rig.chat(messages=messages, echo=True, add_generation_prompt=False, continue_final_message=True)
    assert reply.json()["choices"][0]["message"]["content"] == "One\ntwo\nthreeHi"
    assert bytes(rig.submitted.prompts[0]) == b"user:a;assistant:One\ntwo\nthree"


def test_stream_interval_gathers_tokens():
    script = [[output(0, letter)] for letter in "abcdefg"] + [[output(0, [END], STOP)]]
    found = stream(Rig(lambda submit: [list(step) for step in script]), stream_interval=3)
    assert [event["choices"][0]["delta"]["content"] for event in found[1:-1]] == ["a", "bcd", "efg", ""]


def test_a_failure_before_the_first_token_has_its_own_status():
    rig = Rig(lambda submit: [])
    rig.engine.failure = GenerationFailed(Outcome.DEADLINE, "too late")
    reply = rig.chat(stream=True)
    assert reply.status_code == 504
    assert reply.json()["error"]["code"] == "deadline_exceeded"


def test_a_failure_in_a_stream_is_one_error_event_and_no_done():
    rig = Rig(lambda submit: [[output(0, "a")]])
    rig.engine.failure = GenerationFailed(Outcome.UNAVAILABLE, "the engine was lost")
    found = events(rig.chat(stream=True, stream_options={"include_usage": True}))
    assert found[-1]["error"]["code"] == "engine_unavailable"
    assert all(event["choices"][0]["finish_reason"] is None for event in found[:-1])
    assert rig.counts.outcomes == {"unavailable": 1}


def test_an_answer_that_ends_with_an_open_choice_is_an_error():
    found = events(Rig(lambda submit: [[output(0, "a")]]).chat(stream=True))
    assert found[-1]["error"]["code"] == "internal_error"


@pytest.mark.parametrize(
    ("refusal", "status", "retry"),
    [
        (Refusal(Outcome.QUEUE_FULL, "queue_full", "full", 2.0), 429, "2"),
        (Refusal(Outcome.UNAVAILABLE, "engine_unavailable", "drains"), 503, "1"),
        (Refusal(Outcome.INVALID, "invalid_request", "more items than the limit of 8"), 400, None),
    ],
)
def test_a_refusal_by_the_engine_keeps_its_status_also_when_streaming(refusal, status, retry):
    rig = Rig()
    rig.engine.refusal = refusal
    reply = rig.chat(stream=True)
    assert reply.status_code == status
    assert reply.headers.get("retry-after") == retry
    assert reply.json()["error"]["code"] == refusal.code


@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "top_logprobs": 1}, {"stop": "i"}, {"n": 3}])
def test_streamed_and_whole_answers_agree(fields):
    whole = Rig().chat(**fields).json()
    found = stream(Rig(), stream_options={"include_usage": True}, **fields)
    for choice in whole["choices"]:
        own = [
            event["choices"][0]
            for event in found[:-1]
            if event["choices"] and event["choices"][0]["index"] == choice["index"]
        ]
        assert "".join(one["delta"]["content"] for one in own) == choice["message"]["content"]
        finishes = [one for one in own if one["finish_reason"]]
        assert len(finishes) == 1
        assert finishes[0]["finish_reason"] == choice["finish_reason"]
        assert finishes[0]["stop_reason"] == choice["stop_reason"]
        listed = [entry for one in own if one["logprobs"] for entry in one["logprobs"]["content"]]
        assert listed == (choice["logprobs"] or {"content": []})["content"]
    streamed = found[-2]["usage"]
    assert {key: whole["usage"][key] for key in streamed} == streamed
