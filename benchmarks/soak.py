"""Does the server keep its promises under a storm? Hours of bad luck in a set time, and a verdict.

Clients of every kind use all work routes of a real server, two API processes and two engines by default: they stream,
leave in every way, stop reading, send half bodies, duplicates and nonsense, ask for more than there is room for, set
deadlines, cancel by id and label. All the while its ledger is watched. Afterwards nothing may be held, each
request must be counted once and as its client saw it, and an ordinary request is answered as before.

    python -m benchmarks.soak --seconds 1200 --seed 1
    python -m benchmarks.soak --seconds 300 --models script minilm --kill 60

Ends with code 0 if every promise was kept, else with 1. The scenes are in `benchmarks/storm`.
"""

import argparse
import sys

import anyio

from benchmarks.storm.storm import Plan, Result, run
from tenure.outcomes import Outcome

_MODELS = ("smollm2", "minilm", "judge", "script")


def report(result: Result) -> str:
    """The tables and the verdict."""
    books, watch = result.books, result.watch
    outcomes = watch.ledger.http.outcomes if watch.ledger is not None else {}
    lines = [f"{sum(outcomes.values())} requests arrived", "", "outcome            counted  told to clients"]
    lines += [f"{outcome:18} {outcomes.get(outcome, 0):7}  {books.told[outcome]:15}" for outcome in Outcome]
    lines += ["(clients that left are told nothing: they make the difference)", "", "what clients saw"]
    lines += [f"{count:7}  {what}" for what, count in books.seen.most_common()]
    peaks, tokens = watch.peaks, watch.tokens
    lines += [
        "",
        f"highest: load {peaks.load}, memory {peaks.resident / 1024**2:.0f} MiB, {peaks.descriptors} descriptors, "
        f"{peaks.threads} threads; slowest ledger {peaks.slowest_page:.2f} s",
        f"tokens: {tokens.computed} computed, {tokens.sampled} sampled",
        "",
        *map(str, result.checks),
        "",
        "every promise was kept" if result.held else "NOT every promise was kept",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=["smollm2", "minilm"])
    parser.add_argument("--kill", type=float, default=0.0, help="kill -9 a process of the server every so many seconds")
    parser.add_argument("--report", type=float, default=30.0, help="seconds between two lines")
    options = parser.parse_args()
    plan = Plan(
        seconds=options.seconds,
        seed=options.seed,
        clients=options.clients,
        models=tuple(options.models),
        kill_every=options.kill,
        report_every=options.report,
    )
    models = ", ".join(plan.models)
    print(f"a storm of {plan.seconds:g} s, seed {plan.seed}, {plan.clients} clients, {models}", flush=True)
    result = anyio.run(run, plan, lambda line: print(line, flush=True))
    print(report(result), flush=True)
    return 0 if result.held else 1


if __name__ == "__main__":
    sys.exit(main())
