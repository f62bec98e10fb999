"""A client that leaves a real server ends its work within a step, is counted once, and costs nothing afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest

from tests.serving.server import ServerProcess, Work, until
from tests.serving.wire import Leave, post, request

MANY = 30_000
"""Tokens of an answer that nobody waits for."""


@dataclass
class Watch:
    """What one cancelled request was seen to cost."""

    label: str
    spent: Work | None = None


@contextmanager
def cancelled(server: ServerProcess, model: str = "script") -> Iterator[Watch]:
    """Within, one request with the given label is made and left. Afterwards everything that it held is back, it was
    counted and logged once, and no token is computed for it any more."""
    watch = Watch(f"cancel-{uuid4().hex}")
    ledger, before = server.ledger(), server.work(model)
    arrivals, counted = ledger["http"]["arrivals"], ledger["http"]["outcomes"].get("client_cancelled", 0)
    yield watch
    until(lambda: server.ledger()["http"]["arrivals"] > arrivals)
    ledger = server.wait_at_rest()
    assert ledger["http"]["arrivals"] == arrivals + 1
    assert ledger["http"]["outcomes"]["client_cancelled"] == counted + 1
    watch.spent = server.work(model) - before
    assert watch.spent.wasted == watch.spent.computed, "all that was computed belongs to the request that was cancelled"
    [line] = server.wait_for_log(watch.label)
    assert "status=499 outcome=client_cancelled" in line
    check_nothing_moves(server, model)


def check_nothing_moves(server: ServerProcess, model: str) -> None:
    """Another request's tokens are all that is computed from now on."""
    before = server.work(model)
    answer = server.complete(f"{uuid4().hex}", 5, model, ignore_eos=True)
    prompt_tokens = answer["usage"]["prompt_tokens"]
    spent = server.work(model) - before
    assert (spent.computed, spent.sampled, spent.wasted) == (prompt_tokens + 4 - spent.cached, 5, 0)


def running(server: ServerProcess, label: str, items: int = 1) -> Callable[[], bool]:
    def check() -> bool:
        held = [row["state"] for row in server.engine()["holders"] if row["label"] == label]
        return held == ["running"] * items

    return check


def test_before_the_first_byte(server: ServerProcess, path: str, leave: Leave) -> None:
    with cancelled(server) as watch, server.connect() as wire:
        wire.send(post(path, request(path, "never answered", MANY), watch.label))
        until(running(server, watch.label))
        leave(wire)
    assert watch.spent is not None
    assert 0 < watch.spent.sampled < MANY


def test_in_the_middle_of_a_stream(server: ServerProcess, path: str, leave: Leave) -> None:
    with cancelled(server) as watch, server.connect() as wire:
        wire.send(post(path, request(path, "left", MANY, stream=True), watch.label))
        wire.head()
        for _ in range(20):
            wire.event()
        leave(wire)
    assert watch.spent is not None
    assert 18 < watch.spent.sampled < MANY


def test_with_half_a_body(server: ServerProcess, path: str, leave: Leave) -> None:
    with cancelled(server) as watch, server.connect() as wire:
        wire.send(post(path, request(path, "half", 5), watch.label, declared=100_000))
        until(lambda: server.load() == 1)
        leave(wire)
    assert watch.spent == Work(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("how", ["in the same segment", "later", "larger than 64 KiB"])
def test_with_a_second_request_on_the_connection(server: ServerProcess, path: str, leave: Leave, how: str) -> None:
    """The second one is never served: it does not even count as an arrival."""
    with cancelled(server) as watch, server.connect() as wire:
        first = post(path, request(path, "first", MANY), watch.label)
        second = post(path, request(path, "x" * (300_000 if how.startswith("larger") else 10), 5), watch.label)
        wire.send(first + second if how == "in the same segment" else first)
        until(running(server, watch.label))
        if how == "later":
            wire.send(second)
        elif how != "in the same segment":
            wire.send_until_refused(second)  # the server hangs up on a client that sends so much ahead
        leave(wire) if how != "larger than 64 KiB" else wire.close()
