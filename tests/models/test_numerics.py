"""Logits against Transformers' own models, float32, for every way that a sequence can be cut into steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tenure.models.llama import LlamaModel
from tenure.models.loader import load
from tests.models.greedy import greedy, make_batch, make_cache, make_tables, run_step
from tests.models.tiny import KINDS, save_tiny

NUM_BLOCKS = 64
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=KINDS)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaModel, Any]:
    source, reference = save_tiny(request.param, tmp_path_factory.mktemp(request.param))
    return load(source), reference


def random_tokens(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 199, length).tolist()


def reference_logits(reference: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([tokens])).logits[0]
    return logits


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)


def test_prefill_of_several_sequences(models: tuple[LlamaModel, Any]) -> None:
    ours, reference = models
    sequences = [random_tokens(length, seed=length) for length in (37, 1, 16, 90)]
    tables = make_tables([len(tokens) for tokens in sequences], NUM_BLOCKS)
    logits = run_step(ours, make_cache(ours, NUM_BLOCKS), make_batch(sequences, [0] * 4, tables))
    assert_close(logits, torch.cat([reference_logits(reference, tokens) for tokens in sequences]))


@pytest.mark.parametrize("chunks", [(50, 50), (1, 33, 1, 65), (16, 16, 1, 7, 60)])
def test_chunked_prefill(models: tuple[LlamaModel, Any], chunks: tuple[int, ...]) -> None:
    ours, reference = models
    tokens = random_tokens(100, seed=5)
    tables, cache = make_tables([100], NUM_BLOCKS, seed=2), make_cache(ours, NUM_BLOCKS)
    logits, start = [], 0
    for count in chunks:
        logits.append(run_step(ours, cache, make_batch([tokens[start : start + count]], [start], tables)))
        start += count
    assert_close(torch.cat(logits), reference_logits(reference, tokens))


def test_decode_steps_mixed_with_prefill_chunks(models: tuple[LlamaModel, Any]) -> None:
    """Sequences of very different lengths decode while others come in by chunks, in changing order."""
    ours, reference = models
    lengths = (130, 41, 9, 60)
    sequences = [random_tokens(length, seed=40 + length) for length in lengths]
    tables, cache = make_tables(lengths, NUM_BLOCKS, seed=3), make_cache(ours, NUM_BLOCKS)
    expected = [reference_logits(reference, tokens) for tokens in sequences]
    steps = [{0: 110, 2: 5}, {2: 1, 1: 30, 0: 1}, {0: 1, 1: 1, 2: 1}, {3: 40, 1: 1, 0: 17}, {3: 20, 2: 2}, {1: 9, 0: 1}]
    done = [0] * len(lengths)
    for step in steps:
        order = list(step)
        pieces = [sequences[s][done[s] : done[s] + step[s]] for s in order]
        logits = run_step(ours, cache, make_batch(pieces, [done[s] for s in order], tables[order]))
        assert_close(logits, torch.cat([expected[s][done[s] : done[s] + step[s]] for s in order]))
        for s in order:
            done[s] += step[s]
    assert done == list(lengths)


def test_two_sequences_share_the_blocks_of_a_prefix(models: tuple[LlamaModel, Any]) -> None:
    ours, reference = models
    first, tail = random_tokens(48, seed=1), random_tokens(10, seed=2)
    second = first[:32] + tail
    tables, cache = make_tables([48, 48], NUM_BLOCKS), make_cache(ours, NUM_BLOCKS)
    tables[1, :2] = tables[0, :2]
    run_step(ours, cache, make_batch([first], [0], tables[:1]))
    logits = run_step(ours, cache, make_batch([tail], [32], tables[1:]))
    assert_close(logits, reference_logits(reference, second)[32:])


def test_neither_stale_nor_broken_values_of_others_are_seen(models: tuple[LlamaModel, Any]) -> None:
    """Blocks of other items, even full of NaN, and leftovers in one's own last block do not matter."""
    ours, reference = models
    sequences = [random_tokens(70, seed=8), random_tokens(20, seed=9)]
    tables, cache = make_tables([70, 20], NUM_BLOCKS), make_cache(ours, NUM_BLOCKS)
    mine = [int(block) for block in tables.flatten() if block < NUM_BLOCKS]
    for layer in cache.layers:
        layer.fill_(torch.nan)
        layer[mine] = 1000.0
    run_step(ours, cache, make_batch([tokens[:-1] for tokens in sequences], [0, 0], tables))
    logits = run_step(ours, cache, make_batch([tokens[-1:] for tokens in sequences], [69, 19], tables))
    assert_close(logits, torch.stack([reference_logits(reference, tokens)[-1] for tokens in sequences]))


def test_greedy_text_does_not_depend_on_the_batch(models: tuple[LlamaModel, Any]) -> None:
    ours, _ = models
    prompts = [random_tokens(length, seed=length) for length in (3, 40, 17)]
    together = greedy(ours, prompts, 24)
    assert together == [greedy(ours, [prompt], 24, seed=1)[0] for prompt in prompts]


@pytest.mark.parametrize("linear", ["torch", "onednn"])
@pytest.mark.parametrize("kernels", ["torch", None])
@pytest.mark.parametrize("kind", ["llama-tied-biased", "qwen3"])
def test_every_back_end(kind: str, kernels: str | None, linear: str, tmp_path: Path) -> None:
    source, reference = save_tiny(kind, tmp_path)
    ours, tokens = load(source, linear=linear, attention=kernels, rows=kernels), random_tokens(30, seed=4)
    tables, cache = make_tables([30], 4), make_cache(ours, 4)
    first = run_step(ours, cache, make_batch([tokens[:29]], [0], tables))
    last = run_step(ours, cache, make_batch([tokens[29:]], [29], tables))
    assert_close(torch.cat([first, last]), reference_logits(reference, tokens))


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_bfloat16_follows_float32(kind: str, tmp_path: Path) -> None:
    source, reference = save_tiny(kind, tmp_path)
    ours, tokens = load(source, dtype=torch.bfloat16), random_tokens(60, seed=4)
    tables, cache = make_tables([60], 8), make_cache(ours, 8)
    first = run_step(ours, cache, make_batch([tokens[:59]], [0], tables))
    last = run_step(ours, cache, make_batch([tokens[59:]], [59], tables))
    theirs = reference_logits(reference, tokens)
    assert first.dtype == torch.float32
    error = (torch.cat([first, last]) - theirs).abs().mean() / theirs.abs().mean()
    assert error < 0.05
