"""The runner's state of the occupant of each slot.

State per slot: its generation, its tokens (prompt and output), its block table, its sampling or pooling parameters,
and whether it has failed. Owner: the runner, within `launch`. A slot changes in three ways only: `occupy` (a `Start`)
replaces the former occupant, `extend` (a `Row`) adds blocks, `append` adds the token just drawn. An occupant that left
stays until its slot is leased again; a row that names another generation than the slot's raises `InternalError`.

Invariants: tokens[: lengths] are known, block_tables[: block_counts] are leased; a row computes only tokens that are
known once the steps before it are computed, and has blocks for all of them; a row that draws ends at the last of these.

Everything is kept in arrays with one line per slot, so that a step is put together without a loop over tokens.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from tenure.core.plan import Row, Start
from tenure.errors import InternalError
from tenure.kernels.paged_attention import IntArray
from tenure.kernels.sampling import COPIED, LINE
from tenure.layers.batch import PackedBatch, pack
from tenure.pooling import PoolingParams
from tenure.sampling import SamplingParams


class Slots:
    """Per-slot arrays for `max_slots` items of at most `max_model_len` tokens, in blocks of `block_size`."""

    def __init__(self, max_slots: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.generations = np.full(max_slots, np.iinfo(np.int64).min, dtype=np.int64)
        # one place more than the window: the last token drawn is never computed
        self.tokens = np.zeros((max_slots, max_model_len + 1), dtype=np.int32)
        self.lines = np.zeros(max_slots, dtype=LINE)
        self.lines["tokens"] = self.tokens.ctypes.data + np.arange(max_slots) * self.tokens.strides[0]
        self.lengths: IntArray = self.lines["length"]
        self._planned = np.zeros(max_slots, dtype=np.int64)  # the lengths once all steps in flight are computed
        self.prompt_lengths: IntArray = self.lines["prompt_length"]
        self.seeds = np.zeros((max_slots, 2), dtype=np.uint64)  # of the request, and the number of the choice
        self.block_tables = np.zeros((max_slots, -(-max_model_len // block_size)), dtype=np.int64)
        self.block_counts = np.zeros(max_slots, dtype=np.int64)
        self.failed = np.zeros(max_slots, dtype=bool)
        self.sampling = [SamplingParams(max_tokens=0)] * max_slots
        self.pooling: list[PoolingParams | None] = [None] * max_slots
        self._addressed: list[object] = [None] * max_slots

    def occupy(self, start: Start) -> None:
        """Replace the state of the slot by that of a new occupant, which has another generation."""
        slot, length = start.slot, len(start.tokens)
        if start.generation == self.generations[slot] or not 0 < length < self.tokens.shape[1]:
            raise InternalError(f"slot {slot} cannot be given to {length} tokens of generation {start.generation}")
        self.generations[slot] = start.generation
        self.tokens[slot, :length] = start.tokens
        self.lengths[slot] = self._planned[slot] = length
        self.prompt_lengths[slot] = start.prompt_length
        self.block_counts[slot] = 0
        self.failed[slot] = False
        self.pooling[slot] = start.pooling
        self.sampling[slot] = start.sampling
        self.seeds[slot] = start.sampling.seed % 2**64, start.choice
        self._describe(slot, start.sampling)

    def _describe(self, slot: int, sampling: SamplingParams) -> None:
        """Set the sampling parameters of the slot's occupant."""
        ends = sampling.eos_token_ids + sampling.stop_token_ids
        words = [word for word in sampling.bad_words if word]
        biased, biases = zip(*sampling.logit_bias, strict=True) if sampling.logit_bias else ((), ())
        numbered_words = chain.from_iterable((len(word), *word) for word in words)
        ids = np.array([*sampling.allowed_token_ids, *biased, *ends, *numbered_words], dtype=np.int64)
        addends = np.array(biases, dtype=np.float32)
        line = self.lines[slot]
        for name in COPIED:
            line[name] = getattr(sampling, name)
        line["num_allowed"], line["num_biased"] = len(sampling.allowed_token_ids), len(biased)
        line["num_ends"], line["num_words"] = len(ends), len(words)
        line["ids"], line["biases"] = ids.ctypes.data, addends.ctypes.data
        self._addressed[slot] = ids, addends

    def extend(self, rows: Sequence[Row]) -> None:
        """Add the rows' new blocks to the block tables. Raises `InternalError` for a row that does not fit its slot."""
        self._planned[self._check(rows)] += 1
        for row in rows:
            if row.new_blocks:
                first = self.block_counts[row.slot]
                last = first + len(row.new_blocks)
                self.block_tables[row.slot, first:last] = row.new_blocks
                self.block_counts[row.slot] = last

    def _check(self, rows: Sequence[Row]) -> IntArray:
        """Check the rows; returns the slots of those that draw."""
        slots_S = np.array([row.slot for row in rows], dtype=np.int64)
        ends_S = np.array([row.start + row.count for row in rows], dtype=np.int64)
        samples_S = np.array([row.samples for row in rows], dtype=bool)
        planned_S = self._planned[slots_S]
        wrong_S = (ends_S > planned_S) | (samples_S & (ends_S < planned_S))
        wrong_S |= np.array([row.generation for row in rows], dtype=np.int64) != self.generations[slots_S]
        blocks_S = self.block_counts[slots_S] + np.array([len(row.new_blocks) for row in rows], dtype=np.int64)
        wrong_S |= (blocks_S > self.block_tables.shape[1]) | (blocks_S * self.block_size < ends_S)
        wrong_S |= np.array([row.start < 0 or row.count < 1 for row in rows], dtype=bool)
        if wrong_S.any():
            raise InternalError(f"{rows[int(wrong_S.argmax())]} does not agree with what its slot holds")
        drawing: IntArray = slots_S[samples_S]
        return drawing

    def batch(self, rows: Sequence[Row], device: torch.device) -> PackedBatch:
        """The rows as one packed batch, in their order; its tokens are filled in later."""
        slots_S, starts_S, counts_S = np.array([(row.slot, row.start, row.count) for row in rows], dtype=np.int64).T
        longest = -(-int((starts_S + counts_S).max()) // self.block_size)
        tables_SB = self.block_tables[slots_S, :longest]
        return pack(np.zeros(counts_S.sum(), np.int64), starts_S, counts_S, tables_SB, self.block_size, device)

    def fill(self, batch: PackedBatch, rows: Sequence[Row]) -> None:
        """Fill in the tokens of these rows, all of which are known by now."""
        slots_S, counts_S = np.array([(row.slot, row.count) for row in rows], dtype=np.int64).T
        tokens_T = self.tokens[np.repeat(slots_S, counts_S), batch.positions_T.cpu().numpy()]
        batch.token_ids_T.copy_(torch.from_numpy(tokens_T))

    def append(self, drawn: Sequence[tuple[int, int]]) -> None:
        """Append drawn tokens, given as (slot, token) pairs, each slot once."""
        slots_S, tokens_S = np.array(drawn, dtype=np.int64).T
        lengths_S = self.lengths[slots_S]
        self.tokens[slots_S, lengths_S] = tokens_S
        self.lengths[slots_S] = lengths_S + 1

    def blocks_of(self, row: Row) -> list[int]:
        """The blocks that this row writes to."""
        first, last = row.start // self.block_size, (row.start + row.count - 1) // self.block_size
        blocks: list[int] = self.block_tables[row.slot, first : last + 1].tolist()
        return blocks
