"""Logits of models from GGUF files against Transformers' own."""

from pathlib import Path
from typing import Any

import gguf
import torch

from tenure.models.loader import load
from tenure.source import ResolvedSource, SourceKind
from tests.models.greedy import make_batch, make_cache, make_tables, run_step
from tests.models.tiny import save_tiny

PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
}


def gguf_name(name: str) -> str:
    match name.removeprefix("model.").removesuffix(".weight").split(".", 2):
        case ["layers", layer, part]:
            return f"blk.{layer}.{PARTS[part]}.weight"
        case parts:
            return f"{PARTS['.'.join(parts)]}.weight"


def write_qwen3(path: Path, model: Any) -> None:
    """As the converter does for this architecture: nothing is reordered."""
    config = model.config
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name, weight in model.state_dict().items():
        writer.add_tensor(gguf_name(name), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_qwen3(tmp_path: Path) -> None:
    _, reference = save_tiny("qwen3", tmp_path / "folder")
    write_qwen3(tmp_path / "m.gguf", reference)
    ours, tokens = load(ResolvedSource(SourceKind.GGUF, tmp_path / "m.gguf", "m")), list(range(3, 43))
    assert ours.config.head_norms
    tables, cache = make_tables([40], 4), make_cache(ours, 4)
    first = run_step(ours, cache, make_batch([tokens[:39]], [0], tables))
    last = run_step(ours, cache, make_batch([tokens[39:]], [39], tables))
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(torch.cat([first, last]), expected, atol=1e-4, rtol=1e-4)
