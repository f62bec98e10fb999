"""From hidden states to tokens: the head of a model that generates.

Logits are computed for rows that draw and, a bounded number at a time, for the prompt rows whose logprobs are asked
for. A row's `prompt_logprobs` cover the positions that its logits predict: start + 1 .. start + count within the
prompt, with a leading None for position 0 when start is 0. So the chunks of a prompt, end to end, give each position
once.

Legend: T rows of the batch, D hidden size, R rows whose logits are wanted, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tenure.core.plan import Row, RowResult
from tenure.layers.batch import PackedBatch
from tenure.model_runner.sampler import CALLERS_FAULTS, Sampler
from tenure.model_runner.slots import Slots
from tenure.outcomes import Outcome
from tenure.sampling import TokenLogprobs

PROMPT_LOGITS_ROWS = 64
"""How many prompt rows' logits exist at a time."""

Draw = tuple[int | None, TokenLogprobs | None, str | None]
"""Token, its logprobs, or an error."""
_NOTHING_DRAWN: Draw = (None, None, None)


class LanguageModel(Protocol):
    """The output head of a model that generates."""

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """Raw float32 logits (R, V)."""


@dataclass(frozen=True, slots=True)
class SamplingHead:
    """Draws a token for each row that asks for one, and reports the logprobs of prompts."""

    model: LanguageModel
    sampler: Sampler

    def finish(self, rows: Sequence[Row], batch: PackedBatch, hidden_TD: Tensor, slots: Slots) -> list[RowResult]:
        """See `Head`."""
        first_rows = batch.query_starts_S[:-1].tolist()
        draws = self._draw(rows, batch, hidden_TD, slots)
        results = []
        for row, first in zip(rows, first_rows, strict=True):
            prompt, failure = self._prompt_logprobs(row, hidden_TD[first : first + row.count], slots)
            token, logprobs, error = next(draws) if row.samples else _NOTHING_DRAWN
            error = error or failure
            if error is None:
                tokens = [] if token is None else [token]
                reports = None if logprobs is None else [logprobs]
                results.append(RowResult(row.slot, row.generation, tokens, reports, prompt))
            else:
                outcome = Outcome.INVALID if error in CALLERS_FAULTS else Outcome.ENGINE_ERROR
                results.append(RowResult(row.slot, row.generation, error=error, outcome=outcome))
        return results

    def _draw(self, rows: Sequence[Row], batch: PackedBatch, hidden_TD: Tensor, slots: Slots) -> Iterator[Draw]:
        """Token, logprobs and error of each row that draws, in order."""
        drawing = [index for index, row in enumerate(rows) if row.samples]
        if not drawing:
            return iter(())
        last_R = torch.from_numpy(batch.query_starts_S[1:][drawing] - 1).to(hidden_TD.device)
        slots_R = np.array([rows[index].slot for index in drawing], dtype=np.int64)
        sampled = self.sampler.sample(self.model.logits(hidden_TD[last_R]), slots, slots_R)
        return zip(sampled.tokens, sampled.logprobs, sampled.errors, strict=True)

    def _prompt_logprobs(
        self, row: Row, hidden_TD: Tensor, slots: Slots
    ) -> tuple[list[TokenLogprobs | None] | None, str | None]:
        """What the row reports of prompt positions, if asked to, or an error; `hidden_TD` is of this row alone."""
        best = slots.sampling[row.slot].prompt_logprobs
        prompt_length = int(slots.prompt_lengths[row.slot])
        if best is None or row.start >= prompt_length:
            return None, None
        reports: list[TokenLogprobs | None] = [] if row.start else [None]
        end = min(row.start + row.count + 1, prompt_length)
        for first in range(row.start + 1, end, PROMPT_LOGITS_ROWS):
            last = min(first + PROMPT_LOGITS_ROWS, end)
            logits_RV = self.model.logits(hidden_TD[first - row.start - 1 : last - row.start - 1])
            tokens = slots.tokens[row.slot, first:last].tolist()
            found, error = self.sampler.prompt_logprobs(logits_RV, tokens, best)
            if error is not None:
                return None, error
            reports += found
        return reports, None
