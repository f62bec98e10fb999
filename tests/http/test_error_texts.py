"""What an error tells: enough to find the mistake, never a long echo, a place on the server's disk or its insides."""

from typing import Any

import msgspec
import pytest

from tenure.api.app import route_table
from tenure.http import errors
from tenure.http.errors import echo, from_outcome
from tenure.outcomes import Outcome
from tests.api.generation_rig import Rig

LONG = "Q" * 5000
ECHOED = 200
MESSAGES = [{"role": "user", "content": "hi"}]
BASES: dict[str, dict[str, Any]] = {"/v1/chat/completions": {"messages": MESSAGES}, "/v1/completions": {"prompt": "hi"}}
HUGE = 10**4000

LONG_VALUES: list[tuple[str, Any]] = [
    *[(name, LONG) for name in ("reasoning_effort", "temperature", "model", "truncation_side", "cache_salt")],
    *[(name, LONG) for name in ("n", "stream", "tool_choice", "chat_template", "seed", "logprobs", "suffix")],
    *[(name, HUGE) for name in ("seed", "n", "max_tokens", "temperature", "top_k", "logprobs", "priority", "stream")],
    ("stop", [LONG] * 9),
    ("logit_bias", {LONG: 1}),
    ("logit_bias", {LONG: LONG}),
    ("logit_bias", {LONG * 10: 1}),
    ("stop_token_ids", [HUGE]),
    ("response_format", {"type": LONG}),
    ("stream_options", {LONG: LONG}),
    ("bad_words", [LONG]),
    ("messages", [{"role": LONG, "content": "x"}]),
    ("messages", [{"role": "user", "content": [{"type": LONG}]}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": LONG}]}]),
    ("messages", [{"role": "user", "content": 1}] * 100),
    ("messages", [{"role": "tool", "tool_call_id": LONG, "tool_calls": [{"function": {"name": LONG}}]}]),
    ("messages", [{LONG: LONG}]),
    ("prompt", [[LONG]]),
    ("prompt", [HUGE]),
    ("prompt", {LONG: LONG}),
]


def echoes(text: str) -> int:
    """The longest run of what was sent."""
    return max(map(len, "".join(letter if letter in "Q0" else " " for letter in text).split()), default=0)


def check(reply: Any) -> None:
    if reply.status_code == 200:
        return
    assert 400 <= reply.status_code < 500, reply.text
    error = reply.json()["error"]
    assert len(error["message"]) < 600
    assert len(error["param"] or "") <= ECHOED
    assert echoes(reply.text) <= ECHOED
    assert error["message"].count(";") < 10, "at most ten problems are told"
    for inside in ("/work", "/home", "/usr", "site-packages", "Traceback", ".py", "0x", "msgspec", "<class"):
        assert inside not in reply.text


@pytest.mark.parametrize("path", BASES)
def test_long_values_are_cut(path: str) -> None:
    rig = Rig()
    for name, value in LONG_VALUES:
        body = {key: entry for key, entry in BASES[path].items() if key != name}
        check(rig.post(path, {**body, name: value}))


def test_long_addresses_methods_and_headers_are_cut() -> None:
    rig = Rig()
    json_type = {"content-type": "application/json"}
    check(rig.request("GET", f"/{LONG}"))
    check(rig.request("GET", f"/v1/models/{LONG}"))
    check(rig.request("Q" * 3000, "/health"))
    check(rig.request("POST", "/v1/completions", content=b"{}", headers={"content-type": LONG}))
    for name in ("x-vllm-priority", "x-request-id", "x-data-parallel-rank", "authorization", "x-api-key"):
        check(rig.request("POST", "/v1/completions", content=b"{}", headers={**json_type, name: LONG}))


def test_many_mistakes_at_a_time_are_told_in_a_few_words() -> None:
    rig = Rig()
    wrong = dict.fromkeys(("temperature", "top_p", "n", "seed", "min_p", "max_tokens", "top_k", "logprobs"), -99)
    for path, base in BASES.items():
        check(rig.post(path, {**base, **wrong, "stop": "", "stream": True, "stop_token_ids": [-1] * 100}))


def test_every_route_takes_any_bytes_as_a_body() -> None:
    rig = Rig()
    bodies = (b"", b"[]", b"null", b"123", b'"x"', b"{", b"\x00", b"\xff\xfe{\x00}", b'{"a": }', b"NaN", b"[" * 60)
    for route in route_table().routes:
        for body in bodies if route.body else ():
            reply = rig.post(route.path.replace("{id}", "x"), body)
            check(reply)
            assert reply.status_code in (400, 404)
        if route.body:
            for media_type in (None, "", "text/plain", "application/jsonx"):
                headers = {} if media_type is None else {"content-type": media_type}
                reply = rig.request("POST", route.path.replace("{id}", "x"), content=b"{}", headers=headers)
                assert reply.status_code == 415
                check(reply)
    assert rig.engine.submitted == []


def test_messages_are_valid_json_whatever_they_echo() -> None:
    values = ["\ud800", "x" * 10_000, float("nan"), float("-inf"), b"\xff", ["y" * 500], "\x00"]
    for value in values:
        error = errors.invalid_request(f"temperature: {echo(value)}", "temp\udfff")
        decoded = msgspec.json.decode(error.body())
        assert len(decoded["error"]["message"]) < 250
        assert error.event().endswith(b"\n\n")
        assert error.event().count(b"\n\n") == 1


@pytest.mark.parametrize("outcome", set(Outcome) - {Outcome.OK, Outcome.CLIENT_CANCELLED, Outcome.WORKER_LOST})
def test_an_engines_ending_is_counted_as_what_it_was(outcome: Outcome) -> None:
    assert from_outcome(outcome, "why").outcome is outcome


def test_retry_after_is_whole_seconds() -> None:
    assert errors.queue_full("full", 0.2).headers == {"retry-after": "1"}
    assert errors.engine_unavailable("dead", 2.1).headers == {"retry-after": "3"}
