"""What goes on after clients have left: 20 rerank requests of 31 documents, whose clients leave after 2 seconds.

A document has 250 words, which are 252 tokens, as many as MiniLM reads; so the storm is 160,000 tokens, far more than
2 seconds of work. The run fails when one of the requests is answered in that time. Two storms make a round:

1. Tokens computed after the last client left, and in how many steps, from the server's counters. There are two figures:
   one from a sample taken just before the clients leave, which is never too small, and one from a sample taken just
   after. Tenure's counters move when a step ends, so the step that runs meanwhile is in both. And the time from the
   last close until all of `/ledger` is at rest (for the peer: until nothing runs or waits, and its counter stands
   still).
2. The latency of a rerank of one short document that is sent right after the last close, beside the same on the server
   at rest (a median of 10).

The peer is a vLLM server. Its counter moves when the answer to a text is handed on, so it leaves out what was computed
for requests that were aborted in the same step: of the peer, the times tell more.

    python -m benchmarks.rerank_storm --peer "PYTHON -m vllm... --port 8300"
"""

import argparse
import shlex
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.connection import address, request
from benchmarks.servers import at_rest, running, tenure
from benchmarks.texts import Texts
from benchmarks.workload import DOCUMENTS
from tests.serving.server import Figures, unrest

REQUESTS = 20
LEAVE_AFTER = 2.0
PROBE = {"query": "which one flows", "documents": ["a river in winter"]}


@dataclass(frozen=True)
class Counts:
    """A server's counters at one time."""

    tokens: int
    steps: int
    idle: bool


def of_tenure(http: httpx.Client) -> Counts:
    figures = Figures(http.get("/metrics").text)
    steps = int(figures.sum("tenure_step_tokens_count"))
    idle = not unrest(http.get("/ledger").json())
    return Counts(int(figures.sum("tenure_tokens_total", kind="computed")), steps, idle)


def of_vllm(http: httpx.Client) -> Counts:
    figures = Figures(http.get("/metrics").text)
    open_requests = figures.sum("vllm:num_requests_running") + figures.sum("vllm:num_requests_waiting")
    steps = int(figures.sum("vllm:iteration_tokens_total_count"))
    return Counts(int(figures.sum("vllm:prompt_tokens_total")), steps, open_requests == 0)


class Server:
    """One server under storms."""

    def __init__(self, url: str, count: Callable[[httpx.Client], Counts]) -> None:
        self._address = address(url)
        self._http = httpx.Client(base_url=url, timeout=600, trust_env=False)
        self._count = count

    def work_after(self, texts: Texts) -> dict[str, float]:
        """The first storm of a round."""
        start = self._count(self._http)
        with ExitStack() as clients:
            self._send_storm(texts, clients)
            before = self._count(self._http)
        left = time.perf_counter()
        after = self._count(self._http)
        end, idle_at = self._wait_idle()
        steps = before.steps - start.steps
        return {
            "tokens after (sample before the close)": end.tokens - before.tokens,
            "tokens after (sample after the close)": end.tokens - after.tokens,
            "steps after (sample before the close)": end.steps - before.steps,
            "steps after (sample after the close)": end.steps - after.steps,
            "tokens of a step": (before.tokens - start.tokens) / steps if steps else 0.0,
            "tokens before": before.tokens - start.tokens,
            "milliseconds until idle": (idle_at - left) * 1e3,
        }

    def latency_after(self, texts: Texts) -> dict[str, float]:
        """The second storm of a round."""
        alone = [self._probe() for _ in range(10)]
        with ExitStack() as clients:
            self._send_storm(texts, clients)
        after = self._probe()
        self._wait_idle()
        return {"one document at rest, ms": statistics.median(alone) * 1e3, "one document after, ms": after * 1e3}

    def _probe(self) -> float:
        began = time.perf_counter()
        self._http.post("/rerank", json=PROBE).raise_for_status()
        return time.perf_counter() - began

    def _send_storm(self, texts: Texts, clients: ExitStack) -> None:
        """Leaving `clients` closes all connections, one after the other, without a word."""
        began = time.perf_counter()
        sockets = []
        for _ in range(REQUESTS):
            body: Mapping[str, Any] = {"query": texts.one(8), "documents": texts.many(DOCUMENTS, 250)}
            client = clients.enter_context(closing(socket.create_connection(self._address)))
            client.sendall(request("/rerank", body))
            sockets.append(client)
        time.sleep(max(0.0, began + LEAVE_AFTER - time.perf_counter()))
        for client in sockets:
            client.setblocking(False)
            try:
                raise RuntimeError(f"a request was answered before its client left: {client.recv(200)!r}")
            except BlockingIOError:
                pass

    def _wait_idle(self) -> tuple[Counts, float]:
        """The counters at rest, and since when they have been: idle, and unchanged for a second."""
        known = self._count(self._http)
        began = since = time.perf_counter()
        while not known.idle or time.perf_counter() - since < 1.0:
            # To a hundredth of the time: asking takes a part of the cores that the work needs.
            time.sleep(max(0.005, (time.perf_counter() - began) / 100))
            counts = self._count(self._http)
            if counts != known:
                since, known = time.perf_counter(), counts
        return known, since


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--args", default="", help="further arguments of tenure serve")
    parser.add_argument("--peer", default="")
    parser.add_argument("--peer-port", type=int, default=8300)
    parser.add_argument("--peer-ready", default="/health")
    options = parser.parse_args()
    with ExitStack() as stack:
        url = stack.enter_context(tenure("minilm", *shlex.split(options.args), port=8197))
        servers = {"tenure": Server(url, of_tenure)}
        if options.peer:
            peer = running(shlex.split(options.peer), options.peer_port, options.peer_ready)
            servers["peer"] = Server(stack.enter_context(peer), of_vllm)
        found: dict[str, dict[str, list[float]]] = {name: {} for name in servers}
        for number in range(options.rounds + 1):
            for name, server in servers.items():
                for storm in (server.work_after, server.latency_after):
                    at_rest()
                    for what, value in storm(Texts(number)).items():
                        if number:
                            found[name].setdefault(what, []).append(value)
    for name, figures in found.items():
        print(f"{name}:")
        for what, values in figures.items():
            print(f"    {what:40} median {statistics.median(values):10.1f}, most {max(values):10.1f}")


if __name__ == "__main__":
    main()
