"""When the storm is over: does the server hold nothing, count nothing twice, answer as before, and end in order?

Each check is a line of the report, with `ok` or what is wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import anyio
import httpx

from benchmarks.storm.books import FAULTS_KEPT, Books, Sight
from benchmarks.storm.questions import EMBEDDERS, GENERATORS
from benchmarks.storm.server_process import ServerProcess, Usage
from benchmarks.storm.watch import Watch
from tenure.cli.check import ledger_faults
from tenure.outcomes import Outcome
from tenure.wire.messages import ServerLedger

REST_WITHIN = 30.0
"""Seconds in which all is to be over after the storm; `--request-timeout` of the storm is shorter."""
_STILL_FOR = 2.0
_MIB = 1024 * 1024
MORE_DESCRIPTORS = 16
"""Margins for what may be left over: connections that are kept alive, pools that have grown, memory in pieces."""
MORE_THREADS = 16
MORE_MEMORY = 128 * _MIB

STORMY = (Outcome.OK, Outcome.INVALID, Outcome.QUEUE_FULL, Outcome.CLIENT_CANCELLED, Outcome.ABORTED, Outcome.DEADLINE)
"""What every storm must have brought about, or it was none."""


@dataclass(frozen=True)
class Check:
    """One promise. Kept if nothing is wrong."""

    promise: str
    wrong: Sequence[str] = ()

    def __str__(self) -> str:
        return f"  {'FAULT' if self.wrong else 'ok   '}  {self.promise}" + "".join(
            f"\n         {w}" for w in self.wrong
        )


PLAIN, TEXT = "plain", "The capital of France is"
Answers = Mapping[str, str | list[float]]


async def plain_answers(address: str, books: Books, models: Sequence[str], engines: int) -> Answers:
    """What an ordinary request is answered by each engine of each model: a greedy text, or a vector."""
    found: dict[str, str | list[float]] = {}
    async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as http:
        for model, rank in product(models, range(engines)):
            generates = model in GENERATORS
            path = "/v1/completions" if generates else "/v1/embeddings"
            asked = {"prompt": TEXT, "max_tokens": 12, "temperature": 0} if generates else {"input": TEXT}
            if generates or model in EMBEDDERS:
                books.open(PLAIN)
                headers = {"x-data-parallel-rank": str(rank), "x-request-id": PLAIN}
                reply = await http.post(path, json={"model": model, **asked}, headers=headers)
                books.close(PLAIN, Sight("200", frozenset((Outcome.OK,))))
                answer = reply.raise_for_status().json()
                found[f"{model} {rank}"] = answer["choices"][0]["text"] if generates else answer["data"][0]["embedding"]
    return found


def _same(before: Answers, after: Answers) -> list[str]:
    wrong = []
    for name, answer in before.items():
        other = after[name]
        close = answer == other
        if isinstance(answer, list) and isinstance(other, list):
            close = max(abs(a - b) for a, b in zip(answer, other, strict=True)) < 1e-5
        if not close:
            wrong.append(f"{name} said {str(answer)[:100]} and says {str(other)[:100]}")
    return wrong


@dataclass(frozen=True)
class Before:
    """How the server was before the storm, at rest."""

    models: Sequence[str]
    engines: int
    answers: Answers
    usage: Usage
    expected: Sequence[Outcome]


async def wait_at_rest(watch: Watch) -> ServerLedger:
    """The first ledger without anything open or held, or else the last one in time."""
    until = anyio.current_time() + REST_WITHIN
    while True:
        ledger = await watch.timed_ledger()
        if (not ledger.http.open and not list(ledger_faults(ledger))) or anyio.current_time() > until:
            return ledger
        await anyio.sleep(0.1)


def _holds_nothing(ledger: ServerLedger) -> Check:
    wrong = [*([f"{ledger.http.open} requests are open"] if ledger.http.open else []), *ledger_faults(ledger)]
    return Check(f"nothing is open or held, and all blocks are free or cached, within {REST_WITHIN:g} s", wrong)


def _agrees(ledger: ServerLedger, books: Books) -> Check:
    """The counters with the log, and both with the clients."""
    outcomes = ledger.http.outcomes
    wrong = books.unsettled(outcomes.get(Outcome.WORKER_LOST, 0))[:FAULTS_KEPT]
    for outcome in Outcome:
        if outcome is not Outcome.WORKER_LOST and outcomes.get(outcome, 0) != books.logged[outcome]:
            wrong.append(f"{outcome}: {outcomes.get(outcome, 0)} by the counters, {books.logged[outcome]} in the log")
    return Check("each request's outcome in counters and log is what its client saw", wrong)


async def _rests(watch: Watch) -> Check:
    """No counter moves while nobody asks for anything."""
    first = await watch.timed_ledger()
    await anyio.sleep(_STILL_FOR)
    second = await watch.timed_ledger()
    wrong = [
        f"engine {one.index} of {one.model}: {one.tokens}, {one.steps} steps, then {other.tokens}, {other.steps} steps"
        for one, other in zip(first.engines, second.engines, strict=True)
        if (one.tokens, one.steps) != (other.tokens, other.steps)
    ]
    if first.http.arrivals != second.http.arrivals:
        wrong.append("requests arrived that nobody made")
    return Check(f"the counters of tokens and steps stand still for {_STILL_FOR:g} s", wrong)


async def _metrics_agree(watch: Watch, ledger: ServerLedger) -> Check:
    sums = await watch.check_metrics()
    wrong = [
        f"{name} is {sums[name]:g}"
        for name in ("tenure_open_requests", "tenure_items", "tenure_permits_held")
        if sums.get(name)
    ]
    if sums["tenure_requests_arrived_total"] != ledger.http.arrivals:
        wrong.append(f"{sums['tenure_requests_arrived_total']:g} arrived, and {ledger.http.arrivals} by the ledger")
    return Check("the metrics say the same", wrong)


def growth(samples: Sequence[tuple[float, Usage]]) -> int:
    """By how many bytes the highest memory of the last fifth of the time is above that of the fifth around its half."""
    start, end = samples[0][0], samples[-1][0]

    def highest(low: float, high: float) -> int:
        span = end - start
        return max((u.resident for at, u in samples if low <= (at - start) / (span or 1) <= high), default=0)

    return highest(0.8, 1.0) - highest(0.4, 0.6)


async def _no_leak(watch: Watch, server: ServerProcess, before: Usage, margin: int) -> Check:
    """Pools shrink with time, so it is given some."""
    with anyio.move_on_after(REST_WITHIN):
        while True:
            usage = server.usage()
            if (
                usage.descriptors <= before.descriptors + MORE_DESCRIPTORS
                and usage.threads <= before.threads + MORE_THREADS
            ):
                break
            await anyio.sleep(0.5)
    wrong = []
    if usage.descriptors > before.descriptors + MORE_DESCRIPTORS:
        wrong.append(f"{usage.descriptors} descriptors, {before.descriptors} before")
    if usage.threads > before.threads + MORE_THREADS:
        wrong.append(f"{usage.threads} threads, {before.threads} before")
    if usage.processes != before.processes:
        wrong.append(f"{usage.processes} processes, {before.processes} before")
    grown = growth(watch.samples)
    if grown > margin:
        wrong.append("memory grew by too much")
    now = f"{usage.descriptors} descriptors, {usage.threads} threads"
    then = f"{before.descriptors} and {before.threads} before"
    return Check(
        f"memory grew by {grown / _MIB:.0f} MiB from half-time to the end, at most {margin // _MIB}; {now} ({then})",
        wrong,
    )


def _was_stormy(ledger: ServerLedger, expected: Sequence[Outcome]) -> Check:
    missing = [f"no request ended as {outcome}" for outcome in expected if not ledger.http.outcomes.get(outcome)]
    return Check("the storm brought about all that it was to", missing)


async def judge(watch: Watch, server: ServerProcess, books: Books, before: Before, margin: int) -> list[Check]:
    """All checks, on a server that nobody uses any more."""
    ledger = await wait_at_rest(watch)
    watch.tokens.note(ledger)
    watch.ledger = ledger
    watch.read_log()
    checks = [_holds_nothing(ledger), _agrees(ledger, books), await _rests(watch)]
    checks += [await _metrics_agree(watch, ledger), await _no_leak(watch, server, before.usage, margin)]
    checks.append(_was_stormy(ledger, before.expected))
    after = await plain_answers(server.address, books, before.models, before.engines)
    checks.append(Check("an ordinary request is answered as before the storm", _same(before.answers, after)))
    code = await server.stop()
    checks.append(Check("told to stop, it ends in order", [] if code == 0 else [f"its exit code is {code}"]))
    watch.read_log()
    wrong = [*books.faults, *(["..."] if books.fault_count > len(books.faults) else [])]
    return [Check(f"nothing was wrong on the way ({books.fault_count} faults)", wrong), *checks]
