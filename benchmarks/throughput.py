"""Output tokens per second at 1 and 16 streams, beside a peer in the same run.

Every stream asks for a prompt of its own of about 128 tokens and 64 tokens of answer; a round starts all streams at
once and ends with the last. Rounds of the servers alternate, so that both see the same noise; a round of each comes
first and is not counted. A round begins when the machine has come to rest: vLLM's workers keep a core busy for a second
after their last request, which would count against whoever comes next. The peer is any server with `/v1/completions`:

    python -m benchmarks.throughput --peer-port 8300 --peer-ready /health --peer "PYTHON -m vllm... --port 8300"
"""

import argparse
import shlex
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack

import anyio
import httpx

from benchmarks.servers import at_rest, running, tenure

OUTPUT = 64
WORDS = "river stone cloud winter garden letter window candle bridge forest silver market harbor meadow thunder copper"


def prompt(stream: int, round_number: int, words: int) -> str:
    """About 128 tokens that no other stream or round shares the beginning of."""
    vocabulary = WORDS.split()
    picked = [vocabulary[(stream * 7 + round_number * 5 + i * (stream + 3)) % len(vocabulary)] for i in range(words)]
    return f"{round_number * 100 + stream}: " + " ".join(picked)


async def one(client: httpx.AsyncClient, text: str, model: str | None) -> int:
    body = {"prompt": text, "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True}
    if model:
        body["model"] = model
    reply = await client.post("/v1/completions", json=body)
    reply.raise_for_status()
    return int(reply.json()["usage"]["completion_tokens"])


async def measure(url: str, streams: int, number: int, words: int) -> float:
    """Output tokens per second of one round."""
    tokens: list[int] = []
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:

        async def run(stream: int) -> None:
            tokens.append(await one(client, prompt(stream, number, words), None))

        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for stream in range(streams):
                group.start_soon(run, stream)
        return sum(tokens) / (time.perf_counter() - began)


def report(rates: Mapping[str, list[float]], streams: int) -> None:
    medians = {name: statistics.median(values) for name, values in rates.items()}
    line = ", ".join(f"{name} {value:.1f} output tokens/s" for name, value in medians.items())
    ratio = f"; ratio {medians['tenure'] / medians['peer']:.2f}" if "peer" in medians else ""
    print(f"{streams:3} streams: {line}{ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--words", type=int, default=120)
    parser.add_argument("--args", default="", help="further arguments of tenure serve")
    parser.add_argument("--peer", default="")
    parser.add_argument("--peer-port", type=int, default=8300)
    parser.add_argument("--peer-ready", default="/health")
    options = parser.parse_args()
    with ExitStack() as stack:
        urls = {"tenure": stack.enter_context(tenure("smollm2", *shlex.split(options.args)))}
        if options.peer:
            command = shlex.split(options.peer)
            urls["peer"] = stack.enter_context(running(command, options.peer_port, options.peer_ready))
        for streams in options.streams:
            rates: dict[str, list[float]] = {name: [] for name in urls}
            for number in range(options.rounds + 1):
                for name, url in urls.items():
                    at_rest()
                    rate = anyio.run(measure, url, streams, number + streams * 10, options.words)
                    if number:
                        rates[name].append(rate)
            report(rates, streams)


if __name__ == "__main__":
    main()
