"""A client that does not read stalls its own request alone, and gets everything when it comes back in time."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from tests.serving.conftest import Servers
from tests.serving.script import recited
from tests.serving.server import ServerProcess, until
from tests.serving.wire import COMPLETIONS, Wire, piece_of, post, request

MANY = 12_000


@pytest.fixture(scope="module")
def patient(servers: Servers, script: str) -> Iterator[ServerProcess]:
    with ExitStack() as stack:
        yield servers.start(stack, script, "--max-num-seqs", "8", "--kv-cache-memory", "1")


@pytest.fixture(scope="module")
def impatient(servers: Servers, script: str) -> Iterator[ServerProcess]:
    with ExitStack() as stack:
        arguments = ("--max-num-seqs", "8", "--kv-cache-memory", "1", "--stall-timeout", "3")
        yield servers.start(stack, script, *arguments)


@contextmanager
def small_buffers(server: ServerProcess) -> Iterator[Wire]:
    """A connection that takes little of what is not read."""
    url = httpx.URL(server.address)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect((url.host, url.port or 80))
        with Wire(sock) as wire:
            yield wire


@contextmanager
def slow_reader(server: ServerProcess, prompt: str, tokens: int = MANY, **more: object) -> Iterator[Wire]:
    """One on which a long stream has begun."""
    with small_buffers(server) as wire:
        body = request(COMPLETIONS, prompt, tokens, stream=True, ignore_eos=True, **more)
        wire.send(post(COMPLETIONS, body))
        status, _ = wire.head()
        assert status == 200
        yield wire


def stalled(server: ServerProcess) -> int:
    return int(server.engine()["items"]["stalled"])


def test_a_reader_that_comes_back_gets_everything_in_order(patient: ServerProcess) -> None:
    with slow_reader(patient, "come back") as wire:
        until(lambda: stalled(patient) == 1)
        at_rest = patient.work()
        holders = patient.engine()["holders"]
        assert [row["state"] for row in holders] == ["stalled"]
        assert holders[0]["blocks"] > 0, "it keeps what it has"
        assert patient.work() == at_rest, "and gets no steps"
        assert patient.text("another", 20, ignore_eos=True) == recited("another", 20), "others are served"
        events = wire.events()
    assert events[-1] == "[DONE]"
    assert "".join(piece_of(event) for event in events[:-1]) == recited("come back", MANY)
    until(lambda: patient.outcomes().get("ok", 0) == 2)


def cancelled(server: ServerProcess, public_id: str) -> tuple[str, float]:
    reply = server.http.post(f"/v1/requests/{public_id}/cancel").json()
    return reply["outcome"], reply["seconds"]


@pytest.mark.parametrize("reads_on", [True, False])
def test_a_cancel_of_what_its_client_does_not_read_stands_whatever_the_client_does(
    patient: ServerProcess, reads_on: bool
) -> None:
    with slow_reader(patient, "unread") as wire:
        until(lambda: stalled(patient) == 1)
        [public_id] = {row["request"] for row in patient.engine()["holders"]}
        first = cancelled(patient, public_id)
        assert first[0] == "aborted"
        if reads_on:
            assert json.loads(wire.events()[-1])["error"]["code"] == "aborted"
    until(lambda: patient.load() == 0)
    assert cancelled(patient, public_id) == first


def test_a_cancel_of_an_answer_that_is_computed_and_not_read(patient: ServerProcess) -> None:
    """The engine is through with it, but its client was not sent it all: so it is aborted, and stays so."""
    ended = patient.outcomes().get("aborted", 0)
    for tokens in range(400, 4000, 100):  # how many fit on the way depends on the system's buffers
        with slow_reader(patient, "computed", tokens) as wire:
            until(lambda: stalled(patient) == 1 or not any(patient.engine()["items"].values()))
            event = wire.event()
            assert event is not None
            public_id = json.loads(event)["id"]
            if stalled(patient) or not patient.load():
                continue
            first = cancelled(patient, public_id)
        until(lambda: patient.load() == 0)
        if first[0] == "aborted":
            assert cancelled(patient, public_id) == first
            assert first[1] < 30, "its client, who may take that long to read, is not waited for"
            until(lambda: patient.outcomes().get("aborted", 0) == ended + 1)
            return
    raise AssertionError("no answer was in that state")


def test_a_cancel_in_the_middle_of_a_whole_answer_resets_its_connection(patient: ServerProcess) -> None:
    """There is no other way left to tell its client; and it is no fault in the log."""
    ended = patient.outcomes().get("aborted", 0)
    with small_buffers(patient) as wire:
        wire.send(post(COMPLETIONS, request(COMPLETIONS, "whole", 2000, ignore_eos=True, logprobs=5)))
        status, headers = wire.head()
        assert status == 200
        public_id = headers["x-tenure-request-id"]
        assert cancelled(patient, public_id)[0] == "aborted"
        _, was_reset = wire.rest()
        assert was_reset
    until(lambda: patient.outcomes().get("aborted", 0) == ended + 1)
    patient.wait_at_rest()
    assert not patient.log_lines("ERROR")


def test_all_choices_of_a_request_stall_together(patient: ServerProcess) -> None:
    with slow_reader(patient, "several", n=3) as wire:
        until(lambda: stalled(patient) == 3)
        texts = ["", "", ""]
        for event in wire.events()[:-1]:
            texts[json.loads(event)["choices"][0]["index"]] += piece_of(event)
    assert texts == [recited("several", MANY)] * 3


def test_a_reader_that_does_not_come_back_is_cut_off(impatient: ServerProcess) -> None:
    counted = impatient.outcomes().get("stalled", 0)
    with slow_reader(impatient, "never again") as wire:
        until(lambda: stalled(impatient) == 1)
        until(lambda: impatient.outcomes().get("stalled", 0) == counted + 1)
        impatient.wait_at_rest()
        _, was_reset = wire.rest()
        assert was_reset
    figures = impatient.figures()
    assert figures.sum("tenure_requests_total", outcome="stalled") == counted + 1


def test_a_reader_that_reads_a_little_now_and_then_is_cut_off_too(impatient: ServerProcess) -> None:
    """No single write waits for long, but all of them together do."""
    counted = impatient.outcomes().get("stalled", 0)
    with slow_reader(impatient, "drop by drop", n=2) as wire:
        _, was_reset = wire.rest(at_a_time=4096, pace=0.05)
        assert was_reset
    until(lambda: impatient.outcomes().get("stalled", 0) == counted + 1)
    impatient.wait_at_rest()


def test_many_that_do_not_read_hold_up_nobody(patient: ServerProcess) -> None:
    with ExitStack() as stack:
        for number in range(6):
            stack.enter_context(slow_reader(patient, f"deaf {number}"))
        until(lambda: stalled(patient) == 6)
        assert patient.text("quick", 10, ignore_eos=True) == recited("quick", 10)
    patient.wait_at_rest()
