"""Logprobs as the responses show them: OpenAI's chat form, the legacy completions form, vLLM's prompt form."""

from collections.abc import Iterator, Sequence
from itertools import islice

from tenure.api.common.answer import ItemAnswer
from tenure.api.common.job import Job
from tenure.api.common.json_parts import list_parts
from tenure.api.openai.response_types import CompletionLogprobs, PromptLogprob, PromptLogprobs, TokenLogprob, TopLogprob
from tenure.sampling import MINUS_INFINITY, TokenLogprobs
from tenure.text.detokenizer import TokenBytes, display_token


def chat_logprobs(
    tokenizer: TokenBytes, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], *, as_ids: bool, itself: bool
) -> Iterator[TokenLogprob]:
    """Yield one entry per token, with all alternatives reported for it; with `itself` the token is one of them."""

    def entry(token: int, logprob: float) -> tuple[str, float, list[int]]:
        shown = display_token(tokenizer, token, as_ids)
        return shown.text, _finite(logprob), shown.bytes

    for token, reported in zip(tokens, logprobs, strict=True):
        pairs = list(_pairs(reported))
        if itself and token not in reported.ids:
            pairs.insert(0, (token, reported.logprob))
        top = [TopLogprob(*entry(*pair)) for pair in pairs]
        yield TokenLogprob(*entry(token, reported.logprob), top)


def completion_logprobs(
    tokenizer: TokenBytes,
    tokens: Sequence[int],
    logprobs: Sequence[TokenLogprobs | None],
    offsets: Sequence[int],
    *,
    as_ids: bool,
    limit: int | None = None,
) -> CompletionLogprobs:
    """Four parallel lists; the alternatives of a token always include the token itself.

    `limit` cuts the alternatives to that many; a None among `logprobs` is the first token of a prompt.
    """
    tops: list[dict[str, float] | None] = []
    values: list[float | None] = []
    texts = [display_token(tokenizer, token, as_ids).text for token in tokens]
    for text, reported in zip(texts, logprobs, strict=True):
        if reported is None:
            tops.append(None)
            values.append(None)
            continue
        top = {text: _finite(reported.logprob)}
        for token, logprob in _pairs(reported, limit):
            top.setdefault(display_token(tokenizer, token, as_ids).text, logprob)
        tops.append(top)
        values.append(_finite(reported.logprob))
    return CompletionLogprobs(text_offset=list(offsets), token_logprobs=values, tokens=texts, top_logprobs=tops)


def _prompt_logprobs(
    tokenizer: TokenBytes, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None], *, as_ids: bool, limit: int
) -> Iterator[dict[str, PromptLogprob] | None]:
    """Yield one mapping per prompt token, by token id: the token itself, then its `limit` best (-1: all)."""
    for token, reported in zip(tokens, logprobs, strict=True):
        if reported is None:
            yield None
            continue
        shown = display_token(tokenizer, token, as_ids).text
        row = {str(token): PromptLogprob(_finite(reported.logprob), reported.rank, shown)}
        for rank, (other, logprob) in enumerate(_pairs(reported, limit), 1):
            text = display_token(tokenizer, other, as_ids).text
            row.setdefault(str(other), PromptLogprob(logprob, rank, text))
        yield row


def shown_prompt_logprobs(job: Job, tokenizer: TokenBytes, index: int, record: ItemAnswer) -> PromptLogprobs | None:
    """The logprobs of the prompt of choice `index`, for `json_parts`, where the request asks for them."""
    limit = job.report.prompt_logprobs
    if limit is None or record.prompt_logprobs is None:
        return None
    prompt, as_ids = job.prompts[index // job.n], job.report.tokens_as_ids
    parts: PromptLogprobs = list_parts(
        _prompt_logprobs(tokenizer, prompt, record.prompt_logprobs, as_ids=as_ids, limit=limit)
    )
    return parts


def _pairs(reported: TokenLogprobs, limit: int | None = None) -> Iterator[tuple[int, float]]:
    pairs = zip(reported.ids, reported.logprobs, strict=True)
    for token, logprob in islice(pairs, None if limit is None or limit < 0 else limit):
        yield token, _finite(logprob)


def _finite(logprob: float) -> float:
    """NaN compares false and becomes minus infinity too."""
    return logprob if logprob >= MINUS_INFINITY else MINUS_INFINITY
