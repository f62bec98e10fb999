"""What `/ledger` says of an engine is what its two threads know, each figure in its own place."""

from tenure.core.admission import GateSnapshot
from tenure.core.ledger import LedgerSnapshot
from tenure.core.lifecycle import State
from tenure.core.report import Counts, SchedulerSnapshot
from tenure.engine.ledger_report import engine_ledger
from tenure.engine.orders import EngineSnapshot
from tenure.outcomes import FinishReason
from tenure.wire import messages as wire
from tests.wire.samples import CARD

HOLDERS = [wire.HolderRow("item 7", "cmpl-1", "label", "running", 2, 0.5)]


def snapshot(conserved: bool = True) -> EngineSnapshot:
    blocks = LedgerSnapshot(
        total=16, free=10, cached=3, leased=2, quarantined=1, slots_total=4, slots_free=3, slots_leased=1
    )
    scheduler = SchedulerSnapshot(
        ledger=blocks,
        items={State.ADMITTED: 1, State.WAITING: 2, State.RUNNING: 3, State.PREEMPTED: 4},
        counts=Counts(
            computed=1, cached=2, queried=9, recomputed=3, sampled=4, wasted=5, preemptions=6, steps=7, unmatched=8
        ),
        finish_reasons={FinishReason.LENGTH: 9},
        requests=5,
    )
    return EngineSnapshot(scheduler, conserved, wire.StatsSnapshot(queued_requests=12), HOLDERS)


def test_every_figure_has_its_place() -> None:
    ledger = engine_ledger(CARD, 2, "epoch", GateSnapshot(5, 6, 60, 70, 700), snapshot(), 100)
    assert ledger == wire.EngineLedger(
        model="tiny",
        index=2,
        epoch="epoch",
        answering=True,
        blocks=wire.BlockCounts(total=16, free=10, cached=3, leased=2, quarantined=1),
        slots=wire.SlotCounts(total=4, free=3, leased=1),
        permits=wire.PermitCounts(wire.PermitCount(5), wire.PermitCount(6, 60), wire.PermitCount(70, 700)),
        items=wire.ItemCounts(waiting=3, fetching_kv=0, running=3, preempted=4, stalled=0),
        finish_reasons={"stop": 0, "length": 9, "repetition": 0},
        holders=HOLDERS,
        conserved=True,
        tokens=wire.TokenCounts(computed=1, cached=2, recomputed=3, sampled=4, wasted=5),
        steps=7,
        preemptions=6,
        unmatched_messages=108,
        figures=wire.StatsSnapshot(queued_requests=12, queried_tokens=9),
    )


def test_a_ledger_that_does_not_add_up_is_not_glossed_over() -> None:
    gate = GateSnapshot(0, 0, 60, 0, 700)
    assert not engine_ledger(CARD, 0, "e", gate, snapshot(conserved=False), 0).conserved
