"""Prefill and decode in two servers, driven by a router's requests: the text of one node, and no block left behind.

The autouse fixture looks at both servers after each test: nothing is held on either side, whatever has happened.
"""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest

from tests.serving.conftest import Servers
from tests.serving.server import ServerProcess, until
from tests.serving.wire import post

MODEL = "smollm2"
SECRET = "the secret of this cluster"
STORY = "Once upon a time, in a land far away, there lived a king who had three daughters. "
SMALL = ("--max-num-seqs", "8", "--kv-cache-memory", "0.5", "--step-time", "0")
PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def arguments(key: Path, *more: str) -> tuple[str, ...]:
    listen = f"127.0.0.1:{free_port()}"
    return (MODEL, *SMALL, "--kv-listen", listen, "--kv-secret-file", str(key), *more)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("cluster") / "secret"
    path.write_text(SECRET + "\n")
    return path


class Split(NamedTuple):
    """The prefill side and the decode side."""

    p: ServerProcess
    d: ServerProcess

    def prefill(self, prompt: Any, **more: Any) -> dict[str, Any]:
        """What a router brings from the first leg to the second."""
        answer = self.p.complete(prompt, 1, MODEL, kv_transfer_params=PREFILL, **more)
        params: dict[str, Any] = answer["kv_transfer_params"]
        return params

    def decode(self, prompt: Any, params: Any, max_tokens: int = 12, **more: Any) -> httpx.Response:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        return self.d.http.post("/v1/completions", json={**body, "kv_transfer_params": params})

    def leased(self) -> int:
        """On the prefill side."""
        return int(self.p.engine(MODEL)["blocks"]["leased"])

    def wait_let_go(self) -> None:
        until(lambda: self.leased() == 0, lambda: f"blocks of tickets are held: {self.p.engine(MODEL)['blocks']}")


@pytest.fixture(scope="module")
def split(servers: Servers, key: Path) -> Iterator[Split]:
    with ExitStack() as stack:
        lease = ("--kv-lease", "600", "--engine-heartbeat-timeout", "0")
        p, d = (servers.start(stack, *arguments(key, *lease), ready=False) for _ in range(2))
        for server in (p, d):
            server.wait_ready()
        yield Split(p, d)


def kill_engine(server: ServerProcess) -> None:
    """Returns when there is another that is ready."""
    engine = server.engine_pid
    os.kill(engine, signal.SIGKILL)
    until(lambda: server.engine_pid not in (0, engine), "the engine is not started again")
    until(lambda: server.http.get("/ready").status_code == 200, "it does not come back")


def texts(reply: httpx.Response) -> list[str]:
    assert reply.status_code == 200, reply.text
    return [choice["text"] for choice in reply.json()["choices"]]


def story(number: int, sentences: int = 4) -> str:
    """Each begins in another way, so that no prefix cache has it."""
    return f"Story number {number}. " + STORY * sentences


@pytest.mark.parametrize("n", [1, 4])
def test_the_text_over_the_split_is_that_of_one_node(split: Split, n: int) -> None:
    for number in range(6):
        prompt = story(10 * n + number, 1 + number)
        params = split.prefill(prompt)
        before = split.d.work(MODEL)
        sampling = {"n": n, "temperature": float(n > 1), "seed": 5}
        reply = split.decode(prompt, params, **sampling)
        done = split.d.work(MODEL) - before
        alone = split.p.complete(prompt, 12, MODEL, **sampling)
        assert texts(reply) == [choice["text"] for choice in alone["choices"]]
        tokens = reply.json()["usage"]["prompt_tokens"]
        assert done.cached >= (tokens - 1) // 16 * 16  # but the end of the prompt
        assert done.computed < n * (16 + 12)
        split.wait_let_go()


def test_chats_and_lists_of_prompts_take_part(split: Split) -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": story(50)}], "temperature": 0}
    first = split.p.http.post("/v1/chat/completions", json={**chat, "kv_transfer_params": PREFILL, "min_tokens": 9})
    assert first.status_code == 200, first.text
    assert first.json()["usage"]["completion_tokens"] == 1
    params = first.json()["kv_transfer_params"]
    ours = split.d.http.post("/v1/chat/completions", json={**chat, "max_tokens": 9, "kv_transfer_params": params})
    alone = split.p.http.post("/v1/chat/completions", json={**chat, "max_tokens": 9})
    assert ours.json()["choices"] == alone.json()["choices"]

    prompts = [story(51), story(52), story(53)]
    params = split.prefill(prompts)
    assert len(params["ticket"]) == 3
    assert texts(split.decode(prompts, params)) == [split.p.text(prompt, 12, MODEL) for prompt in prompts]
    assert split.decode(prompts[:2], params).status_code == 400
    split.wait_let_go()


def test_what_routers_look_for_is_there_and_what_they_change_is_of_no_matter(split: Split) -> None:
    params = split.prefill(story(60))
    assert (params["do_remote_prefill"], params["do_remote_decode"], params["tp_size"]) == (True, False, 1)
    assert {type(params[name]) for name in ("remote_engine_id", "remote_request_id", "remote_host")} == {str}
    changed = {**params, "remote_host": "another.example", "remote_block_ids": [[5]], "of_a_router": {"any": 1}}
    assert texts(split.decode(story(60), changed)) == [split.p.text(story(60), 12, MODEL)]
    split.wait_let_go()


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"do_remote_prefill": None, "do_remote_decode": None},
        {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": None, "remote_block_ids": None},
        {"do_remote_prefill": False, "ticket": "anything"},
    ],
)
def test_nulls_are_computed_here(split: Split, params: Any) -> None:
    assert texts(split.decode(story(61), params)) == [split.p.text(story(61), 12, MODEL)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"remote_block_ids": 5},
        {"remote_port": "x"},
        {"ticket": 7},
        {"ticket": ["a", 7]},
        {"ticket": "tnr1.AAAA.BBBB"},
        {"ticket": ["tnr1.AAAA.BBBB", "tnr1.AAAA.BBBB"]},
        {"do_remote_decode": True},
    ],
)
def test_wrong_types_and_forged_tickets_are_refused_and_the_next_request_is_served(split: Split, wrong: Any) -> None:
    reply = split.decode(story(62), {"do_remote_prefill": True, **wrong})
    assert reply.status_code == 400, reply.text
    assert "kv_transfer_params" in reply.text
    assert texts(split.decode(story(62), None)) == [split.p.text(story(62), 12, MODEL)]


@pytest.mark.parametrize(
    ("more", "status"),
    [({"temperature": -1}, 400), ({"max_tokens": "abc"}, 400), ({"model": "another"}, 404), ({"stop": ["a"] * 9}, 400)],
)
def test_a_request_that_does_not_enter_lets_go_at_once(split: Split, more: dict[str, Any], status: int) -> None:
    params = split.prefill(story(90))
    assert split.decode(story(90), params, **more).status_code == status
    split.wait_let_go()


def test_a_body_that_cannot_be_read_lets_go_at_once(split: Split) -> None:
    params = split.prefill(story(91))
    body = b'{"kv_transfer_params": {"ticket": "' + params["ticket"].encode() + b'"}, "prompt": ['
    reply = split.d.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    split.wait_let_go()


def test_a_ticket_of_another_cluster_is_refused(split: Split, servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the secret of another cluster")
    with ExitStack() as stack:
        other = servers.start(stack, *arguments(tmp_path / "secret"))
        params = split.prefill(story(63))
        reply = Split(split.p, other).decode(story(63), params)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")
    assert texts(split.decode(story(63), params)) == [split.p.text(story(63), 12, MODEL)]
    split.wait_let_go()


def test_a_ticket_is_of_use_once_and_for_its_own_prompt(split: Split) -> None:
    params = split.prefill(story(64))
    expected = [split.p.text(story(64), 12, MODEL)]
    assert texts(split.decode(story(64), params)) == expected
    split.wait_let_go()
    assert texts(split.decode(story(64), params)) == expected

    params = split.prefill(story(65))
    assert texts(split.decode(story(66), params)) == [split.p.text(story(66), 12, MODEL)]
    assert texts(split.decode(story(65), params)) == [split.p.text(story(65), 12, MODEL)]
    split.wait_let_go()


def test_a_handover_is_not_streamed(split: Split) -> None:
    body = {"model": MODEL, "prompt": "a", "stream": True, "kv_transfer_params": PREFILL}
    assert split.p.http.post("/v1/completions", json=body).status_code == 400


def test_a_server_without_peers_takes_no_part(server: ServerProcess) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1, "kv_transfer_params": PREFILL}
    reply = server.http.post("/v1/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "kv_transfer_params")


def test_clients_that_leave_the_decode_side(split: Split) -> None:
    for number in range(8):
        prompt = story(70 + number, 8)
        params = split.prefill(prompt)
        with split.d.connect() as wire:
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 200, "stream": True, "kv_transfer_params": params}
            wire.send(post("/v1/completions", body))
        split.wait_let_go()
    assert texts(split.decode(story(80), None)) == [split.p.text(story(80), 12, MODEL)]


def test_more_than_tickets_may_hold_is_refused_until_there_is_room(split: Split) -> None:
    limit = int(split.p.engine(MODEL)["blocks"]["total"] * 0.25) // 2
    taken: list[tuple[str, dict[str, Any]]] = []
    while True:
        prompt = story(100 + len(taken), 20)
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "kv_transfer_params": PREFILL}
        reply = split.p.http.post("/v1/completions", json=body)
        if reply.status_code != 200:
            break
        taken.append((prompt, reply.json()["kv_transfer_params"]))
    assert reply.status_code == 429
    assert 0 < split.leased() <= limit
    for prompt, params in taken:
        assert split.decode(prompt, params, 1).status_code == 200
    split.wait_let_go()
    assert split.decode(story(99), split.prefill(story(99))).status_code == 200
    split.wait_let_go()


def test_the_prefill_side_dies_between_the_legs(split: Split) -> None:
    params = split.prefill(story(81))
    expected = split.p.text(story(81), 12, MODEL)
    kill_engine(split.p)
    assert texts(split.decode(story(81), params)) == [expected]
    params = split.prefill(story(82))
    assert texts(split.decode(story(82), params)) == [split.p.text(story(82), 12, MODEL)]
    split.wait_let_go()


def test_the_prefill_side_is_stopped_while_it_is_asked(split: Split) -> None:
    """It answers nothing for a while; then it finds that it was given up, and has let go."""
    params = split.prefill(story(83))
    expected = split.p.text(story(83), 12, MODEL)
    engine = psutil.Process(split.p.engine_pid)
    engine.suspend()
    try:
        assert texts(split.decode(story(83), params)) == [expected]
    finally:
        engine.resume()
    assert texts(split.decode(story(83), params)) == [expected]  # it was not claimed
    split.wait_let_go()
    params = split.prefill(story(84))
    assert texts(split.decode(story(84), params)) == [split.p.text(story(84), 12, MODEL)]
    split.wait_let_go()


def test_the_decode_side_dies_with_a_claim(split: Split) -> None:
    prompt = story(85, 8)
    params = split.prefill(prompt)
    failed: list[object] = []

    def ask() -> None:
        try:
            failed.append(split.decode(prompt, params, 200).status_code)
        except httpx.HTTPError as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: any(split.d.engine(MODEL)["items"].values()), "nothing is open")
    kill_engine(split.d)
    asking.join(60)
    assert failed != [200]
    split.wait_let_go()
    assert texts(split.decode(prompt, None)) == [split.p.text(prompt, 12, MODEL)]


def test_policy_fail(split: Split, servers: Servers, key: Path) -> None:
    with ExitStack() as stack:
        strict = servers.start(stack, *arguments(key, "--kv-load-failure-policy", "fail"))
        pair = Split(split.p, strict)
        params = pair.prefill(story(86))
        assert texts(pair.decode(story(86), params)) == [split.p.text(story(86), 12, MODEL)]
        reply = pair.decode(story(86) + "Other words.", params)
        assert reply.status_code == 200  # it was not fetched: there is nothing that could have been lost
        params = pair.prefill(story(87))
        assert texts(split.decode(story(87), params)) == [split.p.text(story(87), 12, MODEL)]
        lost = pair.decode(story(87), params)
        assert (lost.status_code, lost.json()["error"]["code"]) == (500, "kv_lost")


def test_a_ticket_that_nobody_brings_lapses(servers: Servers, key: Path) -> None:
    with ExitStack() as stack:
        p = servers.start(stack, *arguments(key, "--kv-lease", "1"))
        pair = Split(p, p)
        params = pair.prefill(story(88))
        assert pair.leased() > 0
        pair.wait_let_go()
        assert texts(pair.decode(story(88), params)) == [p.text(story(88), 12, MODEL)]
