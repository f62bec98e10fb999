"""The demo model from its GGUF file, against Transformers' model with weights read by the GGUF library."""

from pathlib import Path

import pytest
import torch

from tenure.checkpoints.gguf import GGUFFile
from tenure.source import resolve_source
from tests.models.greedy import greedy, make_batch, make_cache, make_tables, run_step
from tests.models.reference import smollm2, smollm2_reference

PROMPT = (
    "<|im_start|> system Ċ You Ġare Ġa Ġhelpful ĠAI Ġassistant . <|im_end|> Ċ "
    "<|im_start|> user Ċ What Ġis Ġthe Ġcapital Ġof ĠFrance ? <|im_end|> Ċ <|im_start|> ass istant Ċ"
)


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve_source("smollm2").path


@pytest.fixture(scope="module")
def prompt(path: Path) -> list[int]:
    with GGUFFile.open(path) as file:
        vocabulary = file.metadata["tokenizer.ggml.tokens"]
        assert isinstance(vocabulary, list)
        return [vocabulary.index(piece) for piece in PROMPT.split()]


def test_logits_agree_for_prefill_chunks_and_decode(prompt: list[int]) -> None:
    model, reference = smollm2(), smollm2_reference()
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0]
    tables, cache = make_tables([len(prompt)] * 2, 8), make_cache(model, 8)
    whole = run_step(model, cache, make_batch([prompt], [0], tables[:1]))
    torch.testing.assert_close(whole, expected, atol=1e-3, rtol=0)
    pieces, start = [], 0
    for end in (10, 11, len(prompt) - 1, len(prompt)):
        pieces.append(run_step(model, cache, make_batch([prompt[start:end]], [start], tables[1:])))
        start = end
    torch.testing.assert_close(torch.cat(pieces), expected, atol=1e-3, rtol=0)


def test_it_knows_the_capital_of_france(path: Path, prompt: list[int]) -> None:
    with GGUFFile.open(path) as file:
        vocabulary = file.metadata["tokenizer.ggml.tokens"]
        assert isinstance(vocabulary, list)
        answer = [str(vocabulary[token]) for token in greedy(smollm2(), [prompt], 8)[0]]
    assert answer == ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis", "ĠParis", ".", "<|im_end|>"]


def test_configuration() -> None:
    config = smollm2().config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.max_position_embeddings, config.rope.theta) == (49152, 8192, 100000.0)
    assert config.tie_word_embeddings
