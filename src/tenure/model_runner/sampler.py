"""From logits to tokens: one call for all rows of a step that draw.

Shape suffixes: R rows, V vocabulary.

Order of operations, per row: `allowed_token_ids`, `logit_bias`, `min_tokens` (bars end and stop tokens), `bad_words`
(they look at output tokens only), repetition penalty (prompt and output), presence and frequency penalties (output
only); then the best token if `temperature` is 0, else temperature, `min_p`, `top_k`, `top_p` and a draw. Token ids
outside the vocabulary are passed over. Reported logprobs are of the model's raw distribution, before all of these.

A draw is a pure function of (seed, choice, output position) and of the row's own distribution: one number in (0, 1)
comes from a counter-based hash and is looked up in the cumulative distribution, in the order of the vocabulary. The
sampler keeps nothing between calls, and every operation treats each row by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenure.kernels import native, sampling
from tenure.kernels.paged_attention import IntArray
from tenure.model_runner import torch_sampling
from tenure.model_runner.logprobs import token_logprobs
from tenure.model_runner.slots import Slots
from tenure.sampling import TokenLogprobs

NOT_FINITE = "the model's logits are not finite"
NOTHING_LEFT = "no token can be drawn: the masks of this request leave none"
ADJUSTED_NOT_FINITE = "the logits are not finite after this request's biases and penalties"
CALLERS_FAULTS = frozenset({NOTHING_LEFT, ADJUSTED_NOT_FINITE})
"""Errors that the request's own parameters cause."""

_ERRORS: Mapping[int, str] = MappingProxyType(
    {
        sampling.NOT_FINITE: NOT_FINITE,
        sampling.NOTHING_LEFT: NOTHING_LEFT,
        sampling.ADJUSTED_NOT_FINITE: ADJUSTED_NOT_FINITE,
    }
)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One entry per row; a row has either a token or an error."""

    tokens: list[int | None]
    logprobs: list[TokenLogprobs | None]
    errors: list[str | None]


def _native_kernels() -> native.NativeKernels | None:
    return native.NativeKernels.load() if native.available() else None


@dataclass(frozen=True, slots=True)
class Sampler:
    """Draws tokens and reports logprobs. `slice_elements` bounds each temporary tensor, in elements.

    Without `kernels`, and on devices, torch's own operations do the work.
    """

    slice_elements: int = 1 << 22
    kernels: native.NativeKernels | None = field(default_factory=_native_kernels)

    def sample(self, logits_RV: Tensor, slots: Slots, slots_R: IntArray) -> Sampled:
        """Draw one token per row of raw float32 logits, for the occupant of its slot. Nothing passed in is changed."""
        drawn = self._draw(logits_RV, slots, slots_R).tolist()
        tokens = [token if token >= 0 else None for token in drawn]
        return Sampled(
            tokens, self._reports(logits_RV, slots, slots_R, tokens), [_ERRORS.get(token) for token in drawn]
        )

    def prompt_logprobs(
        self, logits_RV: Tensor, tokens: Sequence[int], best: int
    ) -> tuple[list[TokenLogprobs], str | None]:
        """The reports of prompt tokens, `tokens[r]` predicted by row r; or nothing and an error."""
        if not logits_RV.amax(-1).isfinite().all():
            return [], NOT_FINITE
        return token_logprobs(logits_RV, tokens, [best] * len(tokens), [()] * len(tokens)), None

    def _draw(self, logits_RV: Tensor, slots: Slots, slots_R: IntArray) -> IntArray:
        produced_R = slots.lengths[slots_R] - slots.prompt_lengths[slots_R]
        seeds_R, choices_R = slots.seeds[slots_R].T
        uniforms_R = uniforms(seeds_R, choices_R, produced_R.astype(np.uint64))
        if self.kernels is not None and logits_RV.device.type == "cpu":
            return self.kernels.sample(logits_RV, slots.lines, slots_R, uniforms_R)
        tokens_R = np.empty(len(slots_R), dtype=np.int64)
        for rows in self._slices(range(len(slots_R)), logits_RV.shape[-1]):
            uniforms_here = torch.from_numpy(uniforms_R[rows]).to(logits_RV.device)
            tokens_R[rows] = torch_sampling.sample(logits_RV[rows], slots, slots_R[rows], uniforms_here).cpu().numpy()
        return tokens_R

    def _reports(
        self, logits_RV: Tensor, slots: Slots, slots_R: IntArray, tokens: Sequence[int | None]
    ) -> list[TokenLogprobs | None]:
        params = [slots.sampling[slot] for slot in slots_R.tolist()]
        reports: list[TokenLogprobs | None] = [None] * len(params)
        wanted = [
            row
            for row, one in enumerate(params)
            if (one.logprobs is not None or one.logprob_token_ids) and tokens[row] is not None
        ]
        for rows in self._slices(wanted, logits_RV.shape[-1]):
            chosen = [token for row in rows if (token := tokens[row]) is not None]
            best = [params[row].logprobs or 0 for row in rows]
            extra_ids = [params[row].logprob_token_ids for row in rows]
            for row, report in zip(rows, token_logprobs(logits_RV[rows], chosen, best, extra_ids), strict=True):
                reports[row] = report
        return reports

    def _slices(self, rows: Sequence[int], vocabulary: int) -> Iterator[list[int]]:
        size = max(1, self.slice_elements // vocabulary)
        for first in range(0, len(rows), size):
            yield list(rows[first : first + size])


def uniforms(seeds: Words, choices: Words, positions: Words) -> NDArray[np.float64]:
    """One number in the open interval (0, 1) for each (seed, choice, output position), evenly spread.

    The three are mixed one after the other with the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
    """
    mixed = _mix(seeds + _GOLDEN)
    mixed = _mix(mixed + (choices + np.uint64(1)) * _GOLDEN)
    mixed = _mix(mixed + (positions + np.uint64(1)) * _GOLDEN)
    # 52 bits and a half: one more bit would round the greatest value up to 1
    numbers: NDArray[np.float64] = ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return numbers


def _mix(value: Words) -> Words:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
