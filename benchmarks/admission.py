"""How long an engine takes to answer a question for admission, while it computes real load.

The script speaks to the engine as an API process does, with the same client, over the engine's own Unix socket. A
question is a `Submit`; it alternates between one that is admitted, and then cancelled at once, and one that is refused
(it has a token that the model does not know). The time is that from before the `Submit` is encoded until `Admitted` or
`Refused` has been read and its handler woken; so it has the script's own wait for a core in it, as an API process has.
Questions come one at a time, with a pause of random length between them. The load comes through HTTP from a process of
its own, for the whole time: nothing, 16 streams of SmolLM2, or 4 clients that rerank 31 documents of 150 words.

    python -m benchmarks.admission
"""

import argparse
import multiprocessing
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import anyio
import httpx

from benchmarks.connection import connect
from benchmarks.servers import at_rest, engine_socket, tenure
from benchmarks.texts import Texts
from benchmarks.workload import DOCUMENTS
from tenure.client import EngineClient
from tenure.errors import Refusal
from tenure.pooling import PoolingParams, PoolingTask
from tenure.process.system import request_short_time_slices
from tenure.sampling import SamplingParams
from tenure.token_lists import TokenLists
from tenure.wire.messages import Submit

STREAMS = 16
RERANKERS = 4
PROMPT = list(range(1000, 1008))


def stream(url: str) -> None:
    """16 streams without an end."""

    async def one(number: int) -> None:
        body = {"prompt": f"{number}: once upon a time", "max_tokens": 1000, "ignore_eos": True, "stream": True}
        async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as http:
            while True:
                async with http.stream("POST", "/v1/completions", json=body) as reply:
                    reply.raise_for_status()
                    async for _ in reply.aiter_raw():
                        pass

    anyio.run(_together, one, STREAMS)


def rerank(url: str) -> None:
    """4 clients that ask again and again."""

    async def one(number: int) -> None:
        texts = Texts(number)
        async with connect(url) as connection:
            while True:
                body = {"query": texts.one(8), "documents": texts.many(DOCUMENTS, 150)}
                await connection.post("/rerank", body)

    anyio.run(_together, one, RERANKERS)


async def _together(one: Callable[[int], Awaitable[None]], count: int) -> None:
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(one, number)


@contextmanager
def loaded(load: Callable[[str], None] | None, url: str) -> Iterator[None]:
    """The load has begun, and goes on until the end of the scope; fails when it did not last."""
    if load is None:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=load, args=(url,))
    process.start()
    try:
        while httpx.get(f"{url}/load").json()["server_load"] < RERANKERS:
            time.sleep(0.1)
        time.sleep(2.0)  # until all have begun, and the step estimate has settled
        yield
        if not process.is_alive():
            raise RuntimeError("the load ended too early")
    finally:
        process.terminate()
        process.join()


def question(pooled: bool, prompt: Sequence[int]) -> Submit:
    pooling = PoolingParams(task=PoolingTask.EMBED) if pooled else None
    sampling = SamplingParams(max_tokens=0 if pooled else 1)
    return Submit(request=0, public_id="bench", prompts=TokenLists.of([prompt]), sampling=sampling, pooling=pooling)


async def ask(client: EngineClient, submit: Submit) -> tuple[float, bool]:
    """Seconds to the answer, and whether it was yes."""
    began = time.perf_counter()
    try:
        async with client.open(submit):
            return time.perf_counter() - began, True
    except Refusal as refusal:
        seconds = time.perf_counter() - began
        if refusal.code != "invalid_request":
            raise
        return seconds, False


async def measure(path: str, count: int, pause: float, pooled: bool) -> dict[bool, list[float]]:
    """Seconds of `count` questions, by their answer."""
    found: dict[bool, list[float]] = {True: [], False: []}
    request_short_time_slices()  # as an API process does
    client = EngineClient(path, worker=99)
    async with anyio.create_task_group() as group:
        group.start_soon(client.run)
        await client.wait_ready()
        assert client.card is not None
        questions = question(pooled, PROMPT), question(pooled, [*PROMPT, client.card.vocabulary_size])
        for number in range(count):
            seconds, admitted = await ask(client, questions[number % 2])
            found[admitted].append(seconds)
            await anyio.sleep(random.uniform(0, 2 * pause))
        group.cancel_scope.cancel()
    return found


def report(title: str, seconds: Sequence[float]) -> None:
    cuts = statistics.quantiles(seconds, n=100)
    figures = f"p50 {cuts[49] * 1e3:6.2f}, p99 {cuts[98] * 1e3:6.2f}, most {max(seconds) * 1e3:6.2f} ms"
    print(f"{title:38} {figures} ({len(seconds)} questions)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--pause", type=float, default=0.01, help="mean of the pauses, in seconds")
    options = parser.parse_args()
    for port, (model, load, title) in enumerate(
        (("smollm2", stream, f"{STREAMS} streams"), ("minilm", rerank, f"{RERANKERS} clients rerank")), 8198
    ):
        with tenure(model, port=port) as url:
            for work, name in ((None, "at rest"), (load, title)):
                at_rest()
                with loaded(work, url):
                    found = anyio.run(measure, engine_socket(), options.questions, options.pause, model == "minilm")
                for admitted, seconds in found.items():
                    report(f"{model}, {name}, {'admitted' if admitted else 'refused'}:", seconds)


if __name__ == "__main__":
    main()
