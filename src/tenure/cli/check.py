"""`tenure ledger --check`: does a running server keep its promises, by its own ledger?

At every moment each resource adds up to its total; and a server without an open request holds nothing: no permit, slot
or sequence, and every block is free or cached. Open requests are not counted by themselves: they are those that arrived
less those that ended, so all that can be said of them is that they are not fewer than none.
"""

import time
from collections.abc import Callable, Iterator

import msgspec

from tenure.cli.http import decode, fetch
from tenure.wire.messages import EngineLedger, ServerLedger

_LOOKS = 5
_PAUSE = 0.3
"""Seconds between two looks: the parts of a ledger are not read at one moment, so a fault is one that stays."""


def check_ledger(url: str, api_key: str, pause: Callable[[float], None] = time.sleep) -> int:
    """Look at the ledger, again if there is a fault, and print the verdict; returns 0 if all is well, else 1."""
    for look in range(_LOOKS):
        if look:
            pause(_PAUSE)
        ledger = decode(url, fetch(url, api_key, "/ledger"), ServerLedger)
        faults = list(ledger_faults(ledger))
        if not faults:
            break
    for fault in faults:
        print(f"FAULT: {fault}")
    print(_verdict(ledger, len(faults)))
    return 1 if faults else 0


def ledger_faults(ledger: ServerLedger) -> Iterator[str]:
    """Everything that is not as it must be, in words."""
    http = ledger.http
    if http.open < 0:
        yield f"{http.arrivals} requests arrived, but {sum(http.outcomes.values())} ended"
    for engine in ledger.engines:
        name = f"engine {engine.index} of {engine.model}"
        if not engine.answering:
            yield f"{name} does not answer"
            continue
        faults = [*_sums(engine), *(_leftovers(engine) if http.open == 0 else ())]
        yield from (f"{name}: {fault}" for fault in faults)


def _sums(engine: EngineLedger) -> Iterator[str]:
    if not engine.conserved:
        yield "its audit failed; see its log"
    blocks, slots = engine.blocks, engine.slots
    if blocks.free + blocks.cached + blocks.leased + blocks.quarantined != blocks.total:
        yield f"its blocks do not add up: {_words(blocks)}"
    if slots.free + slots.leased != slots.total:
        yield f"its slots do not add up: {_words(slots)}"


def _leftovers(engine: EngineLedger) -> Iterator[str]:
    blocks, slots, permits = engine.blocks, engine.slots, engine.permits
    if blocks.free + blocks.cached != blocks.total:
        yield f"no request is open, but blocks are held: {_words(blocks)}"
    if slots.leased:
        yield f"no request is open, but {slots.leased} slots are held"
    for kind in ("requests", "items", "tokens"):
        if held := getattr(permits, kind).held:
            yield f"no request is open, but permits for {held} {kind} are held"
    if any(msgspec.structs.astuple(engine.items)) or engine.figures.queued_requests:
        yield f"no request is open, but there are sequences: {_words(engine.items)}"
    for row in engine.holders:
        yield f"no request is open, but {row.holder} of {row.request} holds {row.blocks} blocks"


def _words(counts: msgspec.Struct) -> str:
    return ", ".join(f"{value} {name}" for name, value in msgspec.structs.asdict(counts).items())


def _verdict(ledger: ServerLedger, faults: int) -> str:
    http = ledger.http
    ended = ", ".join(f"{count} {name}" for name, count in http.outcomes.items()) or "none ended"
    state = "nothing is held" if not http.open else f"{http.open} open, so what is held was not judged"
    told = f"{http.arrivals} requests arrived ({ended}); {len(ledger.engines)} engines"
    return f"NOT OK: {faults} faults; {told}" if faults else f"ok: {state}; {told}"
