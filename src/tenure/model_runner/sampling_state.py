"""What the sampler knows of one item besides its logits.

One `SamplingState` exists per occupancy of a slot: born of a `Start`, grown by one token per draw, forgotten when the
slot gets its next occupant. The runner owns it and alone calls `append`; the sampler only reads.

Invariants: `len(output)` is the position of the next draw, whether the tokens before it were drawn here or were given
again after a preemption; `counts` exists only where a penalty needs it and agrees with prompt and output.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tenure.sampling import SamplingParams

Ids = NDArray[np.int64]


class TokenCounts:
    """The distinct tokens of an item, each with how often it was put out (0: seen in the prompt only)."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        put_out, times = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
        distinct = np.union1d(np.asarray(prompt, dtype=np.int64), put_out)
        self._ids: Ids = distinct
        self._counts = np.zeros(len(distinct), dtype=np.float32)
        self._counts[np.searchsorted(distinct, put_out)] = times
        self._places = {token: place for place, token in enumerate(distinct.tolist())}

    @property
    def ids(self) -> Ids:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        """One more token was put out."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            room = max(64, place)
            self._ids = np.concatenate([self._ids, np.zeros(room, dtype=np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, dtype=np.float32)])
        self._ids[place] = token
        self._counts[place] += 1


class SamplingState:
    """How the next token of one item is to be drawn, and what it has put out so far."""

    def __init__(self, sampling: SamplingParams, choice: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        self.sampling = sampling
        self.choice = choice
        self.output = list(output)
        self.counts = _counts(sampling, prompt, output)
        self.allowed_ids: Ids = np.array(sampling.allowed_token_ids, dtype=np.int64)
        self.bias_ids: Ids = np.array([token for token, _ in sampling.logit_bias], dtype=np.int64)
        self.biases = np.array([bias for _, bias in sampling.logit_bias], dtype=np.float32)
        self.end_ids: Ids = np.array([*sampling.eos_token_ids, *sampling.stop_token_ids], dtype=np.int64)
        self.reports = sampling.logprobs is not None or bool(sampling.logprob_token_ids)
        self._always_adjusts = bool(
            sampling.allowed_token_ids or sampling.logit_bias or sampling.bad_words or self.counts is not None
        )

    @property
    def ends_are_barred(self) -> bool:
        """Whether `min_tokens` still forbids the tokens that end an item."""
        return len(self.output) < self.sampling.min_tokens and len(self.end_ids) > 0

    @property
    def adjusts(self) -> bool:
        """Whether the logits must be changed before the next draw."""
        return self._always_adjusts or self.ends_are_barred

    def append(self, token: int) -> None:
        """The token was drawn; the next draw is one position further."""
        self.output.append(token)
        if self.counts is not None:
            self.counts.add(token)


def _counts(sampling: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> TokenCounts | None:
    if sampling.repetition_penalty != 1.0:
        return TokenCounts(prompt, output)
    if sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0:
        return TokenCounts((), output)
    return None
