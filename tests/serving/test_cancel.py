"""A client that leaves a real server ends its work within a step, is counted once, and costs nothing afterwards."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest

from tests.serving.server import ServerProcess, Work, until
from tests.serving.wire import CHAT, COMPLETIONS, LEAVING, Wire, post, request

MANY = 30_000
"""Tokens of an answer that nobody waits for."""

Leave = Callable[[Wire], None]


@pytest.fixture(params=(COMPLETIONS, CHAT))
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LEAVING)
def leave(request: pytest.FixtureRequest) -> Leave:
    return LEAVING[request.param]


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
    until(lambda: bool(server.log_lines(watch.label)))
    [line] = server.log_lines(watch.label)
    assert "status=499 outcome=client_cancelled" in line
    _check_nothing_moves(server, model)


def _check_nothing_moves(server: ServerProcess, model: str) -> None:
    """Another request's tokens are all that is computed from now on."""
    before = server.work(model)
    answer = server.complete(f"{uuid4().hex}", 5, model, ignore_eos=True)
    prompt_tokens = answer["usage"]["prompt_tokens"]
    spent = server.work(model) - before
    assert (spent.computed, spent.sampled, spent.wasted) == (prompt_tokens + 4 - spent.cached, 5, 0)


def _running(server: ServerProcess, label: str, items: int = 1) -> Callable[[], bool]:
    def check() -> bool:
        held = [row["state"] for row in server.engine()["holders"] if row["label"] == label]
        return held == ["running"] * items

    return check


def test_before_the_first_byte(server: ServerProcess, path: str, leave: Leave) -> None:
    with cancelled(server) as watch, server.connect() as wire:
        wire.send(post(path, request(path, "never answered", MANY), watch.label))
        until(_running(server, watch.label))
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


@pytest.mark.parametrize("stream", [False, True])
def test_with_four_choices(server: ServerProcess, path: str, stream: bool) -> None:
    with cancelled(server) as watch, server.connect() as wire:
        wire.send(post(path, request(path, "four", MANY, n=4, stream=stream), watch.label))
        until(_running(server, watch.label, 4))
        wire.close()


@pytest.mark.parametrize("stream", [False, True])
def test_with_eight_prompts(server: ServerProcess, stream: bool) -> None:
    prompts = [f"prompt {number}" for number in range(8)]
    body = {**request(COMPLETIONS, "", MANY, stream=stream), "prompt": prompts}
    with cancelled(server) as watch, server.connect() as wire:
        wire.send(post(COMPLETIONS, body, watch.label))
        until(_running(server, watch.label, 8))
        wire.close()


@pytest.mark.parametrize("how", ["in the same segment", "later", "larger than 64 KiB"])
def test_with_a_second_request_on_the_connection(server: ServerProcess, path: str, leave: Leave, how: str) -> None:
    """The second one is never served: it does not even count as an arrival."""
    with cancelled(server) as watch, server.connect() as wire:
        first = post(path, request(path, "first", MANY), watch.label)
        second = post(path, request(path, "x" * (300_000 if how.startswith("larger") else 10), 5), watch.label)
        wire.send(first + second if how == "in the same segment" else first)
        until(_running(server, watch.label))
        if how == "later":
            wire.send(second)
        elif how != "in the same segment":
            wire.send_until_refused(second)  # the server hangs up on a client that sends so much ahead
        leave(wire) if how != "larger than 64 KiB" else wire.close()


def test_while_queued(server: ServerProcess, path: str, leave: Leave) -> None:
    """With all slots taken, what waits leaves without having cost a single token (F06)."""
    slots = server.engine()["slots"]["total"]
    before, filler = server.work(), f"filler-{uuid4().hex}"
    label = f"queued-{uuid4().hex}"
    with server.connect() as busy:
        busy.send(post(COMPLETIONS, request(COMPLETIONS, "busy", MANY, n=slots), filler))
        until(_running(server, filler, slots))
        with server.connect() as wire:
            wire.send(post(path, request(path, "waits " * 500, 5, n=4), label))
            until(lambda: server.engine()["items"]["waiting"] == 4)
            leave(wire)
            until(lambda: server.engine()["items"]["waiting"] == 0)
        until(lambda: bool(server.log_lines(label, "outcome=client_cancelled")))
        assert len([row for row in server.engine()["holders"] if row["state"] == "running"]) == slots
        assert server.work().wasted == before.wasted
    server.wait_at_rest()
    spent = server.work() - before
    assert spent.wasted == spent.computed < 3000 + MANY * slots
    assert spent.computed - spent.sampled < 100, "no prompt but the short one was computed"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["close", "reset"])
def test_while_the_prompt_is_computed(server: ServerProcess, path: str, how: str) -> None:
    prompt = "".join(f"{number} sheep. " for number in range(1200))
    with cancelled(server, "smollm2") as watch, server.connect() as wire:
        before = server.work("smollm2")
        wire.send(post(path, request(path, prompt, 5, model="smollm2"), watch.label))
        until(lambda: server.work("smollm2").steps - before.steps >= 2)
        seen = server.work("smollm2")
        LEAVING[how](wire)
    assert watch.spent is not None
    assert watch.spent.sampled == 0
    # at most the step that ran when this test looked, and the one that ran when the news came
    assert watch.spent.steps - (seen - before).steps <= 2


@pytest.mark.timeout(240)
def test_within_one_step_however_long(exact_server: ServerProcess) -> None:
    """Steps of 512 tokens take long here, so what is begun after the client has left would show."""
    server, before = exact_server, exact_server.work("smollm2")
    prompt = "".join(f"{number} goats. " for number in range(1200))
    with cancelled(server, "smollm2") as watch, server.connect() as wire:
        wire.send(post(COMPLETIONS, request(COMPLETIONS, prompt, 5, model="smollm2"), watch.label))
        until(lambda: server.work("smollm2").steps > before.steps)
        wire.close()
    assert watch.spent is not None
    assert watch.spent.steps <= 2
    assert watch.spent.computed <= 1024


@pytest.mark.timeout(240)
def test_a_storm(server: ServerProcess) -> None:
    """120 streams that all close leave live figures, not their last busy ones (F17, F21)."""
    ledger, count = server.ledger(), 120

    def come_and_go(number: int) -> None:
        with server.connect() as wire:
            path = (COMPLETIONS, CHAT)[number % 2]
            wire.send(post(path, request(path, f"storm {number}", MANY, stream=number % 3 > 0, n=1 + number % 4)))
            if number % 3 == 2:
                wire.head()
                wire.event()
            if number % 5 == 0:
                wire.reset()

    visitors = [threading.Thread(target=come_and_go, args=(number,)) for number in range(count)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    until(lambda: server.ledger()["http"]["arrivals"] == ledger["http"]["arrivals"] + count)
    after = server.wait_at_rest()["http"]["outcomes"]
    assert after["client_cancelled"] == ledger["http"]["outcomes"].get("client_cancelled", 0) + count
    _check_nothing_moves(server, "script")
