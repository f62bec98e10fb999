"""Small random models, made and saved by Transformers."""

from pathlib import Path
from typing import Any

import torch

from tenure.source import ResolvedSource, SourceKind

COMMON = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def save_tiny(kind: str, folder: Path) -> tuple[ResolvedSource, Any]:
    """Save a model of one of the KINDS; returns where, and the Transformers model as the reference."""
    torch.manual_seed(len(kind))
    model = _make(kind).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):  # fresh ones are all zeros or ones, and would hide mistakes
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder, max_shard_size="20KB" if kind == "llama-sharded" else "1GB")
    return ResolvedSource(SourceKind.FOLDER, folder, kind), model


def _make(kind: str) -> Any:
    import transformers as hf  # noqa: PLC0415 - seconds to import; only these tests need it

    match kind:
        case "llama" | "llama-sharded":
            return hf.LlamaForCausalLM(hf.LlamaConfig(**COMMON))
        case "llama-tied-biased":
            config = hf.LlamaConfig(**COMMON, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)
            return hf.LlamaForCausalLM(config)
        case "llama3-rope":
            return hf.LlamaForCausalLM(hf.LlamaConfig(**COMMON, head_dim=16, rope_parameters=LLAMA3_ROPE))
        case "linear-rope":
            rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
            return hf.LlamaForCausalLM(hf.LlamaConfig(**COMMON, rope_parameters=rope))
        case "mistral":
            return hf.MistralForCausalLM(hf.MistralConfig(**COMMON, sliding_window=21))
        case "qwen2":
            return hf.Qwen2ForCausalLM(hf.Qwen2Config(**COMMON))
        case "qwen2-mixed-windows":
            config = hf.Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=13, max_window_layers=1)
            return hf.Qwen2ForCausalLM(config)
        case "qwen3":
            return hf.Qwen3ForCausalLM(hf.Qwen3Config(**COMMON, head_dim=16))
        case "qwen3-tied-biased":
            config = hf.Qwen3Config(**COMMON, head_dim=8, tie_word_embeddings=True, attention_bias=True)
            return hf.Qwen3ForCausalLM(config)
    raise ValueError(kind)


KINDS = (
    "llama",
    "llama-sharded",
    "llama-tied-biased",
    "llama3-rope",
    "linear-rope",
    "mistral",
    "qwen2",
    "qwen2-mixed-windows",
    "qwen3",
    "qwen3-tied-biased",
)
