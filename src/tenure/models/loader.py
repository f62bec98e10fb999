"""Loading a model: configuration, weights, and the layers built from them, one thread per core.

Legend: V vocabulary (or classes), D hidden size, H head size, P pairs (half a head).
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from tenure.checkpoints.model_config import ModelConfig, RopeScaling, read_config
from tenure.cores import cores
from tenure.errors import ResourceError
from tenure.layers.attention import AttentionShape, attention_backend
from tenure.layers.linear import Linear, linear_factory
from tenure.layers.mlp import GatedMLP
from tenure.layers.norm import HeadNorms, RMSNorm
from tenure.layers.rope import interleave_rows
from tenure.layers.rowwise import RowKernels, row_kernels
from tenure.models.llama import LlamaLayer, LlamaModel
from tenure.models.weights import Weights, open_weights
from tenure.source import ResolvedSource


@dataclass(frozen=True, slots=True)
class TokenHead:
    """Logits of the next token: a column for each id up to the last of `tokens`; minus infinity for ids without one."""

    tokens: frozenset[int] | None = None
    """The ids that have a token; None: all rows of the output weights have one."""


@dataclass(frozen=True, slots=True)
class LabelHead:
    """Logits of `count` classes: the weight `score.weight` of a sequence classifier."""

    count: int


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """One logit: by how much that of the next token `yes` exceeds that of `no`.

    Its sigmoid is the softmax over the two, taken at `yes`. Two rows of the output weights are all that it needs.
    """

    no: int
    yes: int


OutputHead = TokenHead | LabelHead | AnswerHead | None
"""None for a model that only embeds; its checkpoint need not have output weights."""

_TOKENS = TokenHead()


def load(
    source: ResolvedSource,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    head: OutputHead = _TOKENS,
    linear: str | None = None,
    attention: str | None = None,
    rows: str | None = None,
) -> LlamaModel:
    """Load a model. `head` says what its `logits` are.

    `linear`, `attention` and `rows` name back ends; None takes the best for the device.
    Raises CallerError for a model that is not served, ResourceError, naming the file, for weights that are missing,
    damaged or of the wrong shape.
    """
    config = read_config(source)
    device = torch.device(device)
    with open_weights(source) as reader:
        weights = Weights(reader, dtype, device, linear_factory(dtype, device, linear))
        return _Builder(config, weights, head, row_kernels(dtype, device, rows)).build(attention)


@dataclass(frozen=True, slots=True)
class _Builder:
    config: ModelConfig
    weights: Weights
    head: OutputHead
    rows: RowKernels

    def build(self, attention: str | None) -> LlamaModel:
        config = self.config
        with torch.inference_mode(), ThreadPoolExecutor(cores()) as pool:
            ends = pool.submit(self._ends)
            layers = list(pool.map(self._layer, range(config.num_layers)))
            embedding_VD, head = ends.result()
            dtype, device = self.weights.dtype, self.weights.device
            shape = AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim, dtype, device)
            return LlamaModel(
                config=config,
                embedding_VD=embedding_VD,
                layers=layers,
                final_norm=self._norm("model.norm.weight"),
                head=head,
                inverse_P=inverse_frequencies(config, self._rope_factors()).to(device),
                attention=attention_backend(shape, attention),
            )

    def _ends(self) -> tuple[torch.Tensor, Linear | None]:
        """The embedding, and the head, which often shares its weights."""
        with torch.inference_mode():
            shape = (self.config.vocab_size, self.config.hidden_size)
            embedding_VD = self.weights.tensor("model.embed_tokens.weight", shape)
            match self.head:
                case None:
                    return embedding_VD, None
                case LabelHead(count):
                    weight_VD = self.weights.tensor("score.weight", (count, self.config.hidden_size))
                case AnswerHead(no, yes):
                    weight_VD = self._output_weight(embedding_VD)
                    if max(no, yes) >= len(weight_VD):
                        raise ResourceError(
                            f"the tokens {no} and {yes} are not among the {len(weight_VD)} of the model"
                        )
                    weight_VD = (weight_VD[yes].float() - weight_VD[no].float())[None].to(self.weights.dtype)
                case TokenHead(tokens):
                    return embedding_VD, self._token_logits(self._output_weight(embedding_VD), tokens)
            return embedding_VD, self.weights.factory(weight_VD, None)

    def _token_logits(self, weight_VD: torch.Tensor, tokens: frozenset[int] | None) -> Linear:
        """The linear layer for the logits of `tokens`; ids between them get minus infinity."""
        if tokens is None:
            return self.weights.factory(weight_VD, None)
        weight_VD = weight_VD[: max(tokens) + 1]
        bias_V = torch.full((len(weight_VD),), -torch.inf, dtype=self.weights.dtype, device=self.weights.device)
        bias_V[[token for token in tokens if token < len(weight_VD)]] = 0.0
        return self.weights.factory(weight_VD, bias_V if bias_V.any() else None)

    def _output_weight(self, embedding_VD: torch.Tensor) -> torch.Tensor:
        if self.config.tie_word_embeddings:
            return embedding_VD
        return self.weights.tensor("lm_head.weight", embedding_VD.shape)

    def _layer(self, number: int) -> LlamaLayer:
        config, prefix = self.config, f"model.layers.{number}"
        inner = config.num_heads * config.head_dim
        with torch.inference_mode():  # it holds for one thread only
            return LlamaLayer(
                attention_norm=self._norm(f"{prefix}.input_layernorm.weight"),
                qkv=self._qkv(f"{prefix}.self_attn"),
                output=self.weights.linear(
                    (f"{prefix}.self_attn.o_proj",), inner, config.hidden_size, bias=config.biases.output
                ),
                mlp_norm=self._norm(f"{prefix}.post_attention_layernorm.weight"),
                mlp=self._mlp(f"{prefix}.mlp"),
                head_dim=config.head_dim,
                window=config.window_of(number),
                head_norms=self._head_norms(f"{prefix}.self_attn") if config.head_norms else None,
            )

    def _qkv(self, prefix: str) -> Linear:
        config = self.config
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads, "v_proj": config.num_kv_heads}
        weights, biases = [], []
        for name, count in heads.items():
            rows = count * config.head_dim
            weights.append(
                self._rotary(name, count, self.weights.tensor(f"{prefix}.{name}.weight", (rows, config.hidden_size)))
            )
            if config.biases.qkv:
                biases.append(self._rotary(name, count, self.weights.tensor(f"{prefix}.{name}.bias", (rows,))))
        return self.weights.factory(torch.cat(weights), torch.cat(biases) if biases else None)

    def _head_norms(self, prefix: str) -> HeadNorms:
        query, key = (self._head_norm(f"{prefix}.{name}.weight") for name in ("q_norm", "k_norm"))
        return HeadNorms(query, key, self.config.num_heads, self.config.num_kv_heads)

    def _head_norm(self, name: str) -> RMSNorm:
        weight_H = self.weights.tensor(name, (self.config.head_dim,))
        # A head's elements are in the order of the rows of its projection.
        weight_H = weight_H if self.weights.reader.interleaved else interleave_rows(weight_H, 1)
        return RMSNorm(weight_H, self.config.rms_norm_eps, self.rows)

    def _rotary(self, name: str, num_heads: int, weight: torch.Tensor) -> torch.Tensor:
        if name == "v_proj" or self.weights.reader.interleaved:
            return weight
        return interleave_rows(weight, num_heads)

    def _mlp(self, prefix: str) -> GatedMLP:
        hidden, inner, bias = self.config.hidden_size, self.config.intermediate_size, self.config.biases.mlp
        return GatedMLP(
            gate_up=self.weights.linear((f"{prefix}.gate_proj", f"{prefix}.up_proj"), hidden, inner, bias=bias),
            down=self.weights.linear((f"{prefix}.down_proj",), inner, hidden, bias=bias),
            kernels=self.rows,
        )

    def _norm(self, name: str) -> RMSNorm:
        return RMSNorm(self.weights.tensor(name, (self.config.hidden_size,)), self.config.rms_norm_eps, self.rows)

    def _rope_factors(self) -> torch.Tensor | None:
        name = "rope_freqs.weight"
        return self.weights.reader.tensor(name, (self.config.head_dim // 2,)) if self.weights.reader.has(name) else None


def inverse_frequencies(config: ModelConfig, factors_P: torch.Tensor | None = None) -> torch.Tensor:
    """Angle per position of each pair, shape (P,), float32. `factors_P` divide the frequencies (GGUF's rope_freqs)."""
    exponents_P = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    inverse_P = 1.0 / config.rope.theta**exponents_P
    if factors_P is not None:
        inverse_P = inverse_P / factors_P.float()
    scaling = config.rope.scaling
    if scaling is None:
        return inverse_P
    if scaling.kind == "linear":
        return inverse_P / scaling.factor
    return _llama3(inverse_P, scaling)


def _llama3(inverse_P: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1's scaling: long wavelengths are divided by the factor, short ones kept, those between interpolated."""
    wavelengths_P = 2 * math.pi / inverse_P
    original = scaling.original_max_position_embeddings
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth_P = ((original / wavelengths_P - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1 - smooth_P) * inverse_P / scaling.factor + smooth_P * inverse_P
