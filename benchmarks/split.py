"""Prefill and decode apart: from the decode side's word to free blocks on the prefill side, and time to first token.

Two servers on this machine. For each way in which a request ends on the decode side, the time from the client's answer
(or from its leaving) until the prefill side holds nothing for it; it is seen through `/ledger`, whose own time is told
too. Then the time to the first token of a prompt: computed by the decode side itself, and taken over.

    python -m benchmarks.split [--rounds 40]
"""

import argparse
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import httpx

from benchmarks.servers import tenure

PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
PATH = "/v1/completions"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Pair:
    """Both sides, and prompts that no cache has."""

    def __init__(self, p: str, d: str) -> None:
        self.p = httpx.Client(base_url=p, timeout=120, trust_env=False)
        self.d = httpx.Client(base_url=d, timeout=120, trust_env=False)
        self._numbers = iter(range(10**6))

    def prompt(self, tokens: int = 160) -> list[int]:
        return [1000 + next(self._numbers) % 40000, *([300] * (tokens - 1))]

    def prefill(self, prompt: Sequence[int]) -> dict[str, Any]:
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "kv_transfer_params": PREFILL}
        reply = self.p.post(PATH, json=body)
        params: dict[str, Any] = reply.raise_for_status().json()["kv_transfer_params"]
        return params

    def seconds_held(self) -> float:
        """From now until the prefill side holds nothing."""
        started = time.perf_counter()
        while self.p.get("/ledger").json()["engines"][0]["blocks"]["leased"]:
            pass
        return time.perf_counter() - started

    def first_token(self, prompt: Sequence[int], params: dict[str, Any] | None) -> float:
        body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True, "kv_transfer_params": params}
        started = time.perf_counter()
        with self.d.stream("POST", PATH, json=body) as reply:
            next(reply.iter_lines())
            return time.perf_counter() - started


def refuse(pair: Pair, prompt: Sequence[int], params: dict[str, Any]) -> None:
    body = {"prompt": prompt, "temperature": -1, "kv_transfer_params": params}
    assert pair.d.post(PATH, json=body).status_code == httpx.codes.BAD_REQUEST


def garble(pair: Pair, prompt: Sequence[int], params: dict[str, Any]) -> None:
    content = b'{"ticket": "' + params["ticket"].encode() + b'", ['
    reply = pair.d.post(PATH, content=content, headers={"content-type": "application/json"})
    assert reply.status_code == httpx.codes.BAD_REQUEST


def leave(pair: Pair, prompt: Sequence[int], params: dict[str, Any]) -> None:
    body = {"prompt": prompt, "max_tokens": 100, "temperature": 0, "stream": True, "kv_transfer_params": params}
    with pair.d.stream("POST", PATH, json=body):
        pass


def finish(pair: Pair, prompt: Sequence[int], params: dict[str, Any]) -> None:
    pair.d.post(PATH, json={"prompt": prompt, "max_tokens": 1, "kv_transfer_params": params}).raise_for_status()


WAYS: dict[str, Callable[[Pair, Sequence[int], dict[str, Any]], None]] = {
    "refused by a rule (400)": refuse,
    "a body that cannot be read (400)": garble,
    "the client leaves": leave,
    "one token is answered": finish,
}


def told(name: str, seconds: Sequence[float]) -> None:
    ordered = sorted(seconds)
    print(f"{name:34} p50 {statistics.median(ordered) * 1e3:6.1f} ms, p99 {ordered[-1] * 1e3:6.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    os.environ["TENURE_KV_SECRET"] = os.urandom(16).hex()
    with ExitStack() as stack, tempfile.TemporaryDirectory():
        sides = [
            stack.enter_context(tenure("smollm2", "--kv-listen", f"127.0.0.1:{free_port()}", port=port))
            for port in (8190, 8191)
        ]
        pair = Pair(*sides)
        told("nothing is held", [pair.seconds_held() for _ in range(rounds)])
        for name, way in WAYS.items():
            found = []
            for _ in range(rounds):
                prompt = pair.prompt()
                params = pair.prefill(prompt)
                way(pair, prompt, params)
                found.append(pair.seconds_held())
            told(name, found)
        for tokens in (1000, 6000):
            alone, split = [], []
            for _ in range(3):
                alone.append(pair.first_token(pair.prompt(tokens), None))
                prompt = pair.prompt(tokens)
                params = pair.prefill(prompt)
                split.append(pair.first_token(prompt, params))
            ratio = statistics.median(alone) / statistics.median(split)
            told(f"first token of {tokens}, computed", alone)
            told(f"first token of {tokens}, taken over", split)
            print(f"  {ratio:.1f} times as fast, once it is computed elsewhere", flush=True)


if __name__ == "__main__":
    main()
