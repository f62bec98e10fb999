"""What the scheduler returns: outputs, ended requests, counts, snapshots."""

from typing import NamedTuple

import msgspec

from tenure.core.ledger import BlockLease, LedgerSnapshot
from tenure.core.lifecycle import State
from tenure.core.request import Request
from tenure.outcomes import FinishReason
from tenure.pooling import Pooled
from tenure.sampling import TokenLogprobs


class Output(msgspec.Struct, frozen=True, gc=False):
    """The output of a landed row for its item."""

    request: int
    """Its number."""
    index: int
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None
    finish_reason: FinishReason | None
    stop_token: int | None
    prompt_logprobs: list[TokenLogprobs | None] | None
    cached_tokens: int
    pooled: Pooled | None
    handed_over: BlockLease | None = None
    """With the finish of an item whose request is `handover`: its blocks, held by the ticket with the item's number."""


class Effects(NamedTuple):
    """Outputs of a landed step, and the requests that are over and hold nothing; outputs are sent first."""

    outputs: list[Output]
    ended: list[Request]


class Counts(msgspec.Struct):
    """Running totals since the start; tokens unless the name says otherwise."""

    computed: int = 0
    cached: int = 0
    """Found in the prefix cache."""
    queried: int = 0
    """Looked up in it."""
    recomputed: int = 0
    sampled: int = 0
    wasted: int = 0
    preemptions: int = 0
    steps: int = 0
    unmatched: int = 0


class SchedulerSnapshot(msgspec.Struct, frozen=True, gc=False):
    ledger: LedgerSnapshot
    items: dict[State, int]
    counts: Counts
    finish_reasons: dict[str, int]
    requests: int
