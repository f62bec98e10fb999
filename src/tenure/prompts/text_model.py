"""The text side of a served model: tokenizer, chat template, end tokens, sampling defaults; and how it is loaded."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tenure.checkpoints.profile import ModelProfile
from tenure.errors import CallerError
from tenure.http.errors import ApiError, invalid_request
from tenure.prompts.chat_template import ChatTemplate
from tenure.prompts.ranges import RANGES, check_number
from tenure.prompts.reranker_prompt import reranker_prompt, template_prompt
from tenure.source import ResolvedSource
from tenure.text.tokenizer import Tokenizer, load_tokenizer

logger = logging.getLogger("tenure.api")
ScorePrompt = Callable[..., str]
"""Writes a query, a document and an instruction (None for the model's own) as one prompt. Further names, as keywords,
are for a template."""


_ANSWER = "ANSWER"


@dataclass(frozen=True)
class GenerationDefaults:
    """The sampling values of a model's `generation_config.json`; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """Its `max_new_tokens`: the default `max_tokens` of chat completions."""


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
    """Renders (query, document, instruction) for a reranker that reads a prompt; None for other models."""


def load_text_model(name: str, source: ResolvedSource, defaults: Mapping[str, Any], created: int) -> TextModel:
    """Load the text side of `source`. `defaults` are the sampling values of the model's generation config.

    Without a chat template it serves completions alone; the token with which a template ends turns is an end token.
    Raises ResourceError for broken files, CallerError for a chat template that is not valid.
    """
    tokenizer = load_tokenizer(source)
    template, ends = ChatTemplate.of(tokenizer), tokenizer.eos_token_ids
    end = None if template is None else turn_end(template, tokenizer)
    if end is not None and end not in ends:
        ends = (*ends, end)
        logger.info("%s: answers end with %s too, as turns do in its chat template", name, tokenizer.token_text(end))
    return TextModel(
        name=name,
        tokenizer=tokenizer,
        template=template,
        eos_token_ids=ends,
        defaults=generation_defaults(defaults, name),
        created=created,
    )


def score_prompt_of(profile: ModelProfile, template: ChatTemplate | None) -> ScorePrompt | None:
    """The prompt of a reranker that answers yes or no: its own template's if saved as one; None for other models."""
    if profile.answer_tokens is None:
        return None
    own = template_prompt(template) if profile.saved_as_reranker and template is not None else None
    return own or reranker_prompt


def generation_defaults(values: Mapping[str, Any], name: str) -> GenerationDefaults:
    """Return the defaults among `values`; `max_new_tokens` becomes `max_tokens`.

    Values outside the range of the request field are left out, with a warning.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        field_name = "max_tokens" if key == "max_new_tokens" else key
        try:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise invalid_request("it is not a number", key)
            found[field_name] = check_number(key, value, RANGES[field_name])
        except ApiError as error:
            advice = "it is left out (--generation-config vllm leaves out all of that file)"
            logger.warning("%s: the generation config has %s = %r: %s; %s", name, key, value, error, advice)
    return GenerationDefaults(**found)


def turn_end(template: ChatTemplate, tokenizer: Tokenizer) -> int | None:
    """The id of the added token that a chat template puts right after an answer; None where there is none."""
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    try:
        _, answered, behind = template.render(turns, add_generation_prompt=False).rpartition(_ANSWER)
    except CallerError:
        return None  # the template refuses these turns
    ids = tokenizer.encode(behind.strip(), add_special_tokens=False) if answered else []
    return ids[0] if ids and tokenizer.is_added(ids[0]) else None
