"""An engine's entry of `GET /ledger`: the gate's snapshot and the loop's, joined."""

from itertools import islice

import msgspec

from tenure.core.admission import GateSnapshot
from tenure.core.lifecycle import State
from tenure.core.scheduler import Scheduler
from tenure.engine.orders import EngineSnapshot
from tenure.outcomes import FinishReason
from tenure.wire.messages import (
    BlockCounts,
    EngineLedger,
    HolderRow,
    ItemCounts,
    ModelCard,
    PermitCount,
    PermitCounts,
    SlotCounts,
    TokenCounts,
)

_MAX_HOLDERS = 64


def holder_rows(scheduler: Scheduler, now: float) -> list[HolderRow]:
    """The items that have not ended, oldest request first, but only so many; `now` as in `Request.arrived_at`."""
    items = (item for request in scheduler.requests() for item in request.unfinished)
    rows = []
    for item in islice(items, _MAX_HOLDERS):
        request, run = item.request, scheduler.run_of(item)
        blocks = 0 if run is None else len(run.lease.blocks)
        age = round(max(0.0, now - request.spec.arrived_at), 3)
        rows.append(HolderRow(str(item.holder), request.spec.public_id, request.spec.label, item.state, blocks, age))
    return rows


def engine_ledger(
    card: ModelCard, index: int, epoch: str, gate: GateSnapshot, engine: EngineSnapshot, unmatched: int
) -> EngineLedger:
    """`unmatched` are the messages that the I/O thread could not match, on top of the scheduler's.

    Items that wait for their prompt to be computed by another choice count as waiting.
    """
    scheduler = engine.scheduler
    blocks, counts, items = scheduler.ledger, scheduler.counts, scheduler.items
    return EngineLedger(
        model=card.name,
        index=index,
        epoch=epoch,
        answering=True,
        conserved=engine.conserved,
        blocks=msgspec.convert(blocks, BlockCounts, from_attributes=True),
        slots=SlotCounts(blocks.slots_total, blocks.slots_free, blocks.slots_leased),
        permits=PermitCounts(
            PermitCount(gate.requests),
            PermitCount(gate.items, gate.items_limit),
            PermitCount(gate.tokens, gate.tokens_limit),
        ),
        items=ItemCounts(
            items.get(State.WAITING, 0) + items.get(State.ADMITTED, 0),
            *(items.get(State(name), 0) for name in ItemCounts.__struct_fields__[1:]),
        ),
        finish_reasons={reason: scheduler.finish_reasons.get(reason, 0) for reason in FinishReason},
        holders=engine.holders,
        tokens=msgspec.convert(counts, TokenCounts, from_attributes=True),
        steps=counts.steps,
        preemptions=counts.preemptions,
        unmatched_messages=counts.unmatched + unmatched,
        figures=msgspec.structs.replace(engine.figures, queried_tokens=counts.queried),
    )
