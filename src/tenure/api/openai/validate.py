"""From a decoded body to a `Job`, or a 400.

Pure, and as slow as the body is long.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tenure.api.common.fields import SamplingFields
from tenure.api.common.job import Job, KVTransfer, ReportOptions
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
from tenure.api.openai.kv_transfer import check_kv_transfer, check_tickets, narrowed
from tenure.api.openai.request_types import ChatRequest, CompletionRequest
from tenure.config import ApiSettings
from tenure.http.errors import invalid_request, unsupported
from tenure.prompts.text_model import TextModel
from tenure.prompts.token_prompts import TextOrIds, Window, check_truncation, fit, split_prompts, tokenise
from tenure.sampling import SamplingParams
from tenure.text.detokenizer import TextOptions
from tenure.token_lists import TokenLists
from tenure.wire.token_masks import PackedSampling, detach

DEFAULT_COMPLETION_TOKENS = 16
_MAX_PROMPT_LOGPROBS = 4_000_000
"""Of one answer: each choice has those of its prompt, and an engine computes and sends them for each."""


def chat_job(
    request: ChatRequest, model: TextModel, window: Window, settings: ApiSettings, priority: str | None
) -> Job:
    """Validate a chat body; `priority` is the header `X-Vllm-Priority`."""
    transfer = check_kv_transfer(request, settings)
    body = _Body(request, narrowed(checked_numbers(request), transfer), model, window, settings, transfer)
    refuse_unserved(request, body.numbers)
    check_conversation(request)
    draft = body.draft(priority)
    logprobs = _chat_logprobs(request, body)
    text = render(request, model, "use /v1/completions")
    prompts = body.prompt_tokens([text], "messages", add_special_tokens=bool(request.add_special_tokens))
    requested = body.numbers.get("max_completion_tokens", body.numbers.get("max_tokens", model.defaults.max_tokens))
    max_tokens = fit(prompts, None if requested is None else int(requested), window, "messages")
    return replace(
        body.job(draft, prompts, max_tokens, logprobs, draft.report.prompt_logprobs),
        prompt_texts=[text] if request.return_prompt_text else [],
        echo=echoed_text(request) if request.echo else None,
        role=response_role(request),
    )


def completion_job(
    request: CompletionRequest, model: TextModel, window: Window, settings: ApiSettings, priority: str | None
) -> Job:
    """Validate a completion body; `priority` is the header `X-Vllm-Priority`."""
    only_echo = request.max_tokens == 0 and bool(request.echo)
    transfer = check_kv_transfer(request, settings)
    numbers = narrowed(checked_numbers(request, skip="max_tokens" if only_echo else ""), transfer)
    body = _Body(request, numbers, model, window, settings, transfer)
    refuse_unserved(request, numbers)
    if request.suffix:
        raise invalid_request("`suffix` needs a fill-in-the-middle model.", "suffix")
    if request.prompt_embeds is not None:
        raise unsupported("prompt_embeds")
    draft = body.draft(priority)
    logprobs = None
    if "logprobs" in numbers:
        logprobs = check_logprob_count("logprobs", int(numbers["logprobs"]), settings, window.vocabulary_size)
    given = split_prompts(request.prompt, settings.max_prompts)
    prompts = body.prompt_tokens(given, "prompt", add_special_tokens=request.add_special_tokens is not False)
    requested = 0 if only_echo else int(numbers.get("max_tokens", DEFAULT_COMPLETION_TOKENS))
    max_tokens = fit(prompts, requested, window, "prompt")
    prompt_logprobs = draft.report.prompt_logprobs
    if request.echo and logprobs is not None:
        prompt_logprobs = _wider(prompt_logprobs, logprobs)
    return replace(
        body.job(draft, prompts, max_tokens, logprobs, prompt_logprobs),
        prompt_texts=_echoed_prompts(given, prompts, body) if request.echo else [],
        echo_prompt=bool(request.echo),
    )


@dataclass(frozen=True)
class _Body:
    """A body with its context; `numbers` are the checked numeric fields of the request."""

    request: SamplingFields
    numbers: Numbers
    model: TextModel
    window: Window
    settings: ApiSettings
    transfer: KVTransfer

    def draft(self, priority: str | None) -> Job:
        """Check what both routes share and return a job without prompts: refuses before time is spent on tokenizing."""
        request, numbers, settings = self.request, self.numbers, self.settings
        n = check_choices(numbers, self.model, settings)
        prompt_logprobs = check_prompt_logprobs(request, numbers, settings, self.window.vocabulary_size)
        include_usage, continuous_usage = check_stream_options(request)
        return Job(
            model=self.model.name,
            n=n,
            text=TextOptions(
                stop=check_stop(request.stop, settings.max_stop_strings),
                include_stop_str_in_output=bool(request.include_stop_str_in_output),
                skip_special_tokens=request.skip_special_tokens is not False,
            ),
            report=ReportOptions(
                token_ids=bool(request.return_token_ids),
                tokens_as_ids=bool(request.return_tokens_as_token_ids),
                prompt_logprobs=prompt_logprobs,
                include_usage=include_usage,
                continuous_usage=continuous_usage,
                stream_interval=int(numbers.get("stream_interval", 1)),
            ),
            stream=bool(request.stream),
            sampling=PackedSampling(SamplingParams(max_tokens=0)),  # until there are prompts
            priority=check_priority(numbers, priority, settings),
            cache_salt=check_cache_salt(request.cache_salt),
            transfer=self.transfer,
        )

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
        draft: Job,
        prompts: Sequence[list[int]],
        max_tokens: int,
        logprobs: int | None,
        prompt_logprobs: int | None,
    ) -> Job:
        """The complete job. `logprobs` and `prompt_logprobs`: alternatives that the engine computes; None for none."""
        check_tickets(self.transfer, len(prompts))
        _check_prompt_logprobs(prompts, draft.n, prompt_logprobs, self.window.vocabulary_size)
        sampling = sampling_params(
            self.request,
            self.numbers,
            self.model,
            vocabulary_size=self.window.vocabulary_size,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            seed=self.settings.seed,
        )
        whole_tokens = logprobs is not None or draft.report.token_ids
        return replace(
            draft,
            prompts=TokenLists.of(prompts),
            sampling=detach(sampling),
            text=replace(draft.text, min_tokens=sampling.min_tokens, whole_tokens=whole_tokens),
            report=replace(draft.report, logprobs=logprobs is not None, top_logprobs=logprobs or 0),
        )


def _check_prompt_logprobs(prompts: Sequence[Sequence[int]], n: int, wanted: int | None, vocabulary_size: int) -> None:
    """Raise a 400 when the logprobs of the prompts, which are sent in one message, would be too many."""
    each = vocabulary_size if wanted == -1 else (wanted or 0) + 1
    if wanted is not None and sum(map(len, prompts)) * n * each > _MAX_PROMPT_LOGPROBS:
        message = (
            f"An answer holds at most {_MAX_PROMPT_LOGPROBS} logprobs of prompts, over all prompts and choices: "
            "ask for fewer alternatives, choices or prompts."
        )
        raise invalid_request(message, "prompt_logprobs")


def _chat_logprobs(request: ChatRequest, body: _Body) -> int | None:
    count = int(body.numbers.get("top_logprobs", 0))
    if not request.logprobs:
        if count:
            raise invalid_request("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
        return None
    return check_logprob_count("top_logprobs", count, body.settings, body.window.vocabulary_size)


def _echoed_prompts(given: Sequence[TextOrIds], prompts: Sequence[list[int]], body: _Body) -> list[str]:
    """The text of each prompt for `echo`: as given, or decoded when it was given as ids or truncated."""
    cut = "truncate_prompt_tokens" in body.numbers
    skip = body.request.skip_special_tokens is not False
    decode = body.model.tokenizer.decode
    return [
        text if isinstance(text, str) and not cut else decode(ids, skip_special_tokens=skip)
        for text, ids in zip(given, prompts, strict=True)
    ]


def _wider(first: int | None, second: int) -> int:
    """The larger of two numbers of logprobs, where -1 is all."""
    if first is None:
        return second
    return -1 if -1 in (first, second) else max(first, second)
