"""The shape of an encoder of the BERT family, read from `config.json`: no weights, no torch.

Every number that sizes anything is checked here, so the code that builds the model can rely on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from tenure.checkpoints.json_files import Raw, check_sizes, read_object, sensible
from tenure.errors import CallerError, ResourceError


class EncoderHead(StrEnum):
    """The head of an encoder's checkpoint."""

    NONE = "none"
    """Nothing that is served: its hidden states make embeddings."""
    TOKEN_PROJECTION = "token_projection"
    """A linear layer that makes an embedding of each token (ColBERT)."""
    CLASSES = "classes"
    """A classifier of whole texts, or of pairs."""
    TOKEN_CLASSES = "token_classes"
    """A classifier of tokens."""


_SUFFIXES = {
    "Model": EncoderHead.NONE,
    "ForMaskedLM": EncoderHead.NONE,
    "ForSequenceClassification": EncoderHead.CLASSES,
    "ForTokenClassification": EncoderHead.TOKEN_CLASSES,
}
ENCODER_ARCHITECTURES: Mapping[str, EncoderHead] = MappingProxyType(
    {family + suffix: head for family in ("Bert", "Roberta", "XLMRoberta") for suffix, head in _SUFFIXES.items()}
    | dict.fromkeys(("HF_ColBERT", "ColBERT"), EncoderHead.TOKEN_PROJECTION)
)

ENCODER_TYPES = ("bert", "roberta", "xlm-roberta")

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of a classifier."""

    labels: tuple[str, ...] = ()
    """By number."""
    multi_label: bool = False
    """Multi-label: the classes are independent (sigmoid instead of softmax)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """The shape of an encoder."""

    model_type: str
    """One of ENCODER_TYPES."""
    head: EncoderHead
    num_layers: int
    num_heads: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    first_position: int
    """The position id of a text's first token: 0, or in RoBERTa the id after the padding token's."""
    type_vocab_size: int
    layer_norm_eps: float
    activation: str
    classes: Classes = Classes()
    projection_size: int = 0
    """Numbers in the embedding of a token, for the head that makes one."""

    @property
    def window(self) -> int:
        """The most tokens of a text, special ones included."""
        return self.max_position_embeddings - self.first_position


def encoder_head(raw: Raw) -> EncoderHead | None:
    """The head of the encoder that a `config.json` describes; None when it describes no encoder."""
    architectures = raw.get("architectures")
    if isinstance(architectures, list) and architectures:
        return ENCODER_ARCHITECTURES.get(str(architectures[0]))
    return EncoderHead.NONE if raw.get("model_type") in ENCODER_TYPES else None


def read_encoder_config(folder: Path) -> EncoderConfig:
    """Read and check the shape of an encoder.

    Raises CallerError for a model that is not served, ResourceError for a file that cannot be read or makes no sense.
    """
    path = folder / "config.json"
    raw = read_object(path)
    _refuse_unserved(raw, folder)
    with sensible(path, "the model's shape"):
        return _checked(_from_raw(raw, folder), path)


def _refuse_unserved(raw: Raw, folder: Path) -> None:
    model_type = raw.get("model_type")
    if encoder_head(raw) is None or model_type not in ENCODER_TYPES:
        architectures = ", ".join(ENCODER_ARCHITECTURES)
        raise CallerError(
            f"{folder}: {raw.get('architectures')} of type {model_type!r} is not served; encoders that are: "
            f"{architectures}, of type {', '.join(ENCODER_TYPES)}"
        )
    if (position_type := raw.get("position_embedding_type", "absolute")) != "absolute":
        raise CallerError(f"{folder}: position embeddings of type {position_type!r} are not served (absolute ones are)")
    if (activation := raw.get("hidden_act", "gelu")) not in ACTIVATIONS:
        raise CallerError(f"{folder}: the activation {activation!r} is not served ({', '.join(ACTIVATIONS)} are)")
    if raw.get("is_decoder") or raw.get("add_cross_attention"):
        raise CallerError(f"{folder}: decoders of type {model_type!r} are not served, only encoders")
    if "quantization_config" in raw:
        raise CallerError(f"{folder}: quantised safetensors are not served")


def _from_raw(raw: Raw, folder: Path) -> EncoderConfig:
    head = encoder_head(raw)
    assert head is not None
    with_classes = head in (EncoderHead.CLASSES, EncoderHead.TOKEN_CLASSES)
    multi_label = raw.get("problem_type") == "multi_label_classification"
    return EncoderConfig(
        model_type=str(raw["model_type"]),
        head=head,
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=int(raw["num_attention_heads"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        vocab_size=int(raw["vocab_size"]),
        max_position_embeddings=int(raw["max_position_embeddings"]),
        first_position=0 if raw["model_type"] == "bert" else int(raw.get("pad_token_id", 1)) + 1,
        type_vocab_size=int(raw.get("type_vocab_size", 2)),
        layer_norm_eps=float(raw.get("layer_norm_eps", 1e-12)),
        activation=str(raw.get("hidden_act", "gelu")),
        classes=Classes(class_labels(raw), multi_label) if with_classes else Classes(),
        projection_size=_projection_size(raw, folder) if head is EncoderHead.TOKEN_PROJECTION else 0,
    )


def class_labels(raw: Raw) -> tuple[str, ...]:
    """The names of a classifier's classes, by number. Raises ValueError for a `config.json` that misnumbers them."""
    named = raw.get("id2label")
    if named is None:
        count = int(raw.get("num_labels", 2))
        if not 1 <= count <= 1 << 20:
            raise ValueError(f"{count} classes")
        return tuple(f"LABEL_{number}" for number in range(count))
    by_number = {int(number): str(label) for number, label in named.items()}
    if sorted(by_number) != list(range(len(by_number))) or not by_number:
        raise ValueError(f"id2label numbers its classes {sorted(by_number)[:10]}, not from 0 upwards")
    return tuple(by_number[number] for number in range(len(by_number)))


def _projection_size(raw: Raw, folder: Path) -> int:
    """Size of a token's embedding: from ColBERT's own file, or from `config.json` in converted checkpoints."""
    own = read_object(folder / "artifact.metadata", required=False)
    for size in (raw.get("dim"), raw.get("colbert_dim"), raw.get("projection_dim"), own.get("dim")):
        if size is not None:
            return int(size)
    return 128


def _checked(config: EncoderConfig, path: Path) -> EncoderConfig:
    """Refuse sizes that contradict each other or that no model has; weights are checked against the rest."""
    check_sizes(path, config, num_layers=1000, num_heads=4096, hidden_size=1 << 20, intermediate_size=1 << 22)
    check_sizes(path, config, vocab_size=1 << 24, type_vocab_size=1 << 10, max_position_embeddings=1 << 24)
    check_sizes(path, config, window=1 << 24)
    if config.head is EncoderHead.TOKEN_PROJECTION:
        check_sizes(path, config, projection_size=1 << 20)
    if config.hidden_size % config.num_heads:
        raise ResourceError(f"{path}: {config.num_heads} heads do not divide a hidden size of {config.hidden_size}")
    if config.first_position < 0:
        raise ResourceError(f"{path}: a padding token of {config.first_position - 1} makes no sense")
    if not 0 < config.layer_norm_eps < 1:
        raise ResourceError(f"{path}: a layer_norm_eps of {config.layer_norm_eps} makes no sense")
    return config
