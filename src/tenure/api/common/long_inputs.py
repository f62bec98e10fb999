"""Embedding inputs longer than the window: split into chunks that fit, whose vectors are averaged.

Every chunk has the special tokens and the model's prompt around it, which count. The vector is the mean of the chunks'
vectors, weighted by their tokens of the input, and normalised where the model's embeddings are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tenure.api.common.pooling_job import Vectors
from tenure.http.errors import internal_error, invalid_request
from tenure.prompts.text_inputs import TokenizedInput


@dataclass(frozen=True)
class Chunks:
    """The prompts of all inputs, in order. `weights[i]`: for each prompt of input i, its tokens of that input."""

    prompts: list[list[int]]
    weights: list[list[int]]


def chunked(inputs: Sequence[TokenizedInput], window: int, param: str) -> Chunks:
    """Split the inputs longer than `window` tokens. Raises a 400 when special tokens and prompt fill the window."""
    prompts: list[list[int]] = []
    weights: list[list[int]] = []
    for entry in inputs:
        if entry.size <= window:
            prompts.append(entry.ids)
            weights.append([1])
            continue
        room = window - entry.special.size
        if room < 1:
            raise invalid_request(f"What stands around a text fills the window of {window} tokens.", param)
        parts = [entry.tokens[start : start + room] for start in range(0, len(entry.tokens), room)]
        prompts.extend(entry.special.around(part) for part in parts)
        weights.append([len(part) for part in parts])
    return Chunks(prompts, weights)


def merged(vectors: Sequence[Vectors], weights: Sequence[Sequence[int]], *, normalize: bool) -> list[Vectors]:
    """One vector for each input: its only one as it is, or the weighted mean of several. A mean of zero is a 500."""
    found = iter(vectors)
    return [_mean(found, counts, normalize) if len(counts) > 1 else next(found) for counts in weights]


def _mean(vectors: Iterator[Vectors], counts: Sequence[int], normalize: bool) -> Vectors:
    parts = np.stack([next(vectors) for _ in counts]).astype(np.float64)
    mean = np.average(parts, axis=0, weights=counts)
    length = float(np.linalg.norm(mean))
    if length == 0:
        raise internal_error("The vectors of a text's chunks cancel each other out.")
    found: Vectors = (mean / length if normalize else mean).astype(np.float32)
    return found
