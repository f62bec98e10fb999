"""The text side of a served model: tokenizer, chat template, end tokens, sampling defaults; and how it is loaded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tenure.checkpoints.profile import ModelProfile
from tenure.errors import ResourceError
from tenure.prompts.chat_template import ChatTemplate
from tenure.prompts.ranges import RANGES
from tenure.prompts.reranker_prompt import reranker_prompt
from tenure.prompts.score_template import template_prompt
from tenure.source import ResolvedSource
from tenure.text.tokenizer import Tokenizer, load_tokenizer

ScorePrompt = Callable[[str, str, str | None], str]
"""Writes a query, a document and an instruction (None for the model's own) as one prompt."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class GenerationDefaults:
    """The sampling values of a model's `generation_config.json`; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """Its `max_new_tokens`: how long a chat answer may be when the request says nothing."""


@dataclass(frozen=True)
class TextModel:
    """The text side of a served model."""

    name: str
    """Its first served name: what `model` says in replies."""
    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    eos_token_ids: tuple[int, ...] = ()
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    created: int = 0
    """Unix seconds, as `/v1/models` reports it."""
    profile: ModelProfile = field(default_factory=lambda: ModelProfile(tasks=("generate",)))
    """What the model can do, and how it is to be used."""
    score_prompt: ScorePrompt | None = None
    """For a model that reads a pair as a prompt; None for one that reads it as its tokenizer joins it."""


def load_text_model(name: str, source: ResolvedSource, defaults: Mapping[str, float], created: int) -> TextModel:
    """Load what `source` says of text. `defaults` are the sampling values of the model's generation config.

    A model without a chat template serves completions alone. Raises ResourceError for broken files and for defaults
    that a request could not ask for, CallerError for a chat template that is not valid.
    """
    tokenizer = load_tokenizer(source)
    return TextModel(
        name=name,
        tokenizer=tokenizer,
        template=ChatTemplate.of(tokenizer),
        eos_token_ids=tokenizer.eos_token_ids,
        defaults=generation_defaults(defaults, name),
        created=created,
    )


def score_prompt_of(profile: ModelProfile, template: ChatTemplate | None) -> ScorePrompt | None:
    """How a model that answers yes or no is asked: by its own template where that is made for it. None for others."""
    if profile.answer_tokens is None:
        return None
    own = template_prompt(template) if profile.saved_as_judge and template is not None else None
    return own or reranker_prompt


def generation_defaults(values: Mapping[str, float], name: str) -> GenerationDefaults:
    """Return the defaults among `values`, by their API names; `max_new_tokens` is the length of a chat answer.

    Raises ResourceError for a value out of the field's range.
    """
    found = {key: values[key] for key in _SAMPLING if key in values}
    if "max_new_tokens" in values:
        found["max_tokens"] = values["max_new_tokens"]
    for key, value in found.items():
        allowed = RANGES[key]
        if not allowed.admits(value) or (allowed.whole and not float(value).is_integer()):
            raise ResourceError(f"{name}: the generation config has {key} = {value}; it must be {allowed.describe()}")
    return GenerationDefaults(
        temperature=found.get("temperature"),
        top_p=found.get("top_p"),
        top_k=_whole(found.get("top_k")),
        min_p=found.get("min_p"),
        repetition_penalty=found.get("repetition_penalty"),
        max_tokens=_whole(found.get("max_tokens")),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
