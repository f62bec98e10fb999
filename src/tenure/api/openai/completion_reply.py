"""Bodies and chunks of completions. Pure: pieces of an `Answer` in, chunks and bodies out."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import UNSET

from tenure.api.common.answer import ItemAnswer, Piece
from tenure.api.common.job import Job
from tenure.api.common.reply import ReplyHead, Usage
from tenure.api.openai.chunks import ChunkWriter, finish_name, shows_something
from tenure.api.openai.kv_transfer import handed_over
from tenure.api.openai.logprobs import completion_logprobs, shown_prompt_logprobs
from tenure.api.openai.response_types import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
)
from tenure.sampling import TokenLogprobs
from tenure.text.detokenizer import text_with_offsets
from tenure.text.tokenizer import Tokenizer


class CompletionChunks:
    """Makes the chunks of one stream; implements `Chunks`."""

    def __init__(self, job: Job, tokenizer: Tokenizer, head: ReplyHead, usage: Callable[[], Usage]) -> None:
        self._job = job
        self._tokenizer = tokenizer
        self._writer = ChunkWriter(CompletionChunk, job, head, usage)

    def opening(self) -> Iterator[bytes]:
        """Nothing: this route has no role chunks."""
        return iter(())

    def piece(self, piece: Piece, *, last: bool) -> Iterator[bytes]:
        """The chunk for a piece, unless it holds nothing to show; before a choice's first the echo of its prompt.

        `last`: no other chunk of the stream follows.
        """
        delta, job = piece.delta, self._job
        report = job.report
        if piece.first and job.echo_prompt:
            yield self._echo(piece)
        first_ids = piece.first and report.token_ids and not job.echo_prompt
        if not first_ids and not shows_something(piece, report):
            return
        choice = CompletionChunkChoice(
            index=piece.index,
            text=delta.text,
            logprobs=self._logprobs(piece) if report.logprobs and delta.token_ids else None,
            finish_reason=None if delta.finish_reason is None else delta.finish_reason.value,
            stop_reason=piece.stop_reason,
            token_ids=delta.token_ids if report.token_ids else UNSET,
            prompt_token_ids=job.prompts[piece.index // job.n] if first_ids else UNSET,
        )
        yield self._writer.choice(choice, last=last)

    def _echo(self, piece: Piece) -> bytes:
        job = self._job
        ids = job.prompts[piece.index // job.n]
        shown = ids if job.report.token_ids else UNSET
        choice = CompletionChunkChoice(
            index=piece.index,
            text=job.prompt_texts[piece.index // job.n],
            logprobs=_echo_logprobs(job, self._tokenizer, piece.index, piece.prompt_logprobs),
            token_ids=shown,
            prompt_token_ids=shown,
        )
        return self._writer.choice(choice)

    def _logprobs(self, piece: Piece) -> CompletionLogprobs:
        delta, tokenizer = piece.delta, self._tokenizer
        tokens, logprobs = delta.token_ids, delta.logprobs or ()
        return _own_logprobs(self._job, tokenizer, piece.index, tokens, logprobs, delta.text_offsets)

    def ending(self) -> Iterator[bytes]:
        """The chunk without choices that ends a stream with `include_usage`."""
        return self._writer.ending()


def completion_body(
    job: Job, tokenizer: Tokenizer, head: ReplyHead, records: Sequence[ItemAnswer], usage: Usage
) -> Completion:
    """The whole response; `records` are numbered prompt * n + choice."""
    return Completion(
        **head.fields(),
        choices=[_choice(job, tokenizer, index, record) for index, record in enumerate(records)],
        system_fingerprint=head.fingerprint,
        usage=usage,
        kv_transfer_params=handed_over(records, head),
    )


def _choice(job: Job, tokenizer: Tokenizer, index: int, record: ItemAnswer) -> CompletionChoice:
    prompt = job.prompts[index // job.n]
    text, token_ids = record.text, record.token_ids
    logprobs = None
    if job.report.logprobs:
        logprobs = _own_logprobs(job, tokenizer, index, token_ids, record.logprobs, record.text_offsets)
    if job.echo_prompt:
        text, token_ids = job.prompt_texts[index // job.n] + text, prompt + token_ids
        echoed = _echo_logprobs(job, tokenizer, index, record.prompt_logprobs)
        logprobs = _joined(echoed, logprobs) if echoed and logprobs else logprobs
    return CompletionChoice(
        index=index,
        text=text,
        logprobs=logprobs,
        finish_reason=finish_name(record),
        stop_reason=record.stop_reason,
        token_ids=token_ids if job.report.token_ids else None,
        prompt_logprobs=shown_prompt_logprobs(job, tokenizer, index, record),
        prompt_token_ids=prompt if job.report.token_ids else None,
    )


def _own_logprobs(
    job: Job,
    tokenizer: Tokenizer,
    index: int,
    tokens: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    offsets: Sequence[int],
) -> CompletionLogprobs:
    """Offsets count from the start of the choice's text, an echoed prompt included."""
    start = len(job.prompt_texts[index // job.n]) if job.echo_prompt else 0
    moved = [start + offset for offset in offsets]
    return completion_logprobs(tokenizer, tokens, logprobs, moved, as_ids=job.report.tokens_as_ids)


def _echo_logprobs(
    job: Job, tokenizer: Tokenizer, index: int, logprobs: Sequence[TokenLogprobs | None] | None
) -> CompletionLogprobs | None:
    if not job.report.logprobs or logprobs is None:
        return None
    prompt = job.prompts[index // job.n]
    _, offsets = text_with_offsets(tokenizer, prompt, job.text.skip_special_tokens)
    report = job.report
    return completion_logprobs(
        tokenizer, prompt, logprobs, offsets, as_ids=report.tokens_as_ids, limit=report.top_logprobs
    )


def _joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    return CompletionLogprobs(
        text_offset=first.text_offset + second.text_offset,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        tokens=first.tokens + second.tokens,
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )
