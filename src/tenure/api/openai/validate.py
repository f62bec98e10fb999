"""From a decoded body to a `Job`, or a 400. Nothing of a request reaches the engine but through here.

Pure, and as slow as the body is long: a body that is not short is validated in a worker thread (`api.threads`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tenure.api.common.fields import SamplingFields
from tenure.api.common.job import Job, ReportOptions
from tenure.api.common.sampling_rules import (
    Numbers,
    check_cache_salt,
    check_choices,
    check_logprob_count,
    check_priority,
    check_prompt_logprobs,
    check_stop,
    check_stream_options,
    checked_numbers,
    refuse_unserved,
    sampling_params,
)
from tenure.api.openai.conversation import check_conversation, echoed_text, render, response_role
from tenure.api.openai.request_types import ChatRequest, CompletionRequest
from tenure.config import ApiSettings
from tenure.http.errors import invalid_request, unsupported
from tenure.prompts.text_model import TextModel
from tenure.prompts.token_prompts import TextOrIds, check_truncation, fit, split_prompts, tokenise
from tenure.prompts.window import Window
from tenure.text.detokenizer import TextOptions

DEFAULT_COMPLETION_TOKENS = 16
_MAX_PROMPT_LOGPROBS = 4_000_000
"""Of one answer: each choice has those of its prompt, and an engine computes and sends them for each."""


def chat_job(
    request: ChatRequest, model: TextModel, window: Window, settings: ApiSettings, priority: str | None = None
) -> Job:
    """Validate a chat body; `priority` is the header `X-Vllm-Priority`."""
    numbers = checked_numbers(request)
    refuse_unserved(request, numbers)
    check_conversation(request)
    draft = _draft(request, numbers, model, window, settings, priority)
    logprobs = _chat_logprobs(request, draft)
    text, ids = _chat_prompt(request, draft)
    requested = numbers.get("max_completion_tokens", numbers.get("max_tokens", model.defaults.max_tokens))
    max_tokens = fit([ids], None if requested is None else int(requested), window, "messages")
    draft.check_prompt_logprobs([ids], draft.prompt_logprobs)
    return draft.job(
        prompts=[ids],
        prompt_texts=[text] if request.return_prompt_text else [],
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=draft.prompt_logprobs,
        echo=echoed_text(request) if request.echo else None,
        role=response_role(request),
        prompt_text=bool(request.return_prompt_text),
    )


def completion_job(
    request: CompletionRequest, model: TextModel, window: Window, settings: ApiSettings, priority: str | None = None
) -> Job:
    """Validate a completion body; `priority` is the header `X-Vllm-Priority`."""
    requested, numbers = _completion_numbers(request)
    refuse_unserved(request, numbers)
    if request.suffix:
        raise invalid_request("`suffix` needs a fill-in-the-middle model.", "suffix")
    if request.prompt_embeds is not None:
        raise unsupported("prompt_embeds")
    draft = _draft(request, numbers, model, window, settings, priority)
    logprobs = None
    if "logprobs" in numbers:
        logprobs = check_logprob_count("logprobs", int(numbers["logprobs"]), settings, window.vocabulary_size)
    texts, prompts = _completion_prompts(request, draft)
    max_tokens = fit(prompts, requested, window, "prompt")
    prompt_logprobs = draft.prompt_logprobs
    if request.echo and logprobs is not None:
        prompt_logprobs = _wider(prompt_logprobs, logprobs)
    draft.check_prompt_logprobs(prompts, prompt_logprobs)
    return draft.job(
        prompts=prompts,
        prompt_texts=texts,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        echo_prompt=bool(request.echo),
    )


@dataclass(frozen=True)
class _Draft:
    """A job before its prompts: what both routes check alike, before time is spent on tokenising."""

    request: SamplingFields
    numbers: Numbers
    model: TextModel
    window: Window
    settings: ApiSettings
    n: int
    prompt_logprobs: int | None
    priority: int
    stop: tuple[str, ...]
    usage: tuple[bool, bool]
    cache_salt: str

    def check_prompt_logprobs(self, prompts: Sequence[Sequence[int]], wanted: int | None) -> None:
        """Bound what one answer may hold, since the logprobs of prompts come in one piece."""
        each = self.window.vocabulary_size if wanted == -1 else (wanted or 0) + 1
        if wanted is not None and sum(map(len, prompts)) * self.n * each > _MAX_PROMPT_LOGPROBS:
            message = (
                f"An answer holds at most {_MAX_PROMPT_LOGPROBS} logprobs of prompts, over all prompts and choices: "
                "ask for fewer alternatives, choices or prompts."
            )
            raise invalid_request(message, "prompt_logprobs")

    def prompt_tokens(self, prompts: Sequence[TextOrIds], param: str, *, add_special_tokens: bool) -> list[list[int]]:
        side = self.request.truncation_side
        truncation = check_truncation(
            self.numbers.get("truncate_prompt_tokens"),
            self.model.tokenizer.truncation_side if side is None else side,
            most=self.window.max_model_len,
            all_of_it=self.window.capacity - 1,  # room for one token is left
            limit_name=f"the window of {self.window.max_model_len} tokens",
        )
        return tokenise(
            prompts,
            self.model.tokenizer,
            self.window.vocabulary_size,
            add_special_tokens=add_special_tokens,
            truncation=truncation,
            window=self.window,
            param=param,
        )

    def job(
        self,
        *,
        prompts: Sequence[list[int]],
        prompt_texts: Sequence[str],
        max_tokens: int,
        logprobs: int | None,
        prompt_logprobs: int | None,
        echo: str | None = None,
        echo_prompt: bool = False,
        role: str = "assistant",
        prompt_text: bool = False,
    ) -> Job:
        request = self.request
        sampling = sampling_params(
            request,
            self.numbers,
            self.model,
            vocabulary_size=self.window.vocabulary_size,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            seed=self.settings.seed,
        )
        return Job(
            model=self.model,
            prompts=prompts,
            prompt_texts=prompt_texts,
            n=self.n,
            sampling=sampling,
            text=self._text_options(sampling.min_tokens, whole_tokens=logprobs is not None),
            report=self._report_options(logprobs, prompt_text=prompt_text),
            stream=bool(request.stream),
            stream_interval=int(self.numbers.get("stream_interval", 1)),
            echo=echo,
            echo_prompt=echo_prompt,
            role=role,
            priority=self.priority,
            cache_salt=self.cache_salt,
        )

    def _text_options(self, min_tokens: int, *, whole_tokens: bool) -> TextOptions:
        request = self.request
        return TextOptions(
            stop=self.stop,
            include_stop_str_in_output=bool(request.include_stop_str_in_output),
            skip_special_tokens=request.skip_special_tokens is not False,
            min_tokens=min_tokens,
            whole_tokens=whole_tokens or bool(request.return_token_ids),
        )

    def _report_options(self, logprobs: int | None, *, prompt_text: bool) -> ReportOptions:
        include_usage, continuous_usage = self.usage
        return ReportOptions(
            logprobs=logprobs is not None,
            top_logprobs=logprobs or 0,
            token_ids=bool(self.request.return_token_ids),
            tokens_as_ids=bool(self.request.return_tokens_as_token_ids),
            prompt_logprobs=self.prompt_logprobs,
            prompt_text=prompt_text,
            include_usage=include_usage,
            continuous_usage=continuous_usage,
        )


def _draft(
    request: SamplingFields,
    numbers: Numbers,
    model: TextModel,
    window: Window,
    settings: ApiSettings,
    priority: str | None,
) -> _Draft:
    return _Draft(
        request=request,
        numbers=numbers,
        model=model,
        window=window,
        settings=settings,
        n=check_choices(numbers, model, settings),
        prompt_logprobs=check_prompt_logprobs(request, numbers, settings, window.vocabulary_size),
        priority=check_priority(numbers, priority, settings),
        stop=check_stop(request.stop, settings.max_stop_strings),
        usage=check_stream_options(request),
        cache_salt=check_cache_salt(request.cache_salt),
    )


def _chat_logprobs(request: ChatRequest, draft: _Draft) -> int | None:
    count = int(draft.numbers.get("top_logprobs", 0))
    if not request.logprobs:
        if count:
            raise invalid_request("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
        return None
    return check_logprob_count("top_logprobs", count, draft.settings, draft.window.vocabulary_size)


def _chat_prompt(request: ChatRequest, draft: _Draft) -> tuple[str, list[int]]:
    text = render(request, draft.model, "use /v1/completions")
    (ids,) = draft.prompt_tokens([text], "messages", add_special_tokens=bool(request.add_special_tokens))
    return text, ids


def _completion_numbers(request: CompletionRequest) -> tuple[int, Numbers]:
    """Return the tokens asked for and the other numbers; 0 tokens are for echo alone."""
    if request.max_tokens == 0 and request.echo:
        numbers = checked_numbers(request, skip="max_tokens")
        return 0, numbers
    numbers = checked_numbers(request)
    return int(numbers.get("max_tokens", DEFAULT_COMPLETION_TOKENS)), numbers


def _completion_prompts(request: CompletionRequest, draft: _Draft) -> tuple[list[str], list[list[int]]]:
    given = split_prompts(request.prompt, draft.settings.max_prompts)
    prompts = draft.prompt_tokens(given, "prompt", add_special_tokens=request.add_special_tokens is not False)
    if not request.echo:
        return [], prompts
    cut = "truncate_prompt_tokens" in draft.numbers
    skip = request.skip_special_tokens is not False
    decode = draft.model.tokenizer.decode
    texts = [
        text if isinstance(text, str) and not cut else decode(ids, skip_special_tokens=skip)
        for text, ids in zip(given, prompts, strict=True)
    ]
    return texts, prompts


def _wider(first: int | None, second: int) -> int:
    """The larger of two numbers of logprobs, where -1 is all."""
    if first is None:
        return second
    return -1 if -1 in (first, second) else max(first, second)
