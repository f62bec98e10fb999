"""What the scheduler is told at its birth, and what it tells: limits, outputs, counts, snapshots."""

from typing import NamedTuple

import msgspec

from tenure.core.ledger import LedgerSnapshot
from tenure.core.lifecycle import State
from tenure.core.request import Request
from tenure.outcomes import FinishReason
from tenure.pooling import Pooled
from tenure.sampling import TokenLogprobs


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What fits into one engine. A model that reads each text in one piece keeps no cache: it has no blocks."""

    max_model_len: int
    num_slots: int
    num_blocks: int = 0
    block_size: int = 0

    @property
    def paged(self) -> bool:
        """Items keep their computed tokens in blocks, and so can be computed piece by piece."""
        return self.block_size > 0

    @property
    def capacity(self) -> int:
        """The most tokens that one item can have."""
        return min(self.max_model_len, self.num_blocks * self.block_size) if self.paged else self.max_model_len

    def blocks_for(self, tokens: int) -> int:
        """How many blocks so many tokens take."""
        return -(-tokens // self.block_size) if self.paged else 0


class Output(msgspec.Struct, frozen=True, gc=False):
    """What a landed row means to the caller of its item."""

    request: Request
    index: int
    token: int | None
    logprobs: TokenLogprobs | None
    finish_reason: FinishReason | None
    stop_token: int | None
    prompt_logprobs: list[TokenLogprobs | None] | None
    cached_tokens: int
    pooled: Pooled | None


class Effects(NamedTuple):
    """What to tell the callers: outputs first, then the requests that are over and hold nothing."""

    outputs: list[Output]
    ended: list[Request]


class Counts(msgspec.Struct):
    """Running totals since the start; tokens unless the name says otherwise."""

    computed: int = 0
    cached: int = 0
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
