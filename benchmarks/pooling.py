"""Rerank and embeddings of MiniLM in float32: pairs and inputs per second, beside peers in the same run.

Rerank: one query and 31 documents of 150 words a request. Embeddings: inputs of 1, 16 and 128 words, one or 16 a
request. Each word is one token, no two texts are alike, and all texts of a request are equally long, so that padding
costs nobody anything. Rounds of all alternate, a round of each comes first and is not counted, and each begins when the
machine is at rest. Figures are medians; "ratio" is Tenure's to the peer's.

`--peer` is any server with `/rerank` and `/v1/embeddings`. `--sentence-transformers` calls that library directly, in a
process of its own, without HTTP, in batches as it would form them (see `benchmarks.sentence_worker`), in two ways. One
caller reranks one request after the other, and embeds the texts of all clients as one list, as no client can send them.
As many threads as there are clients make a call for each request. `--products` adds a yardstick: nothing but the
model's matrix products, one after the other (see `benchmarks.product_worker`). It is no strict limit: a layer whose
results stay in the caches can have faster products.

    python -m benchmarks.pooling --sentence-transformers --products --peer "PYTHON -m vllm... --port 8300"
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import anyio
import msgspec

from benchmarks.connection import Connection, connect
from benchmarks.servers import at_rest, running, tenure
from benchmarks.texts import Texts
from benchmarks.workload import DOCUMENTS, Kind, Round, seed_of
from tenure.source import resolve_source

Peer = Callable[[Round], float]
"""Runs a round; returns pairs or inputs per second."""


async def ask(connection: Connection, given: Round, texts: Texts) -> int:
    """One request; how many pairs or inputs were answered."""
    if given.kind is Kind.EMBED:
        inputs: Any = texts.one(given.words) if given.batch == 1 else texts.many(given.batch, given.words)
        answer = await connection.post("/v1/embeddings", {"input": inputs})
        return len(answer["data"])
    body = {"query": texts.one(8), "documents": texts.many(DOCUMENTS, given.words)}
    return len((await connection.post("/rerank", body))["results"])


async def through_http(url: str, given: Round) -> float:
    done: list[int] = []

    async def run(number: int) -> None:
        texts = Texts(seed_of(given, number))
        async with connect(url) as connection:
            while time.perf_counter() < began + given.seconds:
                done.append(await ask(connection, given, texts))

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for number in range(given.clients):
            group.start_soon(run, number)
    return sum(done) / (time.perf_counter() - began)


@contextmanager
def worker(module: str) -> Iterator[Callable[[Round, int], float]]:
    """A process that runs rounds, given how many threads may call."""
    command = [sys.executable, "-m", module, str(resolve_source("minilm").path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        send, read = process.stdin, process.stdout

        def run(given: Round, callers: int) -> float:
            send.write(msgspec.json.encode((given, callers)) + b"\n")
            send.flush()
            return float(json.loads(read.readline()))

        assert json.loads(read.readline()) == "ready"
        yield run
        send.close()


@contextmanager
def sentence_transformers() -> Iterator[dict[str, Peer]]:
    """The library, called by one caller and by a thread for each client."""
    with worker("benchmarks.sentence_worker") as run:
        yield {
            "sentence-transformers": lambda given: run(given, 1),
            "sentence-transformers, threads": lambda given: run(given, given.clients),
        }


@contextmanager
def products_alone() -> Iterator[dict[str, Peer]]:
    """Not a peer but a yardstick: nothing but the model's matrix products, one after the other."""
    with worker("benchmarks.product_worker") as run:
        yield {"products alone": lambda given: run(given, 1)}


def compare(given: Round, peers: Mapping[str, Peer], rounds: int) -> None:
    if given.clients == 1:  # the one caller
        peers = {name: peer for name, peer in peers.items() if not name.endswith("threads")}
    rates: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(rounds + 1):
        for name, peer in peers.items():
            at_rest()
            rate = peer(msgspec.structs.replace(given, number=number))
            if number:
                rates[name].append(rate)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{given.title}: tenure {medians['tenure']:.1f} {given.unit}", flush=True)
    for name, value in medians.items():
        if name != "tenure":
            print(f"    {name} {value:.1f}; ratio {medians['tenure'] / value:.2f}", flush=True)


def workload(options: argparse.Namespace) -> Iterator[Round]:
    if not options.only or options.only == Kind.RERANK:
        # Long enough for several requests of each client.
        yield Round(kind=Kind.RERANK, clients=4, words=150, seconds=3 * options.seconds)
    if not options.only or options.only == Kind.EMBED:
        for words in options.words:
            for clients in options.clients:
                yield Round(kind=Kind.EMBED, clients=clients, words=words, seconds=options.seconds)
            yield Round(kind=Kind.EMBED, clients=4, words=words, batch=16, seconds=options.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round; three times as many for rerank")
    parser.add_argument("--only", choices=[*Kind])
    parser.add_argument("--words", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--args", default="", help="further arguments of tenure serve")
    parser.add_argument("--sentence-transformers", action="store_true")
    parser.add_argument("--products", action="store_true", help="also the matrix products alone")
    parser.add_argument("--peer", default="")
    parser.add_argument("--peer-port", type=int, default=8300)
    parser.add_argument("--peer-ready", default="/health")
    options = parser.parse_args()
    with ExitStack() as stack:
        url = stack.enter_context(tenure("minilm", *shlex.split(options.args), port=8196))
        peers: dict[str, Peer] = {"tenure": partial(anyio.run, through_http, url)}
        if options.peer:
            server = running(shlex.split(options.peer), options.peer_port, options.peer_ready)
            peers["peer"] = partial(anyio.run, through_http, stack.enter_context(server))
        if options.sentence_transformers:
            peers |= stack.enter_context(sentence_transformers())
        if options.products:
            peers |= stack.enter_context(products_alone())
        for given in workload(options):
            compare(given, peers, options.rounds)


if __name__ == "__main__":
    main()
