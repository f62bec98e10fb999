"""What the runner knows of the occupant of each slot.

State per slot: its generation, its tokens (prompt and output), its block table, its sampling state, what is to be
pooled of it, and whether it has failed. Owner: the runner, within `launch`. A slot changes in three ways only:
`occupy` (a `Start`) forgets the former occupant, `extend` (a `Row`) adds blocks, `append` adds the token just drawn.
Nothing is given back: an occupant that left stays until its slot is leased again, and rows that name another generation
than the slot's are our bug.

Invariants: tokens[: lengths] are known, block_tables[: block_counts] are leased; a row computes known tokens only and
has blocks for all of them; a row that draws ends at the last known token.

Everything is kept in arrays with one line per slot, so that a step is put together without a loop over tokens.
"""

from collections.abc import Sequence

import numpy as np
import torch

from tenure.core.plan import Row, Start
from tenure.errors import InternalError
from tenure.layers.batch import PackedBatch, pack
from tenure.model_runner.sampling_state import SamplingState
from tenure.pooling import PoolingParams


class Slots:
    """Per-slot arrays for `max_slots` items of at most `max_model_len` tokens, in blocks of `block_size`."""

    def __init__(self, max_slots: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.generations = np.full(max_slots, np.iinfo(np.int64).min, dtype=np.int64)
        # one place more than the window: the last token drawn is never computed
        self.tokens = np.zeros((max_slots, max_model_len + 1), dtype=np.int32)
        self.lengths = np.zeros(max_slots, dtype=np.int64)
        self.prompt_lengths = np.zeros(max_slots, dtype=np.int64)
        self.block_tables = np.zeros((max_slots, -(-max_model_len // block_size)), dtype=np.int64)
        self.block_counts = np.zeros(max_slots, dtype=np.int64)
        self.failed = np.zeros(max_slots, dtype=bool)
        self.sampling: list[SamplingState | None] = [None] * max_slots
        self.pooling: list[PoolingParams | None] = [None] * max_slots

    def occupy(self, start: Start) -> None:
        """Forget what was in the slot; the new occupant has a generation of its own."""
        slot, length = start.slot, len(start.tokens)
        if start.generation == self.generations[slot] or not 0 < length < self.tokens.shape[1]:
            raise InternalError(f"slot {slot} cannot be given to {length} tokens of generation {start.generation}")
        self.generations[slot] = start.generation
        self.tokens[slot, :length] = start.tokens
        self.lengths[slot] = length
        self.prompt_lengths[slot] = start.prompt_length
        self.block_counts[slot] = 0
        self.failed[slot] = False
        self.pooling[slot] = start.pooling
        prompt, output = start.tokens[: start.prompt_length], start.tokens[start.prompt_length :]
        self.sampling[slot] = SamplingState(start.sampling, start.choice, prompt, output)

    def extend(self, rows: Sequence[Row]) -> None:
        """Take in the new blocks of these rows, and check that each can be computed as it is asked for."""
        self._check(rows)
        for row in rows:
            if row.new_blocks:
                first = self.block_counts[row.slot]
                last = first + len(row.new_blocks)
                self.block_tables[row.slot, first:last] = row.new_blocks
                self.block_counts[row.slot] = last

    def _check(self, rows: Sequence[Row]) -> None:
        slots_S = np.array([row.slot for row in rows], dtype=np.int64)
        ends_S = np.array([row.start + row.count for row in rows], dtype=np.int64)
        samples_S = np.array([row.samples for row in rows], dtype=bool)
        known_S = self.lengths[slots_S]
        wrong_S = (ends_S > known_S) | (samples_S & (ends_S < known_S))
        wrong_S &= ~self.failed[slots_S]  # what a failed row should have drawn is not known, and not needed
        wrong_S |= np.array([row.generation for row in rows], dtype=np.int64) != self.generations[slots_S]
        blocks_S = self.block_counts[slots_S] + np.array([len(row.new_blocks) for row in rows], dtype=np.int64)
        wrong_S |= (blocks_S > self.block_tables.shape[1]) | (blocks_S * self.block_size < ends_S)
        wrong_S |= np.array([row.start < 0 or row.count < 1 for row in rows], dtype=bool)
        if wrong_S.any():
            raise InternalError(f"{rows[int(wrong_S.argmax())]} does not agree with what its slot holds")

    def state(self, slot: int) -> SamplingState:
        """The sampling state of an occupied slot."""
        state = self.sampling[slot]
        assert state is not None
        return state

    def batch(self, rows: Sequence[Row], device: torch.device) -> PackedBatch:
        """The rows as one packed batch, in their order."""
        slots_S, starts_S, counts_S = np.array([(row.slot, row.start, row.count) for row in rows], dtype=np.int64).T
        first_rows_S = counts_S.cumsum() - counts_S
        positions_T = np.arange(counts_S.sum()) + np.repeat(starts_S - first_rows_S, counts_S)
        token_ids_T = self.tokens[np.repeat(slots_S, counts_S), positions_T].astype(np.int64)
        longest = -(-int((starts_S + counts_S).max()) // self.block_size)
        return pack(token_ids_T, starts_S, counts_S, self.block_tables[slots_S, :longest], self.block_size, device)

    def append(self, drawn: Sequence[tuple[int, int]]) -> None:
        """These tokens were drawn: (slot, token) pairs, each slot once."""
        slots_S, tokens_S = np.array(drawn, dtype=np.int64).T
        lengths_S = self.lengths[slots_S]
        self.tokens[slots_S, lengths_S] = tokens_S
        self.lengths[slots_S] = lengths_S + 1
        for slot, token in drawn:
            self.state(slot).append(token)

    def blocks_of(self, row: Row) -> list[int]:
        """The blocks that this row writes to."""
        first, last = row.start // self.block_size, (row.start + row.count - 1) // self.block_size
        blocks: list[int] = self.block_tables[row.slot, first : last + 1].tolist()
        return blocks
