"""The shape of a decoder, read from `config.json` or GGUF metadata, without weights and without torch.

Every number that sizes anything is checked here, so the code that builds the model can rely on it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenure.checkpoints.gguf import GGUFFile
from tenure.checkpoints.json_files import Raw, check_sizes, read_object, sensible
from tenure.errors import CallerError, ResourceError
from tenure.source import ResolvedSource, SourceKind

_GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
DECODER_TYPES = ("llama", "mistral", "qwen2", "qwen3")
"""What a `config.json` may call a decoder that is served."""
MAX_LAYERS = 1000
SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The scaling of rotary frequencies. `kind` is `linear` or `llama3`."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: the base of the frequencies, and their scaling."""

    theta: float
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Biases:
    """Which linear layers of a decoder layer have a bias."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder of the Llama family."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    tie_word_embeddings: bool = False
    biases: Biases = Biases()
    head_norms: bool = False
    """Each query and key head is normalised before it is rotated."""
    layer_windows: tuple[int | None, ...] = ()
    """The sliding window of each layer in tokens, the token itself included; None: no window. Empty: none anywhere."""

    def window_of(self, layer: int) -> int | None:
        return self.layer_windows[layer] if self.layer_windows else None


def read_config(source: ResolvedSource) -> ModelConfig:
    """Read and check a model's configuration.

    Raises CallerError for a model that is not served, ResourceError for a file that cannot be read or makes no sense.
    """
    with sensible(source.path, "the model's shape"):
        if source.kind is SourceKind.GGUF:
            with GGUFFile.open(source.path) as file:
                return _checked(_from_gguf(file), source.path)
        return _checked(_from_folder(source.path), source.path)


def read_sampling_defaults(source: ResolvedSource) -> dict[str, Any]:
    """The sampling values of the model's generation config: those of `SAMPLING_KEYS` that it has, unchecked.

    `do_sample` is ignored, as in vLLM.
    """
    if source.kind is SourceKind.GGUF:
        with GGUFFile.open(source.path) as file:
            names = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
            raw: Raw = {key: file.metadata.get(f"general.sampling.{names.get(key, key)}") for key in SAMPLING_KEYS}
    else:
        raw = read_object(source.path / "generation_config.json", required=False)
    return {key: raw[key] for key in SAMPLING_KEYS if raw.get(key) is not None}


def _from_folder(folder: Path) -> ModelConfig:
    raw = read_object(folder / "config.json")
    architecture = str(raw.get("model_type"))
    if architecture not in DECODER_TYPES:
        raise CallerError(f"{folder}: models of type {architecture!r} are not served ({', '.join(DECODER_TYPES)} are)")
    if raw.get("hidden_act", "silu") != "silu":
        raise CallerError(f"{folder}: the activation {raw['hidden_act']!r} is not served (silu is)")
    if "quantization_config" in raw:
        raise CallerError(f"{folder}: quantised safetensors are not served")
    num_heads, num_layers, hidden_size = (
        int(raw[key]) for key in ("num_attention_heads", "num_hidden_layers", "hidden_size")
    )
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    biased, qwen3 = bool(raw.get("attention_bias", False)), architecture == "qwen3"
    return ModelConfig(
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
        head_dim=int(raw.get("head_dim") or (128 if qwen3 else hidden_size // max(num_heads, 1))),
        hidden_size=hidden_size,
        intermediate_size=int(raw["intermediate_size"]),
        vocab_size=int(raw["vocab_size"]),
        max_position_embeddings=int(raw["max_position_embeddings"]),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=Rope(float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0), _rope_scaling(rope, folder)),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        biases=Biases(
            qkv={"mistral": False, "qwen2": True}.get(architecture, biased),
            output=biased and architecture not in ("mistral", "qwen2"),
            mlp=bool(raw.get("mlp_bias", False)),
        ),
        head_norms=qwen3,
        layer_windows=_windows(raw, architecture, num_layers),
    )


def _windows(raw: Raw, architecture: str, num_layers: int) -> tuple[int | None, ...]:
    """The window of each layer: Mistral's all have it; Qwen's those in `layer_types`, or without it the last ones."""
    window, qwen = _optional_int(raw.get("sliding_window")), architecture.startswith("qwen")
    if window is None or architecture == "llama" or (qwen and not raw.get("use_sliding_window")):
        return ()
    types = raw.get("layer_types") if qwen else None
    if types is None:
        first = int(raw.get("max_window_layers", 28)) if qwen else 0
        types = ["sliding_attention" if layer >= first else "" for layer in range(min(num_layers, MAX_LAYERS))]
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _rope_scaling(rope: Raw, path: Path) -> RopeScaling | None:
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    match kind:
        case "default":
            return None
        case "linear":
            return RopeScaling(kind, float(rope["factor"]))
        case "llama3":
            factor, low, high = (float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
            return RopeScaling(kind, factor, low, high, int(rope["original_max_position_embeddings"]))
    raise CallerError(f"{path}: rope scaling {kind!r} is not served (linear and llama3 are)")


def _from_gguf(file: GGUFFile) -> ModelConfig:
    metadata, tensors = file.metadata, file.tensors
    architecture = str(metadata.get("general.architecture"))
    if architecture not in _GGUF_ARCHITECTURES:
        served = ", ".join(_GGUF_ARCHITECTURES)
        raise CallerError(f"{file.path}: GGUF models of architecture {architecture!r} are not served ({served} are)")
    if metadata.get(f"{architecture}.expert_count"):
        raise CallerError(f"{file.path}: mixtures of experts are not served")
    if int(metadata.get("split.count", 1)) > 1:  # type: ignore[arg-type]
        raise CallerError(f"{file.path}: GGUF models split over several files are not served")
    own: Raw = {key.removeprefix(architecture + "."): metadata[key] for key in metadata if key.startswith(architecture)}
    num_heads, hidden_size = int(own["attention.head_count"]), int(own["embedding_length"])
    head_dim = int(own.get("attention.key_length") or hidden_size // max(num_heads, 1))
    if int(own.get("rope.dimension_count", head_dim)) != head_dim:
        raise CallerError(f"{file.path}: rotary embedding of a part of each head is not served")
    num_layers, window = int(own["block_count"]), _optional_int(own.get("attention.sliding_window"))
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ValueError("there is no token_embd.weight with two dimensions")
    return ModelConfig(
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=int(own.get("attention.head_count_kv") or num_heads),
        head_dim=head_dim,
        hidden_size=hidden_size,
        intermediate_size=int(own["feed_forward_length"]),
        vocab_size=embedding.shape[0],
        max_position_embeddings=int(own["context_length"]),
        rms_norm_eps=float(own["attention.layer_norm_rms_epsilon"]),
        rope=Rope(float(own.get("rope.freq_base", 10000.0)), _gguf_rope_scaling(own, file.path)),
        tie_word_embeddings="output.weight" not in tensors,
        biases=Biases(
            qkv="blk.0.attn_q.bias" in tensors,
            output="blk.0.attn_output.bias" in tensors,
            mlp="blk.0.ffn_up.bias" in tensors,
        ),
        head_norms=architecture == "qwen3",
        layer_windows=() if window is None else (window,) * min(num_layers, MAX_LAYERS),
    )


def _gguf_rope_scaling(own: Raw, path: Path) -> RopeScaling | None:
    # Llama 3's stretch comes as a tensor of factors, rope_freqs.weight, which the loader applies.
    kind = own.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    return _rope_scaling({"rope_type": kind, "factor": own.get("rope.scaling.factor", 1.0)}, path)


def _checked(config: ModelConfig, path: Path) -> ModelConfig:
    """Refuse sizes that contradict each other or that no model has; weights are checked against the rest."""
    check_sizes(path, config, num_layers=MAX_LAYERS, num_heads=4096, num_kv_heads=4096, head_dim=8192)
    check_sizes(path, config, hidden_size=1 << 20, intermediate_size=1 << 22, vocab_size=1 << 24)
    check_sizes(path, config, max_position_embeddings=1 << 30)
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise ResourceError(
            f"{path}: {config.num_heads} heads over {config.num_kv_heads} key-value heads of size {config.head_dim}"
        )
    if any(window is not None and window < 1 for window in config.layer_windows):
        raise ResourceError(f"{path}: a sliding window of less than one token")
    if config.layer_windows and len(config.layer_windows) != config.num_layers:
        raise ResourceError(f"{path}: {len(config.layer_windows)} layer types for {config.num_layers} layers")
    if not (0 < config.rms_norm_eps < 1 and 1 <= config.rope.theta < 1e15):
        raise ResourceError(f"{path}: rms_norm_eps {config.rms_norm_eps}, rope_theta {config.rope.theta}")
    if config.rope.scaling is not None and not 0 < config.rope.scaling.factor < 1e6:
        raise ResourceError(f"{path}: a rope scaling factor of {config.rope.scaling.factor}")
    return config


def _optional_int(value: Any) -> int | None:
    return None if value is None or isinstance(value, list) else int(value)
