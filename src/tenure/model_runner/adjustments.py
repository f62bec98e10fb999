"""Changes to the logits before a draw: masks, biases and penalties.

Shape suffixes: R rows, V vocabulary. Entries of many rows are gathered into flat (row, token) lists, so that a change
costs a few tensor operations however many rows ask for it. Token ids outside the vocabulary are passed over: a
tokenizer may know of more tokens than the model has logits for.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenure.model_runner.sampling_state import Ids, SamplingState

Floats = NDArray[np.float32]


def adjust(logits_RV: Tensor, states: Sequence[SamplingState]) -> None:
    """Apply, in this order and in place: allowed tokens, biases, bad words, `min_tokens`, penalties."""
    _keep_allowed(logits_RV, states)
    _add_biases(logits_RV, states)
    _mask(logits_RV, [(row, np.array(bad, dtype=np.int64)) for row, s in enumerate(states) if (bad := bad_tokens(s))])
    _mask(logits_RV, [(row, state.end_ids) for row, state in enumerate(states) if state.ends_are_barred])
    _penalize(logits_RV, [(row, state) for row, state in enumerate(states) if state.counts is not None])


def bad_tokens(state: SamplingState) -> list[int]:
    """The last tokens of those `bad_words` whose other tokens the output ends with (the prompt does not count)."""
    output = state.output
    return [
        word[-1]
        for word in state.sampling.bad_words
        if word and (len(word) == 1 or tuple(output[1 - len(word) :]) == word[:-1])
    ]


class _Flat:
    """Entries of several rows as parallel flat lists, those outside the vocabulary left out."""

    def __init__(self, logits_RV: Tensor, entries: Sequence[tuple[int, Ids]]) -> None:
        lengths = [len(ids) for _, ids in entries]
        ids = np.concatenate([ids for _, ids in entries])
        self._kept = (ids >= 0) & (ids < logits_RV.shape[-1])
        self._lengths = lengths
        self._device = logits_RV.device
        self.rows = self._tensor(np.repeat(np.array([row for row, _ in entries], dtype=np.int64), lengths))
        self.ids = self._tensor(ids)

    def per_entry(self, values: Sequence[Floats]) -> Tensor:
        """One array per row, as long as the row's ids."""
        return self._tensor(np.concatenate(values))

    def per_row(self, values: Sequence[float]) -> Tensor:
        """One number per row."""
        return self._tensor(np.repeat(np.array(values, dtype=np.float32), self._lengths))

    def _tensor(self, values: NDArray[np.int64] | Floats) -> Tensor:
        return torch.from_numpy(values[self._kept]).to(self._device)


def _keep_allowed(logits_RV: Tensor, states: Sequence[SamplingState]) -> None:
    entries = [(row, state.allowed_ids) for row, state in enumerate(states) if len(state.allowed_ids)]
    if not entries:
        return
    flat = _Flat(logits_RV, entries)
    kept = logits_RV[flat.rows, flat.ids]
    logits_RV[[row for row, _ in entries]] = -torch.inf
    logits_RV[flat.rows, flat.ids] = kept


def _add_biases(logits_RV: Tensor, states: Sequence[SamplingState]) -> None:
    biased = [(row, state) for row, state in enumerate(states) if len(state.bias_ids)]
    if not biased:
        return
    flat = _Flat(logits_RV, [(row, state.bias_ids) for row, state in biased])
    biases = flat.per_entry([state.biases for _, state in biased])
    logits_RV.index_put_((flat.rows, flat.ids), biases, accumulate=True)


def _mask(logits_RV: Tensor, entries: Sequence[tuple[int, Ids]]) -> None:
    if entries:
        flat = _Flat(logits_RV, entries)
        logits_RV[flat.rows, flat.ids] = -torch.inf


def _penalize(logits_RV: Tensor, penalized: Sequence[tuple[int, SamplingState]]) -> None:
    """A positive logit is divided by the repetition penalty, another multiplied; the others are subtracted."""
    counted = [(row, state.sampling, state.counts) for row, state in penalized if state.counts is not None]
    if not counted:
        return
    flat = _Flat(logits_RV, [(row, counts.ids) for row, _, counts in counted])
    times = flat.per_entry([counts.counts for _, _, counts in counted])
    repetition = flat.per_row([sampling.repetition_penalty for _, sampling, _ in counted])
    presence = flat.per_row([sampling.presence_penalty for _, sampling, _ in counted])
    frequency = flat.per_row([sampling.frequency_penalty for _, sampling, _ in counted])
    logits = logits_RV[flat.rows, flat.ids]
    logits = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits_RV[flat.rows, flat.ids] = logits - frequency * times - presence * (times > 0)
