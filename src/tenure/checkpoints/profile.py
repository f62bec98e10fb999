"""The tasks of a model and the settings for them, read from its files by engines and API processes alike.

Reads no weights and needs no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from tenure.checkpoints.encoder_config import (
    ENCODER_TYPES,
    EncoderConfig,
    EncoderHead,
    class_labels,
    encoder_head,
    read_encoder_config,
)
from tenure.checkpoints.json_files import Raw, read_object, sensible, shortest
from tenure.checkpoints.late_interaction import LateInteraction, read_late_interaction
from tenure.checkpoints.model_config import DECODER_TYPES, read_config
from tenure.checkpoints.sentence_modules import (
    PoolingMode,
    SentenceModules,
    UsageAdvice,
    matryoshka_sizes,
    read_advice,
    read_answers,
    read_modules,
    read_token_masks,
)
from tenure.checkpoints.tokens import answer_words
from tenure.config import TASKS
from tenure.errors import CallerError, ResourceError
from tenure.pooling import PoolingTask
from tenure.source import ResolvedSource, SourceKind

QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""What sentence-transformers calls the prompts of the two sides of a search; the first that a model has is taken."""


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
    """The tasks of a model and the settings for them."""

    tasks: tuple[str, ...]
    """The supported tasks, the model's main one first: `generate`, or `score` and the values of `PoolingTask`."""
    whole_texts: bool = False
    """An encoder: attention is bidirectional, so a text cannot be computed in chunks."""
    scoring: Scoring | None = None
    late_interaction: LateInteraction = field(default_factory=LateInteraction)
    """Settings for queries and documents when `scoring` is late interaction."""
    pooling: PoolingMode = PoolingMode.MEAN
    normalize: bool = False
    """Embeddings are normalised to length 1, unless a request turns it off."""
    embedding_size: int = 0
    """Width of an embedding; 0 for a model without embeddings."""
    dimensions: tuple[int, ...] = ()
    """The smaller embedding sizes for which it was trained (Matryoshka)."""
    max_length: int | None = None
    """Most tokens of a text, special ones included: an encoder's window, or less if its files recommend less. None:
    the model's window."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts by name, such as `query`; a prompt is put before a text."""
    default_prompt: str | None = None
    """The name of the prompt for requests that name none."""
    labels: tuple[str, ...] = ()
    """The names of its classes, by number."""
    answer_tokens: tuple[str, str] | None = None
    """For a decoder that reranks: its tokens for no and yes, whose logits are compared."""
    saved_as_reranker: bool = False
    """It has a LogitScore module, so its chat template takes a query and a document."""

    @property
    def generates(self) -> bool:
        return "generate" in self.tasks

    @property
    def pooling_task(self) -> PoolingTask:
        """The default task of `/pooling`; only for a model that pools."""
        return next(PoolingTask(task) for task in self.tasks if task in set(PoolingTask))


def read_profile(source: ResolvedSource, task: str | None = None) -> ModelProfile:
    """Read the profile of a model. `task`, one of `config.TASKS`, is the operator's choice where there is one.

    Raises CallerError for a model that is not served or cannot do the task, ResourceError for a file that cannot be
    read or makes no sense.
    """
    if task is not None and task not in TASKS:
        raise CallerError(f"no task {task!r} (there are: {', '.join(TASKS)})")
    profile = _read_own(source)
    if profile.generates and task == PoolingTask.EMBED:
        # Works for any decoder, whether or not it was trained for embeddings.
        profile = _decoder_embedding(source, {}, SentenceModules(pooling=PoolingMode.LAST, normalize=True))
    elif profile.generates and task in ("score", "classify"):
        profile = _reranker(source)
    if task is None or task == profile.tasks[0]:
        return profile
    if task not in profile.tasks:
        raise CallerError(f"{source.path}: the model cannot do {task!r}; what it can do: {', '.join(profile.tasks)}")
    if task == "token_embed":
        return _with_token_embeddings(source, profile)
    return replace(profile, tasks=(task, *(other for other in profile.tasks if other != task)))


def _read_own(source: ResolvedSource) -> ModelProfile:
    """The profile by the model's files alone."""
    if source.kind is SourceKind.GGUF:
        return ModelProfile(tasks=("generate",))
    raw = read_object(source.path / "config.json")
    if encoder_head(raw) is not None:
        return _encoder(source.path, raw, read_encoder_config(source.path))
    if raw.get("model_type") in ENCODER_TYPES:
        read_encoder_config(source.path)  # raises: it says which heads of this type are served
    if raw.get("model_type") not in DECODER_TYPES:
        raise CallerError(
            f"{source.path}: models of type {raw.get('model_type')!r} are not served; decoders that are: "
            f"{', '.join(DECODER_TYPES)}; encoders: {', '.join(ENCODER_TYPES)}"
        )
    return _decoder(source, raw)


def _decoder(source: ResolvedSource, raw: Raw) -> ModelProfile:
    architectures = raw.get("architectures")
    answers = read_answers(source.path)
    words = raw.get("classifier_from_token") if answers is None else answer_words(source, answers)
    if words is not None:
        if not (isinstance(words, list) and len(words) == 2 and all(isinstance(word, str) for word in words)):
            raise CallerError(f"{source.path}: a score from the tokens {words!r} is not served (of no and yes, it is)")
        return replace(_reranker(source, *words), saved_as_reranker=answers is not None)
    if isinstance(architectures, list) and any("ForSequenceClassification" in str(name) for name in architectures):
        if raw.get("problem_type") == "multi_label_classification":
            raise CallerError(
                f"{source.path}: decoders whose classes exclude each other are served, not those of other kinds"
            )
        with sensible(source.path / "config.json", "its classes"):
            return _classes(source.path, class_labels(raw), None)
    modules = read_modules(source.path)
    return ModelProfile(tasks=("generate",)) if modules is None else _decoder_embedding(source, raw, modules)


def _reranker(source: ResolvedSource, no: str = "no", yes: str = "yes") -> ModelProfile:
    """The profile of a decoder that reranks by the logits of two tokens."""
    advice = _advice(source)
    return ModelProfile(
        tasks=("score", "classify"),
        scoring=Scoring.CROSS_ENCODER,
        max_length=advice.max_length,
        prompts=advice.prompts,
        default_prompt=advice.default_prompt,
        labels=(yes,),
        answer_tokens=(no, yes),
    )


def _classes(folder: Path, labels: tuple[str, ...], window: int | None) -> ModelProfile:
    """A classifier of texts, which scores pairs by its only class; an encoder if it has a window."""
    one = len(labels) == 1
    return ModelProfile(
        tasks=("score", "classify") if one else ("classify",),
        whole_texts=window is not None,
        scoring=Scoring.CROSS_ENCODER if one else None,
        max_length=shortest(window, read_advice(folder).max_length),
        labels=labels,
    )


def _decoder_embedding(source: ResolvedSource, raw: Raw, modules: SentenceModules) -> ModelProfile:
    if modules.pooling is not PoolingMode.LAST or modules.dense:
        raise CallerError(
            f"{source.path}: of decoders the last token is pooled (lasttoken), and no Dense module may follow: "
            "what is computed of a text in chunks, or found in the cache, has no states of its other tokens"
        )
    embedder = _embedder(raw, read_config(source).hidden_size, _advice(source), None)
    return replace(
        embedder,
        tasks=("embed", "score"),
        scoring=Scoring.BI_ENCODER,
        pooling=PoolingMode.LAST,
        normalize=modules.normalize,
    )


def _embedder(raw: Raw, size: int, advice: UsageAdvice, window: int | None) -> ModelProfile:
    """The fields that all embedding models share. `window` is None for decoders."""
    return ModelProfile(
        tasks=(),
        whole_texts=window is not None,
        embedding_size=size,
        dimensions=matryoshka_sizes(raw, size),
        max_length=shortest(window, advice.max_length),
        prompts=advice.prompts,
        default_prompt=advice.default_prompt,
    )


def _advice(source: ResolvedSource) -> UsageAdvice:
    return read_advice(source.path) if source.kind is SourceKind.FOLDER else UsageAdvice()


def _encoder(folder: Path, raw: Raw, config: EncoderConfig) -> ModelProfile:
    match config.head:
        case EncoderHead.NONE:
            return _embedding(folder, raw, config)
        case EncoderHead.TOKEN_PROJECTION:
            return _late_interaction(folder, raw, config, config.projection_size)
        case EncoderHead.CLASSES:
            return _classes(folder, config.classes.labels, config.window)
        case EncoderHead.TOKEN_CLASSES:
            return replace(
                _classes(folder, config.classes.labels, config.window), tasks=("token_classify",), scoring=None
            )


def _embedding(folder: Path, raw: Raw, config: EncoderConfig) -> ModelProfile:
    modules = read_modules(folder)
    if modules is None:
        # sentence-transformers' default for such a folder: mean pooling, not normalised.
        modules = SentenceModules(pooling=PoolingMode.MEAN)
    if modules.pooling is None:
        return _late_interaction(folder, raw, config, _width(modules, config))
    return replace(
        _embedder(raw, _width(modules, config), read_advice(folder), config.window),
        tasks=("embed", "token_embed", "score"),
        scoring=Scoring.BI_ENCODER,
        pooling=modules.pooling,
        normalize=modules.normalize,
    )


def _width(modules: SentenceModules, config: EncoderConfig) -> int:
    """Numbers in an embedding after all linear layers, each of which must fit the one before."""
    width = config.hidden_size
    for dense in modules.dense:
        if dense.inputs != width:
            raise ResourceError(f"{dense.folder}/config.json: {dense.inputs} inputs, but what comes in has {width}")
        width = dense.outputs
    return width


def _late_interaction(folder: Path, raw: Raw, config: EncoderConfig, size: int) -> ModelProfile:
    advice = read_advice(folder, sides=True)
    late = read_late_interaction(folder, read_token_masks(folder), config)
    recommended = advice.max_length
    if recommended is not None and late.longest > recommended:
        # The side without a length of its own keeps to what is recommended for all texts.
        query, document = late.query_length or recommended, late.document_length or recommended
        late = replace(late, query_length=query, document_length=document)
        # Lengths of its own win over what it recommends for all texts.
        advice = replace(advice, max_length=late.longest)
    return replace(
        _embedder(raw, size, advice, config.window),
        tasks=("token_embed", "score"),
        scoring=Scoring.LATE_INTERACTION,
        late_interaction=late,
        # MaxSim compares directions.
        normalize=True,
    )


def _with_token_embeddings(source: ResolvedSource, profile: ModelProfile) -> ModelProfile:
    """The profile of an embedding model used for late interaction; the modules after its pooling are ignored."""
    size = read_encoder_config(source.path).hidden_size
    return replace(
        profile,
        tasks=("token_embed", "score"),
        scoring=Scoring.LATE_INTERACTION,
        normalize=True,
        embedding_size=size,
        dimensions=(),
    )
