"""The demo model, and an independent implementation of it to compare with; each is loaded once for all tests."""

from functools import cache
from typing import Any

import gguf
import numpy as np
import torch

from tenure.models.llama import LlamaModel
from tenure.models.loader import load
from tenure.source import resolve_source


@cache
def smollm2() -> LlamaModel:
    return load(resolve_source("smollm2"))


@cache
def smollm2_reference() -> Any:
    """Transformers' LlamaForCausalLM with the weights of the demo file, read and un-permuted independently."""
    import transformers as hf  # noqa: PLC0415 - seconds to import; only these tests need it

    reader = gguf.GGUFReader(resolve_source("smollm2").path)
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
