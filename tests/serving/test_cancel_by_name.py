"""Requests that are ended from outside, by the id of their response or by their callers' label."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.serving.conftest import Servers
from tests.serving.server import ServerProcess, until
from tests.serving.wire import CHAT, COMPLETIONS, Wire, post, request

MANY = 30_000
ALICE, BOB = "alices-key", "bobs-key"
CANCEL_MANY = "/v1/requests/cancel"


@pytest.fixture(scope="module")
def keyed(servers: Servers, script: str) -> Iterator[ServerProcess]:
    """Two API processes, so that whoever is asked is often not the one that serves the request; and two keys."""
    with ExitStack() as stack:
        arguments = ("--api-server-count", "2", "--max-num-seqs", "16", "--kv-cache-memory", "1")
        keys = ("--api-key", ALICE, "--api-key", BOB)
        headers = {"authorization": f"Bearer {ALICE}"}
        yield servers.start(stack, script, *arguments, *keys, headers=headers)


def cancel(server: ServerProcess, public_id: str) -> httpx.Response:
    return server.http.post(f"/v1/requests/{public_id}/cancel")


def cancel_many(server: ServerProcess, key: str = ALICE, **names: list[str]) -> httpx.Response:
    return server.http.post(CANCEL_MANY, json=names, headers={"authorization": f"Bearer {key}"})


def begin(wire: Wire, path: str = COMPLETIONS, label: str = "", key: str = ALICE, **more: Any) -> str:
    """Start a stream; returns the id of the request, once its first event is there."""
    wire.send(post(path, request(path, "on and on", MANY, stream=True, **more), label, key=key))
    status, fields = wire.head()
    assert status == 200
    event = wire.event()
    assert event is not None
    assert json.loads(event)["id"] == fields["x-tenure-request-id"]
    return fields["x-tenure-request-id"]


def check_aborted(wire: Wire) -> None:
    """The stream ends in one error event, and in nothing that looks like success."""
    *pieces, last = wire.events()
    assert json.loads(last)["error"]["code"] == "aborted"
    assert all(choice.get("finish_reason") is None for piece in pieces for choice in json.loads(piece)["choices"])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stream_is_ended_by_the_id_that_its_events_carry(keyed: ServerProcess, path: str) -> None:
    ended = keyed.outcomes().get("aborted", 0)
    with keyed.connect() as wire:
        public_id = begin(wire, path)
        reply = cancel(keyed, public_id)
        assert reply.status_code == 200
        assert reply.json()["id"] == public_id
        assert reply.json()["outcome"] == "aborted"
        assert 0 < reply.json()["seconds"] < 60
        held = [row for row in keyed.engine()["holders"] if row["request"] == public_id]
        assert held == [], "it was said to be free"
        check_aborted(wire)
    until(lambda: keyed.outcomes().get("aborted", 0) == ended + 1)
    assert cancel(keyed, public_id).json() == reply.json(), "a repeat gives the same answer"


def test_a_request_that_has_not_begun_to_answer_gets_a_409(keyed: ServerProcess) -> None:
    label = uuid4().hex
    with keyed.connect() as wire:
        wire.send(post(COMPLETIONS, request(COMPLETIONS, "whole", MANY), label, key=ALICE))
        until(lambda: any(row["label"] == label for row in keyed.engine()["holders"]))
        [public_id] = {row["request"] for row in keyed.engine()["holders"] if row["label"] == label}
        assert cancel(keyed, public_id).status_code == 200
        status, fields, body = wire.reply()
        assert (status, json.loads(body)["error"]["code"]) == (409, "aborted")
        assert fields["x-tenure-request-id"] == public_id


def test_an_id_that_nobody_has_is_a_404(keyed: ServerProcess) -> None:
    with keyed.connect() as wire:
        public_id = begin(wire)
        for other in (public_id[:-1], public_id.upper(), public_id + "0", "cmpl-" + "0" * 32, "%2e"):
            reply = cancel(keyed, other)
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "request_not_found")
        assert cancel_many(keyed, ids=[public_id[:-1]]).status_code == 404
        assert wire.event() is not None, "it goes on"


def test_a_request_that_is_over_says_how_it_ended(keyed: ServerProcess) -> None:
    public_id = keyed.complete("short", 3)["id"]
    until(lambda: cancel(keyed, public_id).status_code == 200)
    assert cancel(keyed, public_id).json() == {"id": public_id, "outcome": "ok", "seconds": 0.0}


def test_a_label_ends_every_request_that_carries_it_under_the_same_key(keyed: ServerProcess) -> None:
    label = uuid4().hex
    with keyed.connect() as first, keyed.connect() as second, keyed.connect() as other, keyed.connect() as bobs:
        mine = {begin(first, label=label), begin(second, CHAT, label=label, n=3)}
        begin(other, label=label + "x")
        begin(bobs, label=label, key=BOB)
        assert cancel_many(keyed, labels=["nobody's"]).status_code == 404
        reply = cancel_many(keyed, labels=[label])
        assert reply.status_code == 200
        assert {row["id"] for row in reply.json()["requests"]} == mine
        assert {row["outcome"] for row in reply.json()["requests"]} == {"aborted"}
        for wire in (first, second):
            check_aborted(wire)
        for wire in (other, bobs):
            assert wire.event() is not None, "it goes on"
        assert cancel_many(keyed, key=BOB, labels=[label]).status_code == 200
        check_aborted(bobs)


def test_many_are_ended_in_one_call_and_unknown_ones_are_named(keyed: ServerProcess) -> None:
    with keyed.connect() as first, keyed.connect() as second:
        ids = [begin(first), begin(second)]
        reply = cancel_many(keyed, ids=[*ids, "cmpl-unknown"])
        assert reply.status_code == 200
        assert {row["id"] for row in reply.json()["requests"]} == set(ids)
        assert reply.json()["unknown_ids"] == ["cmpl-unknown"]
        check_aborted(first)
        check_aborted(second)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": None, "labels": None},
        {"ids": "x"},
        {"ids": [f"x{i}" for i in range(600)], "labels": [f"y{i}" for i in range(600)]},
        {"ids": ["x", "x" * 257]},
        {"labels": ["x" * 257]},
    ],
)
def test_what_names_nothing_or_far_too_much_is_a_400(keyed: ServerProcess, body: dict[str, Any]) -> None:
    reply = keyed.http.post(CANCEL_MANY, json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "invalid_request"


def test_a_key_is_needed(keyed: ServerProcess) -> None:
    assert cancel_many(keyed, key="wrong", ids=["x"]).status_code == 401


def test_a_cancel_is_no_work(keyed: ServerProcess) -> None:
    arrivals = keyed.ledger()["http"]["arrivals"]
    cancel(keyed, "cmpl-unknown")
    assert keyed.ledger()["http"]["arrivals"] == arrivals


def test_a_request_that_no_engine_has_yet_is_ended_too(keyed: ServerProcess) -> None:
    """Its body is still on the way, to whichever of the API processes."""
    ended, label = keyed.outcomes().get("aborted", 0), uuid4().hex
    with ExitStack() as stack:
        wires = [stack.enter_context(keyed.connect()) for _ in range(4)]
        for wire in wires:
            wire.send(post(COMPLETIONS, {"model": "script"}, label, declared=1000, key=ALICE))
        until(lambda: keyed.load() == 4)
        other = stack.enter_context(keyed.connect())
        other.send(post(COMPLETIONS, {"model": "script"}, label, declared=1000, key=BOB))
        until(lambda: keyed.load() == 5)
        reply = cancel_many(keyed, labels=[label])
        assert reply.status_code == 200
        assert {row["outcome"] for row in reply.json()["requests"]} == {"aborted"}
        ids = set()
        for wire in wires:
            status, fields, body = wire.reply()
            assert (status, json.loads(body)["error"]["code"]) == (409, "aborted")
            ids.add(fields["x-tenure-request-id"])
        assert {row["id"] for row in reply.json()["requests"]} == ids
        assert keyed.load() == 1, "the other key's goes on"
        [known] = list(ids)[:1]
        assert cancel(keyed, known).json() in reply.json()["requests"], "a repeat gives the same answer"
    until(lambda: keyed.outcomes().get("aborted", 0) == ended + 4)
