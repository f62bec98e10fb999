"""What a model can do and how it is to be used, read from its files: engines and API processes both go by it.

No torch here, and no weights are touched.
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
from tenure.checkpoints.json_files import Raw, read_object, sensible
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
    """See the module's docstring."""

    tasks: tuple[str, ...]
    """What routes may ask for, the model's own first: `generate`, or `score` and the values of `PoolingTask`."""
    whole_texts: bool = False
    """An encoder: every token sees the whole text, so that it must be read in one piece."""
    scoring: Scoring | None = None
    late_interaction: LateInteraction = field(default_factory=LateInteraction)
    """How queries and documents are read where tokens are compared."""
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
    saved_as_judge: bool = False
    """A LogitScore module makes it one, so that its chat template is made for a query and a document."""

    @property
    def generates(self) -> bool:
        return "generate" in self.tasks

    @property
    def pooling_task(self) -> PoolingTask:
        """What it does with a text when nothing is said; for a model that pools."""
        return next(PoolingTask(task) for task in self.tasks if task in set(PoolingTask))


def read_profile(source: ResolvedSource, task: str | None = None) -> ModelProfile:
    """Read what a model can do. `task`, one of `config.TASKS`, says what it is for when its files leave a choice.

    Raises CallerError for a model that is not served or cannot do the task, ResourceError for a file that cannot be
    read or makes no sense.
    """
    if task is not None and task not in TASKS:
        raise CallerError(f"no task {task!r} (there are: {', '.join(TASKS)})")
    profile = _read_own(source)
    if profile.generates and task == PoolingTask.EMBED:
        # Any decoder can be read so, whatever its embeddings are worth.
        profile = _decoder_embedding(source, {}, SentenceModules(pooling=PoolingMode.LAST, normalize=True))
    elif profile.generates and task in ("score", "classify"):
        profile = _judge(source)
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
        return replace(_judge(source, *words), saved_as_judge=answers is not None)
    if isinstance(architectures, list) and any("ForSequenceClassification" in str(name) for name in architectures):
        return _decoder_classifier(source.path, raw)
    modules = read_modules(source.path)
    return ModelProfile(tasks=("generate",)) if modules is None else _decoder_embedding(source, raw, modules)


def _judge(source: ResolvedSource, no: str = "no", yes: str = "yes") -> ModelProfile:
    """A decoder that is asked whether a document fits a query."""
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
        max_length=_shorter(window, read_advice(folder).max_length),
        labels=labels,
    )


def _decoder_classifier(folder: Path, raw: Raw) -> ModelProfile:
    if raw.get("problem_type") == "multi_label_classification":
        raise CallerError(f"{folder}: decoders whose classes exclude each other are served, not those of other kinds")
    with sensible(folder / "config.json", "its classes"):
        return _classes(folder, class_labels(raw), None)


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
    """What all embedding models have, to be completed. Encoders have a window."""
    return ModelProfile(
        tasks=(),
        whole_texts=window is not None,
        embedding_size=size,
        dimensions=matryoshka_sizes(raw, size),
        max_length=_shorter(window, advice.max_length),
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
        # As sentence-transformers reads such a folder: the mean, at whatever length it has.
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


def _shorter(window: int | None, recommended: int | None) -> int | None:
    return min((length for length in (window, recommended) if length is not None), default=None)
