"""What a client that leaves has cost, with many sequences, in the queue, in the middle of a prompt, and in a crowd."""

import threading
from uuid import uuid4

import pytest

from tests.serving.server import ServerProcess, until
from tests.serving.test_cancel import MANY, cancelled, check_nothing_moves, running
from tests.serving.wire import CHAT, COMPLETIONS, LEAVING, Leave, post, request


@pytest.mark.parametrize("stream", [False, True])
def test_with_four_choices(server: ServerProcess, path: str, stream: bool) -> None:
    with cancelled(server) as watch, server.connect() as wire:
        wire.send(post(path, request(path, "four", MANY, n=4, stream=stream), watch.label))
        until(running(server, watch.label, 4))
        wire.close()


@pytest.mark.parametrize("stream", [False, True])
def test_with_eight_prompts(server: ServerProcess, stream: bool) -> None:
    prompts = [f"prompt {number}" for number in range(8)]
    body = {**request(COMPLETIONS, "", MANY, stream=stream), "prompt": prompts}
    with cancelled(server) as watch, server.connect() as wire:
        wire.send(post(COMPLETIONS, body, watch.label))
        until(running(server, watch.label, 8))
        wire.close()


def test_while_queued(server: ServerProcess, path: str, leave: Leave) -> None:
    """With all slots taken, what waits leaves without having cost a single token (F06)."""
    slots = server.engine()["slots"]["total"]
    before, filler = server.work(), f"filler-{uuid4().hex}"
    label = f"queued-{uuid4().hex}"
    with server.connect() as busy:
        busy.send(post(COMPLETIONS, request(COMPLETIONS, "busy", MANY, n=slots), filler))
        until(running(server, filler, slots))
        with server.connect() as wire:
            wire.send(post(path, request(path, "waits " * 500, 5, n=4), label))
            until(lambda: server.engine()["items"]["waiting"] == 4)
            leave(wire)
            until(lambda: server.engine()["items"]["waiting"] == 0)
        server.wait_for_log(label, "outcome=client_cancelled")
        assert len([row for row in server.engine()["holders"] if row["state"] == "running"]) == slots
        assert server.work().wasted == before.wasted
    server.wait_at_rest()
    spent = server.work() - before
    assert spent.wasted == spent.computed < 3000 + MANY * slots
    assert spent.computed - spent.sampled < 100, "no prompt but the short one was computed"


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
    check_nothing_moves(server, "script")
