"""What the caller sends as an id is a label: it is shown, and never decides whose request ends (F13, F14, F48, F49)."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.serving.script import recited
from tests.serving.server import ServerProcess, until
from tests.serving.wire import CHAT, COMPLETIONS, piece_of, post, request

ATTEMPTS = 300


def test_two_live_requests_of_one_label(server: ServerProcess) -> None:
    with ExitStack() as stack:
        left, kept = stack.enter_context(server.connect()), stack.enter_context(server.connect())
        for wire in (left, kept):
            wire.send(post(COMPLETIONS, request(COMPLETIONS, "twin", 3000, stream=True), "twin"))
        heads = [wire.head() for wire in (left, kept)]
        assert [fields["x-request-id"] for _, fields in heads] == ["twin", "twin"]
        assert len({fields["x-tenure-request-id"] for _, fields in heads}) == 2
        until(lambda: [row["label"] for row in server.engine()["holders"]] == ["twin", "twin"])
        left.close()
        events = kept.events()
    assert events[-1] == "[DONE]"
    assert "".join(map(piece_of, events[:-1])) == recited("twin", 3000)
    assert len(server.wait_for_log('label="twin"', count=2)) == 2
    assert len(server.log_lines('label="twin"', "outcome=client_cancelled")) == 1
    assert len(server.log_lines('label="twin"', "outcome=ok")) == 1


def test_cancel_and_resend_under_one_label(server: ServerProcess) -> None:
    """An abort that is on its way never hits the request that comes after it."""
    before = server.ledger()["http"]["outcomes"]
    for attempt in range(ATTEMPTS):
        path = (COMPLETIONS, CHAT)[attempt % 2]
        with server.connect() as wire:
            wire.send(post(path, request(path, "again", 30_000, stream=True), "again"))
            if attempt % 3:  # else the abort may be there before the request
                wire.head()
            wire.reset() if attempt % 5 else wire.close()
        with server.connect() as wire:
            wire.send(post(COMPLETIONS, request(COMPLETIONS, "again", 4), "again"))
            status, _, body = wire.reply()
            assert status == 200
            assert recited("again", 4).encode() in body
    after = server.wait_at_rest()["http"]["outcomes"]
    assert after["ok"] == before.get("ok", 0) + ATTEMPTS
    assert after["client_cancelled"] == before.get("client_cancelled", 0) + ATTEMPTS


def test_ids_within_a_second_differ(server: ServerProcess) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda number: server.complete(f"id {number}", 10), range(20)))
    assert len({answer["id"] for answer in answers}) == 20
    texts = [answer["choices"][0]["text"] for answer in answers]
    assert texts == [recited(f"id {number}", 10) for number in range(20)]


@pytest.mark.parametrize("label", ["ž".encode(), b"x" * 300, b"tab\there"])
def test_a_label_that_cannot_be_carried_is_refused(server: ServerProcess, label: bytes) -> None:
    body = post(COMPLETIONS, request(COMPLETIONS, "labelled", 5), "LABEL").replace(b"LABEL", label)
    with server.connect() as wire:
        wire.send(body)
        assert wire.reply()[0] == 400
    assert server.text("labelled", 5) == recited("labelled", 5)


def test_an_empty_label_is_none(server: ServerProcess) -> None:
    reply = server.http.post(COMPLETIONS, json=request(COMPLETIONS, "x", 2), headers={"X-Request-Id": ""})
    assert reply.status_code == 200
    assert "x-request-id" not in reply.headers
