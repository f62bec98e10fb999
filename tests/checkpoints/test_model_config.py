"""Configurations: what is read, and what is refused with a message that names the file."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.checkpoints.model_config import read_config, read_sampling_defaults
from tenure.errors import CallerError, ResourceError
from tenure.source import ResolvedSource, SourceKind

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def folder(path: Path, config: object, generation: object = None) -> ResolvedSource:
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return ResolvedSource(SourceKind.FOLDER, path, "m")


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    config = read_config(folder(tmp_path, LLAMA))
    assert (config.head_dim, config.rope.theta, config.rope.scaling) == (8, 10000.0, None)
    assert not config.tie_word_embeddings


def test_what_is_not_of_its_shape_may_say_anything(tmp_path: Path) -> None:
    odd = LLAMA | {"bos_token_id": "<s>", "eos_token_id": ["</s>"], "torch_dtype": 16}
    assert read_config(folder(tmp_path, odd, {"eos_token_id": {}})) == read_config(folder(tmp_path, LLAMA))


def test_both_spellings_of_rope(tmp_path: Path) -> None:
    old = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    first = read_config(folder(tmp_path, old))
    assert first == read_config(folder(tmp_path, new))
    assert first.rope.theta == 5e5
    assert first.rope.scaling is not None
    assert first.rope.scaling.factor == 2.0


def test_sliding_windows(tmp_path: Path) -> None:
    mistral = read_config(folder(tmp_path, LLAMA | {"model_type": "mistral", "sliding_window": 16}))
    assert mistral.layer_windows == (16, 16)
    off = LLAMA | {"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": False}
    assert read_config(folder(tmp_path, off)).layer_windows == ()
    mixed = read_config(folder(tmp_path, off | {"use_sliding_window": True, "max_window_layers": 1}))
    assert mixed.layer_windows == (None, 16)


def test_heads_of_qwen3_have_norms_and_a_size_of_their_own(tmp_path: Path) -> None:
    config = read_config(folder(tmp_path, LLAMA | {"model_type": "qwen3", "head_dim": 16}))
    assert (config.head_norms, config.head_dim, config.biases.qkv) == (True, 16, False)
    assert read_config(folder(tmp_path, LLAMA | {"model_type": "qwen3"})).head_dim == 128
    assert not read_config(folder(tmp_path, LLAMA)).head_norms


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "'bert' are not served"),
        ({"hidden_act": "gelu"}, "'gelu' is not served"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not served"),
        ({"quantization_config": {}}, "quantised"),
    ],
)
def test_models_that_are_not_served(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=message) as caught:
        read_config(folder(tmp_path, LLAMA | change))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": None},
        {"num_hidden_layers": 10**12},
        {"num_hidden_layers": "many"},
        {"num_attention_heads": 0},
        {"num_attention_heads": -4},
        {"num_key_value_heads": 3},
        {"hidden_size": [32]},
        {"hidden_size": 1e400},
        {"vocab_size": 1 << 60},
        {"head_dim": 7},
        {"rms_norm_eps": float("nan")},
        {"rope_theta": -1.0},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_scaling": {"rope_type": "linear", "factor": 0}},
        {"rope_scaling": "llama3"},
        {"model_type": "mistral", "sliding_window": 0},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention"]},
    ],
)
def test_nonsense_is_named_not_obeyed(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ResourceError) as caught:
        read_config(folder(tmp_path, LLAMA | change))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"a"', "[" * 100_000, "\udcff"])
def test_files_that_are_no_json_object(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ResourceError, match=r"config\.json"):
        read_config(ResolvedSource(SourceKind.FOLDER, tmp_path, "m"))


def test_sampling_defaults_are_those_named(tmp_path: Path) -> None:
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": None, "max_new_tokens": 99}
    source = folder(tmp_path, LLAMA, generation | {"do_sample": True, "max_length": 20})
    assert read_sampling_defaults(source) == {"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 99}


def test_do_sample_does_not_make_answers_greedy(tmp_path: Path) -> None:
    source = folder(tmp_path, LLAMA, {"do_sample": False, "temperature": 0.6})
    assert read_sampling_defaults(source) == {"temperature": 0.6}


def test_no_generation_config_names_nothing(tmp_path: Path) -> None:
    assert read_sampling_defaults(folder(tmp_path, LLAMA)) == {}
