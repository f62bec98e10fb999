"""The demo model from its GGUF file, against Transformers' model with weights read by the GGUF library."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tenure.gguf_file import GGUFFile
from tenure.models.base import LoadedModel
from tenure.models.loader import load
from tenure.source import resolve_source
from tests.models.greedy import greedy, make_batch, make_cache, make_tables, run_step

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


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(resolve_source("smollm2"))


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    import transformers as hf  # noqa: PLC0415 - seconds to import; only these tests need it

    reader = gguf.GGUFReader(path)
    config = hf.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    theirs = hf.LlamaForCausalLM(config).eval()
    theirs.load_state_dict(dict(_state(reader)), strict=False)
    return theirs


def _state(reader: gguf.GGUFReader) -> Any:
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    for tensor in reader.tensors:
        weight = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type)))
        match tensor.name.split("."):
            case ["token_embd", "weight"]:
                yield "model.embed_tokens.weight", weight
                yield "lm_head.weight", weight
            case ["output_norm", "weight"]:
                yield "model.norm.weight", weight
            case ["blk", layer, part, "weight"]:
                if part in ("attn_q", "attn_k"):
                    # The converter put rows (half 0, half 1) of each head next to each other: put them back.
                    weight = weight.view(-1, 32, 2, 576).swapaxes(1, 2).reshape(weight.shape)
                yield f"model.layers.{layer}.{parts[part]}.weight", weight


def test_logits_agree_for_prefill_chunks_and_decode(model: LoadedModel, reference: Any, prompt: list[int]) -> None:
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


def test_it_knows_the_capital_of_france(model: LoadedModel, path: Path, prompt: list[int]) -> None:
    with GGUFFile.open(path) as file:
        vocabulary = file.metadata["tokenizer.ggml.tokens"]
        assert isinstance(vocabulary, list)
        answer = [str(vocabulary[token]) for token in greedy(model, [prompt], 8)[0]]
    assert answer == ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis", "ĠParis", ".", "<|im_end|>"]


def test_configuration(model: LoadedModel) -> None:
    config = model.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.max_position_embeddings, config.rope_theta) == (49152, 8192, 100000.0)
    assert config.eos_token_ids == (2,)
    assert config.tie_word_embeddings
    assert 538e6 < model.weights_bytes < 660e6
