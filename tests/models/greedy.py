"""Running a model by hand: what tests of models and of the engine share."""

from collections.abc import Sequence

import numpy as np
import torch

from tenure.kv.cache import KVCache
from tenure.layers.batch import PackedBatch, pack
from tenure.models.llama import LlamaModel

BLOCK_SIZE = 16


def make_cache(model: LlamaModel, num_blocks: int, block_size: int = BLOCK_SIZE) -> KVCache:
    return KVCache(model.cache_shape, num_blocks, block_size)


def make_tables(lengths: Sequence[int], num_blocks: int, block_size: int = BLOCK_SIZE, seed: int = 0) -> np.ndarray:
    """Shuffled, disjoint block tables for sequences of these final lengths, padded with a block that does not exist."""
    counts = [-(-length // block_size) for length in lengths]
    order = np.random.default_rng(seed).permutation(num_blocks)
    tables = np.full((len(lengths), max(counts)), 10**9, dtype=np.int64)
    at = 0
    for row, count in enumerate(counts):
        tables[row, :count] = order[at : at + count]
        at += count
    assert at <= num_blocks
    return tables


def make_batch(
    pieces: Sequence[Sequence[int]], starts: Sequence[int], tables: np.ndarray, block_size: int = BLOCK_SIZE
) -> PackedBatch:
    """One step: each sequence computes `pieces[s]`, beginning at position `starts[s]`."""
    return pack(
        np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces]),
        np.asarray(starts, dtype=np.int64),
        np.asarray([len(piece) for piece in pieces], dtype=np.int64),
        tables,
        block_size,
    )


def run_step(model: LlamaModel, cache: KVCache, batch: PackedBatch) -> torch.Tensor:
    """Logits of all rows."""
    with torch.inference_mode():
        return model.logits(model.forward(batch, cache))


def greedy(model: LlamaModel, prompts: Sequence[Sequence[int]], num_tokens: int, seed: int = 0) -> list[list[int]]:
    """Decode prompts together, as one batch, without looking for end tokens."""
    lengths = [len(prompt) + num_tokens for prompt in prompts]
    num_blocks = sum(-(-length // BLOCK_SIZE) for length in lengths)
    cache, tables = make_cache(model, num_blocks), make_tables(lengths, num_blocks, seed=seed)
    pieces, starts = [list(prompt) for prompt in prompts], [0] * len(prompts)
    outputs: list[list[int]] = [[] for _ in prompts]
    for _ in range(num_tokens):
        batch = make_batch(pieces, starts, tables)
        tokens = run_step(model, cache, batch)[batch.query_starts_S[1:] - 1].argmax(-1).tolist()
        starts = [start + len(piece) for start, piece in zip(starts, pieces, strict=True)]
        pieces = [[token] for token in tokens]
        for output, token in zip(outputs, tokens, strict=True):
            output.append(token)
    return outputs
