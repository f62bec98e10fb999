"""From logits to tokens: one call for all rows of a step that draw.

Shape suffixes: R rows, V vocabulary, W vocabulary padded to whole blocks.

Order of operations, per row: `allowed_token_ids`, `logit_bias`, `bad_words` (they look at output tokens only),
`min_tokens` (bars end and stop tokens), repetition penalty (prompt and output), presence and frequency penalties
(output only); then the best token if `temperature` is 0, else temperature, `min_p`, `top_k`, `top_p` and a draw.
Reported logprobs are of the model's raw distribution, before all of these.

The sampler keeps nothing between calls. What a row gets depends on its own logits and state alone: rows are worked
on in slices that bound memory, and every tensor operation treats each row by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tenure.model_runner.adjustments import adjust
from tenure.model_runner.draws import BLOCK, draw, keep_likely, uniforms
from tenure.model_runner.logprobs import token_logprobs
from tenure.model_runner.sampling_state import SamplingState
from tenure.sampling import TokenLogprobs

NOT_FINITE = "the model's logits are not finite"
NOTHING_LEFT = "no token can be drawn: the masks of this request leave none"
ADJUSTED_NOT_FINITE = "the logits are not finite after this request's biases and penalties"
CALLERS_FAULTS = frozenset({NOTHING_LEFT, ADJUSTED_NOT_FINITE})
"""Errors that the request's own parameters cause."""

_GREATEST = 1e37
"""A temperature that would bring the best logit beyond this, and so near overflow, is raised."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One entry per row; a row has either a token or an error."""

    tokens: list[int | None]
    logprobs: list[TokenLogprobs | None]
    errors: list[str | None]


@dataclass(frozen=True, slots=True)
class Sampler:
    """Draws tokens and reports logprobs. `slice_elements` bounds each temporary tensor, in elements."""

    slice_elements: int = 1 << 22

    def sample(self, logits_RV: Tensor, states: Sequence[SamplingState]) -> Sampled:
        """Draw one token per row of raw float32 logits. Nothing passed in is changed."""
        best, best_logits = _best(logits_RV)
        finite = np.isfinite(best_logits).tolist()
        tokens: list[int | None] = [token if good else None for token, good in zip(best, finite, strict=True)]
        errors: list[str | None] = [None if good else NOT_FINITE for good in finite]
        special = [
            row for row, state in enumerate(states) if finite[row] and (state.sampling.temperature or state.adjusts)
        ]
        for rows in self._slices(special, logits_RV.shape[-1]):
            drawn, failed = _draw_rows(logits_RV, rows, [states[row] for row in rows])
            for row, token, error in zip(rows, drawn, failed, strict=True):
                tokens[row], errors[row] = (token, None) if error is None else (None, error)
        return Sampled(tokens, self._reports(logits_RV, states, tokens), errors)

    def prompt_logprobs(
        self, logits_RV: Tensor, tokens: Sequence[int], best: int
    ) -> tuple[list[TokenLogprobs], str | None]:
        """The reports of prompt tokens, `tokens[r]` predicted by row r; or nothing and an error."""
        _, best_logits = _best(logits_RV)
        if not np.isfinite(best_logits).all():
            return [], NOT_FINITE
        return token_logprobs(logits_RV, tokens, [best] * len(tokens), [()] * len(tokens)), None

    def rows_per_slice(self, vocabulary: int) -> int:
        """How many rows of logits to hold at a time."""
        return max(1, self.slice_elements // vocabulary)

    def _reports(
        self, logits_RV: Tensor, states: Sequence[SamplingState], tokens: Sequence[int | None]
    ) -> list[TokenLogprobs | None]:
        reports: list[TokenLogprobs | None] = [None] * len(states)
        wanted = [row for row, state in enumerate(states) if state.reports and tokens[row] is not None]
        for rows in self._slices(wanted, logits_RV.shape[-1]):
            chosen = [token for row in rows if (token := tokens[row]) is not None]
            best = [states[row].sampling.logprobs or 0 for row in rows]
            extra_ids = [states[row].sampling.logprob_token_ids for row in rows]
            for row, report in zip(rows, token_logprobs(logits_RV[rows], chosen, best, extra_ids), strict=True):
                reports[row] = report
        return reports

    def _slices(self, rows: list[int], vocabulary: int) -> Iterator[list[int]]:
        size = self.rows_per_slice(vocabulary)
        for first in range(0, len(rows), size):
            yield rows[first : first + size]


def _best(logits_RV: Tensor) -> tuple[list[int], np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """The first best token of each row and its logit, which is NaN or infinite just when the row is unusable."""
    if logits_RV.device.type == "cpu":
        logits = logits_RV.float().numpy()
        best = logits.argmax(-1)  # several times as fast as torch's; NaN counts as greatest in both
        return best.tolist(), np.take_along_axis(logits, best[:, None], -1)[:, 0]
    best_R = logits_RV.argmax(-1)
    return best_R.tolist(), logits_RV.gather(1, best_R[:, None])[:, 0].float().cpu().numpy()


def _draw_rows(
    logits_RV: Tensor, rows: list[int], states: Sequence[SamplingState]
) -> tuple[list[int], list[str | None]]:
    """Adjust a copy of these rows and draw from it. A token beside an error means nothing."""
    logits_RW = _copy(logits_RV, rows)
    adjust(logits_RW[:, : logits_RV.shape[-1]], states)
    best, best_logits = _best(logits_RW)
    errors = [
        None if np.isfinite(top) else NOTHING_LEFT if top == -np.inf else ADJUSTED_NOT_FINITE for top in best_logits
    ]
    drawing = [row for row, state in enumerate(states) if state.sampling.temperature > 0 and errors[row] is None]
    if drawing:
        whole = len(drawing) == len(rows)
        top_R = torch.from_numpy(best_logits[drawing]).to(logits_RW.device)
        drawn = _draw(logits_RW if whole else logits_RW[drawing], top_R, [states[row] for row in drawing])
        for row, token in zip(drawing, drawn, strict=True):
            best[row] = token
    return best, errors


def _draw(logits_RW: Tensor, top_R: Tensor, states: Sequence[SamplingState]) -> list[int]:
    """Temperature, filters and a draw for each row; `top_R` is the greatest logit. Overwrites the logits."""
    sampling = [state.sampling for state in states]
    device = logits_RW.device
    temperature_R = torch.tensor([s.temperature for s in sampling], dtype=torch.float32, device=device)
    temperature_R = torch.maximum(temperature_R, top_R.abs() / _GREATEST)
    p_RW = torch.softmax(logits_RW.div_(temperature_R[:, None]), dim=-1)
    keep_likely(
        p_RW,
        torch.tensor([s.min_p for s in sampling], dtype=torch.float64, device=device),
        torch.tensor([s.top_k for s in sampling], dtype=torch.int64, device=device),
        torch.tensor([s.top_p for s in sampling], dtype=torch.float64, device=device),
    )
    numbers = uniforms(
        np.array([s.seed % 2**64 for s in sampling], dtype=np.uint64),
        np.array([state.choice for state in states], dtype=np.uint64),
        np.array([len(state.output) for state in states], dtype=np.uint64),
    )
    tokens: list[int] = draw(p_RW, torch.from_numpy(numbers).to(device)).tolist()
    return tokens


def _copy(logits_RV: Tensor, rows: list[int]) -> Tensor:
    """These rows in a tensor of their own, as wide as a whole number of blocks."""
    vocabulary = logits_RV.shape[-1]
    width = -(-vocabulary // BLOCK) * BLOCK
    if width == vocabulary:
        return logits_RV[rows].float()
    logits_RW = torch.full((len(rows), width), -torch.inf, device=logits_RV.device)
    logits_RW[:, :vocabulary] = logits_RV[rows]
    return logits_RW
