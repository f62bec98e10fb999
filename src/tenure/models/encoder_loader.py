"""Loading an encoder: configuration, weights, the layers built from them, and the heads that its profile asks for.

Legend: V vocabulary, D hidden size, A positions, Y token types.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType

import torch

from tenure.checkpoints.encoder_config import EncoderConfig, EncoderHead, read_encoder_config
from tenure.checkpoints.profile import ModelProfile
from tenure.checkpoints.sentence_modules import DenseModule, read_modules
from tenure.cores import cores
from tenure.layers import pooling
from tenure.layers.after_attention import StepByStep, after_attention
from tenure.layers.full_attention import TextShape, text_attention
from tenure.layers.linear import Activation, linear_factory
from tenure.layers.norm import LayerNorm
from tenure.models.bert import BertEmbedding, BertLayer, BertLayers
from tenure.models.encoder import POOLINGS, ClassHead, EmbeddingHead, Encoder, Projection, TextHead
from tenure.models.weights import WeightReader, Weights, open_folder
from tenure.pooling import PoolingTask
from tenure.source import ResolvedSource

_PREFIXES = ("", "bert.", "roberta.")
"""What may stand in front of the names of an encoder's weights; checkpoints with a head have one of the latter."""

_ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "gelu": Activation.GELU,
        "gelu_new": Activation.GELU_TANH,
        "gelu_pytorch_tanh": Activation.GELU_TANH,
        "relu": Activation.RELU,
    }
)


def load_encoder(
    source: ResolvedSource,
    profile: ModelProfile,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    linear: str | None = None,
    attention: str | None = None,
) -> Encoder:
    """Load an encoder. `linear` and `attention` name back ends; None takes the best for the device. Heads are always
    float32.

    Raises CallerError for a model that is not served, ResourceError, naming the file, for weights that are missing,
    damaged or of the wrong shape.
    """
    config = read_encoder_config(source.path)
    device = torch.device(device)
    window = min(config.window, profile.max_length or config.window)
    with open_folder(source.path) as reader:
        weights = Weights(reader, dtype, device, linear_factory(dtype, device, linear))
        layers = _LayerBuilder(config, weights, _prefix(reader)).build(attention)
        float32 = Weights(reader, torch.float32, device, linear_factory(torch.float32, device, linear))
        return Encoder(layers, _HeadBuilder(source, config, profile, float32).build(), window)


def _prefix(reader: WeightReader) -> str:
    return next((prefix for prefix in _PREFIXES if reader.has(f"{prefix}embeddings.word_embeddings.weight")), "")


@dataclass(frozen=True, slots=True)
class _LayerBuilder:
    config: EncoderConfig
    weights: Weights
    prefix: str

    def build(self, attention: str | None) -> BertLayers:
        head_dim = self.config.hidden_size // self.config.num_heads
        shape = TextShape(self.config.num_heads, head_dim, self.weights.dtype, self.weights.device)
        with torch.inference_mode(), ThreadPoolExecutor(cores()) as pool:
            embedding = self._embedding()
            layers = list(pool.map(self._layer, range(self.config.num_layers)))
            return BertLayers(embedding, layers, text_attention(shape, attention))

    def _embedding(self) -> BertEmbedding:
        config, prefix = self.config, f"{self.prefix}embeddings"
        table = self.weights.tensor
        words_VD = table(f"{prefix}.word_embeddings.weight", (config.vocab_size, config.hidden_size))
        positions_AD = table(
            f"{prefix}.position_embeddings.weight", (config.max_position_embeddings, config.hidden_size)
        )
        types_YD = table(f"{prefix}.token_type_embeddings.weight", (config.type_vocab_size, config.hidden_size))
        # A text has a first and perhaps a second type, whatever else the table holds.
        places_YAD = types_YD[:2].unsqueeze(1) + positions_AD[config.first_position :]
        return BertEmbedding(words_VD, places_YAD, self._norm(f"{prefix}.LayerNorm"))

    def _layer(self, number: int) -> BertLayer:
        config, prefix = self.config, f"{self.prefix}encoder.layer.{number}"
        hidden, inner = config.hidden_size, config.intermediate_size
        qkv = tuple(f"{prefix}.attention.self.{name}" for name in ("query", "key", "value"))
        with torch.inference_mode():  # it holds for one thread only
            steps = StepByStep(
                output=self.weights.linear((f"{prefix}.attention.output.dense",), hidden, hidden),
                attention_norm=self._norm(f"{prefix}.attention.output.LayerNorm"),
                up=self.weights.linear((f"{prefix}.intermediate.dense",), hidden, inner),
                activation=_ACTIVATIONS[config.activation],
                down=self.weights.linear((f"{prefix}.output.dense",), inner, hidden),
                mlp_norm=self._norm(f"{prefix}.output.LayerNorm"),
            )
            return BertLayer(self.weights.linear(qkv, hidden, hidden), config.num_heads, after_attention(steps))

    def _norm(self, name: str) -> LayerNorm:
        shape = (self.config.hidden_size,)
        weight_D, bias_D = (self.weights.tensor(f"{name}.{kind}", shape) for kind in ("weight", "bias"))
        return LayerNorm(weight_D, bias_D, self.config.layer_norm_eps)


@dataclass(frozen=True, slots=True)
class _HeadBuilder:
    source: ResolvedSource
    config: EncoderConfig
    profile: ModelProfile
    weights: Weights

    def build(self) -> Mapping[PoolingTask, TextHead]:
        builders = {
            EncoderHead.NONE: self._embeddings,
            EncoderHead.TOKEN_PROJECTION: self._projected_tokens,
            EncoderHead.CLASSES: self._classes,
            EncoderHead.TOKEN_CLASSES: self._token_classes,
        }
        with torch.inference_mode():
            return MappingProxyType(builders[self.config.head]())

    def _embeddings(self) -> dict[PoolingTask, TextHead]:
        modules = read_modules(self.source.path)
        stack = [(dense.every_token, self._dense(dense)) for dense in (modules.dense if modules else ())]
        on_tokens = [projection for every_token, projection in stack if every_token]
        on_texts = [projection for every_token, projection in stack if not every_token]
        heads: dict[PoolingTask, TextHead] = {
            PoolingTask.TOKEN_EMBED: EmbeddingHead(None, on_tokens, self.profile.normalize)
        }
        if modules is None or modules.pooling is not None:
            pool = POOLINGS[self.profile.pooling]
            heads[PoolingTask.EMBED] = EmbeddingHead(pool, on_texts, self.profile.normalize)
        return heads

    def _dense(self, dense: DenseModule) -> Projection:
        with open_folder(dense.folder) as reader:
            weights = Weights(reader, self.weights.dtype, self.weights.device, self.weights.factory)
            linear = weights.linear(("linear",), dense.inputs, dense.outputs, bias=dense.bias)
        return Projection(linear, Activation(dense.activation))

    def _projected_tokens(self) -> dict[PoolingTask, TextHead]:
        size = self.config.projection_size
        linear = self.weights.linear(
            ("linear",), self.config.hidden_size, size, bias=self.weights.reader.has("linear.bias")
        )
        projection = Projection(linear, Activation.NONE)
        return {PoolingTask.TOKEN_EMBED: EmbeddingHead(None, (projection,), self.profile.normalize)}

    def _classes(self) -> dict[PoolingTask, TextHead]:
        # BERT's first layer belongs to its body, RoBERTa's to its head; they compute the same.
        first, second = "bert.pooler.dense", "classifier"
        if self.config.model_type != "bert":
            first, second = "classifier.dense", "classifier.out_proj"
        hidden, count = self.config.hidden_size, len(self.config.classes.labels)
        layers = (
            Projection(self.weights.linear((first,), hidden, hidden), Activation.TANH),
            Projection(self.weights.linear((second,), hidden, count), Activation.NONE),
        )
        independent = count == 1 or self.config.classes.multi_label
        return {PoolingTask.CLASSIFY: ClassHead(pooling.first_rows, layers, independent)}

    def _token_classes(self) -> dict[PoolingTask, TextHead]:
        count = len(self.config.classes.labels)
        linear = self.weights.linear(("classifier",), self.config.hidden_size, count)
        layers = (Projection(linear, Activation.NONE),)
        return {PoolingTask.TOKEN_CLASSIFY: ClassHead(None, layers, count == 1)}
