"""The layout of the sampling parameters for `sampling.c`, and its error numbers for rows without a token."""

import numpy as np
from numpy.typing import NDArray

SamplingLines = NDArray[np.void]

COPIED = (
    *("temperature", "min_p", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("top_k", "min_tokens"),
)
"""Fields of `SamplingParams` that the library reads as they are."""
LINE = np.dtype(
    [(name, np.float64) for name in COPIED[:6]]
    + [(name, np.int64) for name in (*COPIED[6:], "prompt_length", "length")]
    + [(name, np.int64) for name in ("num_allowed", "num_biased", "num_ends", "num_words", "ids", "biases", "tokens")]
)
"""`sampling_line` of the library; the last three are addresses."""
BLOCK = 64
"""Another number that the library must agree with."""

SAMPLING_LAYOUT = (LINE.itemsize, BLOCK)

NOT_FINITE, NOTHING_LEFT, ADJUSTED_NOT_FINITE = -1, -2, -3
"""Instead of a token: the logits are not; all are masked; they are not finite after what the request asks for."""


def scratch_size(width: int) -> int:
    """The number of floats of scratch memory per thread, for rows of this width."""
    return 3 * width + 6 * BLOCK
