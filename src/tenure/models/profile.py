"""What a model can do and how it is to be used, read from its files: engines and API processes both go by it.

No torch here, and no weights are touched.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from tenure.errors import CallerError, ResourceError
from tenure.models.config import DECODER_TYPES
from tenure.models.encoder_config import ENCODER_TYPES, EncoderConfig, EncoderHead, encoder_head, read_encoder_config
from tenure.models.json_files import Raw, read_object
from tenure.models.modules import PoolingMode, SentenceModules, matryoshka_sizes, read_advice, read_modules
from tenure.source import ResolvedSource, SourceKind

__all__ = ["TASKS", "ModelProfile", "PoolingMode", "Scoring", "read_profile"]

TASKS = ("generate", "embed", "token_embed", "classify", "score")
"""What an operator may say that a model is for."""


class Scoring(StrEnum):
    """How a model scores a pair of texts."""

    CROSS_ENCODER = "cross_encoder"
    """It reads both together; the score is its only class."""
    BI_ENCODER = "bi_encoder"
    """It embeds each; the score is the cosine of the two."""
    LATE_INTERACTION = "late_interaction"
    """It embeds each token; the score is the sum, over the query's tokens, of the best match (MaxSim)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """See the module's docstring."""

    tasks: tuple[str, ...]
    """What routes may ask for, the model's own first: `generate`, or `score` and the values of `PoolingTask`."""
    whole_texts: bool = False
    """An encoder: every token sees the whole text, so that it must be read in one piece."""
    scoring: Scoring | None = None
    pooling: PoolingMode = PoolingMode.MEAN
    normalize: bool = False
    """Embeddings have length 1, unless a request asks for them as they are."""
    embedding_size: int = 0
    """Numbers in an embedding; 0 for a model that gives none."""
    dimensions: tuple[int, ...] = ()
    """The shorter sizes that it was trained for (Matryoshka)."""
    max_length: int | None = None
    """Tokens of a text, special ones included: of an encoder always what it can read at most, or less where its authors
    recommend less. None leaves it to the model's window."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """By name, what goes in front of a text for a certain use, such as `query`."""
    default_prompt: str | None = None
    """The name of the one that goes in front of every text that names none."""
    labels: tuple[str, ...] = ()
    """Of its classes, by number."""
    answer_tokens: tuple[str, str] | None = None
    """A decoder that answers whether a document fits a query: its words for no and yes."""

    @property
    def generates(self) -> bool:
        return "generate" in self.tasks


def read_profile(source: ResolvedSource, task: str | None = None) -> ModelProfile:
    """Read what a model can do. `task`, one of TASKS, says what it is for when its files leave a choice.

    Raises CallerError for a model that is not served or cannot do the task, ResourceError for a file that cannot be
    read or makes no sense.
    """
    if task is not None and task not in TASKS:
        raise CallerError(f"no task {task!r} (there are: {', '.join(TASKS)})")
    profile = _read_own(source)
    if task is None or task == profile.tasks[0]:
        return profile
    if task not in profile.tasks:
        raise CallerError(f"{source.path}: the model cannot do {task!r}; what it can do: {', '.join(profile.tasks)}")
    if task == "token_embed":
        return _with_token_embeddings(source, profile)
    return replace(profile, tasks=(task, *(other for other in profile.tasks if other != task)))


def _read_own(source: ResolvedSource) -> ModelProfile:
    """What the files say."""
    if source.kind is SourceKind.GGUF:
        return ModelProfile(tasks=("generate",))
    raw = read_object(source.path / "config.json")
    head = encoder_head(raw)
    if head is not None:
        return _ENCODERS[head](source.path, raw, read_encoder_config(source.path))
    if raw.get("model_type") in ENCODER_TYPES:
        read_encoder_config(source.path)  # raises: it says which heads of this type are served
    if raw.get("model_type") not in DECODER_TYPES:
        raise CallerError(
            f"{source.path}: models of type {raw.get('model_type')!r} are not served; decoders that are: "
            f"{', '.join(DECODER_TYPES)}; encoders: {', '.join(ENCODER_TYPES)}"
        )
    return ModelProfile(tasks=("generate",))


def _embedding(folder: Path, raw: Raw, config: EncoderConfig) -> ModelProfile:
    modules = read_modules(folder)
    if modules is None:
        # As sentence-transformers reads such a folder: the mean, at whatever length it has.
        modules = SentenceModules(pooling=PoolingMode.MEAN)
    if modules.pooling is None:
        return _late_interaction(folder, raw, config, _width(modules, config))
    size = _width(modules, config)
    advice = read_advice(folder)
    return ModelProfile(
        tasks=("embed", "token_embed", "score"),
        whole_texts=True,
        scoring=Scoring.BI_ENCODER,
        pooling=modules.pooling,
        normalize=modules.normalize,
        embedding_size=size,
        dimensions=matryoshka_sizes(raw, size),
        max_length=_shorter(config.window, advice.max_length),
        prompts=advice.prompts,
        default_prompt=advice.default_prompt,
    )


def _width(modules: SentenceModules, config: EncoderConfig) -> int:
    """Numbers in an embedding after all linear layers, each of which must fit the one before."""
    width = config.hidden_size
    for dense in modules.dense:
        if dense.inputs != width:
            raise ResourceError(f"{dense.folder}/config.json: {dense.inputs} inputs, but what comes in has {width}")
        width = dense.outputs
    return width


def _projected_tokens(folder: Path, raw: Raw, config: EncoderConfig) -> ModelProfile:
    return _late_interaction(folder, raw, config, config.projection_size)


def _late_interaction(folder: Path, raw: Raw, config: EncoderConfig, size: int) -> ModelProfile:
    advice = read_advice(folder)
    return ModelProfile(
        tasks=("token_embed", "score"),
        whole_texts=True,
        scoring=Scoring.LATE_INTERACTION,
        # MaxSim compares directions.
        normalize=True,
        embedding_size=size,
        dimensions=matryoshka_sizes(raw, size),
        max_length=_shorter(config.window, advice.max_length),
        prompts=advice.prompts,
        default_prompt=advice.default_prompt,
    )


def _with_token_embeddings(source: ResolvedSource, profile: ModelProfile) -> ModelProfile:
    """An embedding model whose tokens are compared one by one. What follows its pooling has no say in it."""
    size = read_encoder_config(source.path).hidden_size
    return replace(
        profile,
        tasks=("token_embed", "score"),
        scoring=Scoring.LATE_INTERACTION,
        normalize=True,
        embedding_size=size,
        dimensions=(),
    )


def _classifier(folder: Path, raw: Raw, config: EncoderConfig) -> ModelProfile:  # noqa: ARG001 - one signature for all
    one = len(config.labels) == 1
    return ModelProfile(
        tasks=("score", "classify") if one else ("classify",),
        whole_texts=True,
        scoring=Scoring.CROSS_ENCODER if one else None,
        max_length=_shorter(config.window, read_advice(folder).max_length),
        labels=config.labels,
    )


def _token_classifier(folder: Path, raw: Raw, config: EncoderConfig) -> ModelProfile:  # noqa: ARG001
    return ModelProfile(
        tasks=("token_classify",),
        whole_texts=True,
        max_length=_shorter(config.window, read_advice(folder).max_length),
        labels=config.labels,
    )


_ENCODERS: Mapping[EncoderHead, Callable[[Path, Raw, EncoderConfig], ModelProfile]] = MappingProxyType(
    {
        EncoderHead.NONE: _embedding,
        EncoderHead.TOKEN_PROJECTION: _projected_tokens,
        EncoderHead.CLASSES: _classifier,
        EncoderHead.TOKEN_CLASSES: _token_classifier,
    }
)


def _shorter(window: int, recommended: int | None) -> int:
    return window if recommended is None else min(window, recommended)
