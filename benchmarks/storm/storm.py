"""The storm as a whole: start a server, remember how it answers, let clients and watchers loose, judge what is left."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import anyio

from benchmarks.storm.books import Books
from benchmarks.storm.clients import Client, Ground
from benchmarks.storm.questions import GENERATORS, Catalogue
from benchmarks.storm.server_process import ServerProcess, scratch, started
from benchmarks.storm.verdict import MORE_MEMORY, STORMY, Before, Check, judge, plain_answers, wait_at_rest
from benchmarks.storm.watch import Watch
from tenure.outcomes import Outcome

_STALL_TIMEOUT = 3.0
_BODY_TIMEOUT = 4.0
_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One storm."""

    seconds: float = 1200.0
    seed: int = 0
    clients: int = 32
    models: tuple[str, ...] = ("smollm2", "minilm")
    """Of smollm2, minilm, judge and script."""
    api_servers: int = 2
    engines: int = 2
    kill_every: float = 0.0
    """Seconds from one kill -9 of a process of the server to the next; 0 is never."""
    report_every: float = 30.0
    memory_margin: int = MORE_MEMORY
    """Bytes by which memory may grow from half-time to the end."""


@dataclass(frozen=True)
class Result:
    """What came of it."""

    checks: list[Check]
    books: Books
    watch: Watch
    seconds: float

    @property
    def held(self) -> bool:
        return not any(check.wrong for check in self.checks)


def arguments(plan: Plan, folder: Path) -> list[str]:
    """The command line of the server: limits so small that a storm meets all of them."""
    sources = {"judge": "judge=smollm2"}
    if "script" in plan.models:
        from tests.serving.script import write_script  # noqa: PLC0415 -- imports torch

        sources["script"] = f"script={write_script(folder / 'script')}"
    given = [sources.get(model, model) for model in plan.models]
    given += ["--task", "judge=score"] if "judge" in plan.models else []
    cache = "0.25" if {"smollm2", "judge"} & set(plan.models) else "0.001"  # so that sequences are preempted
    return [
        *given,
        *("--api-server-count", str(plan.api_servers), "--data-parallel-size", str(plan.engines)),
        *("--max-num-seqs", "8", "--max-num-queued-reqs", "12", "--max-num-queued-tokens", "6000"),
        *("--kv-cache-memory", cache, "--max-body-size", "1", "--vllm-metrics"),
        *("--stall-timeout", str(_STALL_TIMEOUT), "--body-timeout", str(_BODY_TIMEOUT)),
        *("--queue-timeout", "8", "--request-timeout", "20", "--sse-keep-alive-interval", "0.5"),
    ]


async def run(plan: Plan, say: Callable[[str], None]) -> Result:
    """The whole soak; `say` is given each line to print. Raises RuntimeError when the server does not start."""
    with scratch() as name:
        folder = Path(name)
        server = started(arguments(plan, folder), folder)
        try:
            await server.wait_ready()
            return await _storm(plan, server, say)
        finally:
            server.close()


async def _storm(plan: Plan, server: ServerProcess, say: Callable[[str], None]) -> Result:
    began = time.monotonic()
    books = Books()
    watch = Watch(server, books, killing=plan.kill_every > 0)
    answers = await plain_answers(server.address, books, plan.models, plan.engines)
    await wait_at_rest(watch)
    stormy = (*STORMY, Outcome.STALLED) if plan.seconds >= 30 else STORMY
    before = Before(plan.models, plan.engines, answers, server.usage(), stormy)
    ground = Ground(server.address, books, _catalogue(plan), _STALL_TIMEOUT, killing=plan.kill_every > 0)
    until = anyio.current_time() + plan.seconds
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run, until)
        group.start_soon(_report, plan, watch, books, until, say)
        if plan.kill_every:
            group.start_soon(_kill, plan, server, books, until, say)
        for number in range(plan.clients):
            group.start_soon(Client(ground, f"c{number}", Random(f"{plan.seed} {number}")).run, until)
    say("the storm is over; judging what is left")
    checks = await judge(watch, server, books, before, plan.memory_margin)
    return Result(checks, books, watch, time.monotonic() - began)


def _catalogue(plan: Plan) -> Catalogue:
    if "script" not in plan.models:
        return Catalogue(plan.models, most_tokens=24)
    from tests.serving.script import recited  # noqa: PLC0415 -- imports torch

    only_script = [model for model in plan.models if model in GENERATORS] == ["script"]
    return Catalogue(plan.models, recited, most_tokens=48 if only_script else 24)


async def _report(plan: Plan, watch: Watch, books: Books, until: float, say: Callable[[str], None]) -> None:
    """A line now and then."""
    began, sampled, computed = anyio.current_time(), watch.tokens.sampled, watch.tokens.computed
    while anyio.current_time() + plan.report_every <= until + 1:
        await anyio.sleep(plan.report_every)
        if watch.ledger is None or not watch.samples:
            continue
        http, (_, usage) = watch.ledger.http, watch.samples[-1]
        new, all_new = watch.tokens.sampled - sampled, watch.tokens.computed - computed
        sampled, computed = watch.tokens.sampled, watch.tokens.computed
        rates = f"{all_new / plan.report_every:.0f} tokens/s computed, {new / plan.report_every:.0f} sampled"
        memory = f"{usage.resident // _MIB} MiB ({usage.engines // _MIB} in engines)"
        say(
            f"{anyio.current_time() - began:5.0f} s: {http.arrivals} arrived, {http.open} open; {rates}; {memory}, "
            f"{usage.descriptors} descriptors, {usage.threads} threads; {books.fault_count} faults"
        )


async def _kill(plan: Plan, server: ServerProcess, books: Books, until: float, say: Callable[[str], None]) -> None:
    """Kill a process now and then, and see that the server is whole again soon."""
    while anyio.current_time() + plan.kill_every < until:
        await anyio.sleep(plan.kill_every)
        say(f"kill -9 of {server.kill_oldest()}")
        began = anyio.current_time()
        if await server.wait_ready_again(60):
            say(f"all are ready again after {anyio.current_time() - began:.1f} s")
        else:
            books.fault("what was killed has not been replaced within 60 s")
