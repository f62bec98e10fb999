"""The interface between scheduler and model runner: step plans and step results.

Results are matched by (slot, generation): a slot's generation rises each time it is leased, so a result for an
item that has left can never meet its successor.
"""

import msgspec

from tenure.outcomes import Outcome
from tenure.pooling import Pooled, PoolingParams
from tenure.sampling import SamplingParams, TokenLogprobs


class Start(msgspec.Struct, frozen=True, gc=False):
    """A slot gets a new occupant; the runner forgets the former one."""

    slot: int
    generation: int
    tokens: list[int]
    """All tokens known so far: the prompt, and what was sampled before a preemption."""
    prompt_length: int
    choice: int
    sampling: SamplingParams
    pooling: PoolingParams | None = None
    """Parameters of a pooling item, which gets a vector after its prompt instead of tokens."""
    first_segment: int = 0
    """How many of the first tokens are the first text of a pair; 0 when there is no second text."""
    unattended: int = 0
    """How many of the last tokens no token attends to."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """Compute `count` tokens of the item in `slot`, beginning at position `start`.

    The keys and values of position p are written to block `block_table[p // block_size]`, where the block table
    is all `new_blocks` of this occupancy in order.
    """

    slot: int
    generation: int
    start: int
    count: int
    new_blocks: list[int]
    samples: bool
    """Draw a token after the last of these positions. The runner appends it to what it knows of the slot."""


class StepPlan(msgspec.Struct, frozen=True, gc=False):
    number: int
    starts: list[Start]
    rows: list[Row]


class RowResult(msgspec.Struct, frozen=True, gc=False):
    """What became of a row: exactly one result per row of the plan, in the same order."""

    slot: int
    generation: int
    tokens: list[int] = []
    """What a row that samples brings: one, or any number if its request is not `plan_ahead`. If none, nothing could be
    drawn yet, and the row's last position is to be computed again."""
    logprobs: list[TokenLogprobs] | None = None
    """Of each of the tokens, when the item asked for them."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """For the prompt positions of this row, when the item asked for them; None stands for position 0."""
    error: str | None = None
    """This row alone failed (for instance: its logits are not finite)."""
    pooled: Pooled | None = None
    """For the row that ends the prompt of a pooling item."""
    outcome: Outcome = Outcome.ENGINE_ERROR
    """How the request of a row with an error ends: `invalid` when what it asked for left no token to draw."""


class StepResult(msgspec.Struct, frozen=True, gc=False):
    number: int
    rows: list[RowResult]
