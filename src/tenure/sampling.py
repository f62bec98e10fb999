"""How the tokens of an item are drawn, and what is reported of each draw.

Validated by the API process, sent to the engine, carried out by the sampler.
"""

from array import array
from collections.abc import Sequence

import msgspec

MINUS_INFINITY = -9999.0
"""Stands for the logprob of what cannot be drawn: JSON has no infinity. No logprob is less."""


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """End an item once its last tokens are `min_count` copies of one pattern of `min_size`..`max_size` tokens."""

    max_size: int
    min_size: int = 1
    min_count: int = 2


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The resolved sampling fields of one request; every value is finite and in range.

    A draw depends on (`seed`, choice index, output position) and the logits alone.
    """

    max_tokens: int
    """Tokens to produce at most; 0 computes the prompt only (echo with logprobs)."""
    min_tokens: int = 0
    """Neither `eos_token_ids` nor `stop_token_ids` can be drawn before this many tokens."""
    temperature: float = 1.0
    """0 is greedy; the API rounds anything under 1e-5 down to 0."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    """Always set: a request without a seed is given a random one."""
    eos_token_ids: tuple[int, ...] = ()
    """The model's end tokens; they end an item with `stop` unless `ignore_eos`."""
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, bias) pairs, biases within +-100."""
    allowed_token_ids: tuple[int, ...] = ()
    """Empty allows all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences whose last token may not follow the others."""
    logprobs: int | None = None
    """How many best alternatives to report with each token; None is off, -1 the whole vocabulary."""
    logprob_token_ids: tuple[int, ...] = ()
    """Tokens whose logprobs to report besides the best ones."""
    prompt_logprobs: int | None = None
    """As `logprobs`, for the tokens of the prompt."""
    repetition_detection: RepetitionDetection | None = None


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One position: the logprob and rank (1 is best) of the token there, and of the reported alternatives.

    These are packed, as the machine's 32-bit ints and floats: thousands of positions, with a Python object for each
    number, would take long to send and to free. None is less than MINUS_INFINITY.
    """

    logprob: float
    rank: int
    packed_ids: bytes
    packed_logprobs: bytes

    @classmethod
    def of(cls, logprob: float, rank: int, ids: Sequence[int], logprobs: Sequence[float]) -> "TokenLogprobs":
        """`ids` and `logprobs` are equally long, best first, the requested `logprob_token_ids` after the best ones."""
        return cls(logprob, rank, array("i", ids).tobytes(), array("f", logprobs).tobytes())

    @property
    def count(self) -> int:
        """How many alternatives are reported."""
        return len(self.packed_ids) // array("i").itemsize

    @property
    def ids(self) -> list[int]:
        return array("i", self.packed_ids).tolist()

    @property
    def logprobs(self) -> list[float]:
        return array("f", self.packed_logprobs).tolist()
