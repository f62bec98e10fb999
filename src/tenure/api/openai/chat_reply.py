"""Bodies and chunks of chat completions. Pure: pieces of an `Answer` in, chunks and bodies out."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import UNSET

from tenure.api.common.answer import ItemAnswer, Piece
from tenure.api.common.job import Job
from tenure.api.common.json_parts import list_parts
from tenure.api.common.reply import ReplyHead, Usage
from tenure.api.openai.chunks import ChunkWriter, finish_name, shows_something
from tenure.api.openai.kv_transfer import handed_over
from tenure.api.openai.logprobs import chat_logprobs, shown_prompt_logprobs
from tenure.api.openai.response_types import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Delta,
)
from tenure.sampling import TokenLogprobs
from tenure.text.tokenizer import Tokenizer


class ChatChunks:
    """Makes the chunks of one stream; implements `Chunks`."""

    def __init__(self, job: Job, tokenizer: Tokenizer, head: ReplyHead, usage: Callable[[], Usage]) -> None:
        self._job = job
        self._tokenizer = tokenizer
        self._writer = ChunkWriter(ChatChunk, job, head, usage)

    def opening(self) -> Iterator[bytes]:
        """The role chunk of each choice and, with `echo`, the text that the answer repeats."""
        job = self._job
        for index in range(job.n):
            choice = ChatChunkChoice(index=index, delta=Delta(role=job.role, content=""))
            yield self._writer.choice(choice, more=_prompt(job) if index == 0 else None)
        if job.echo:
            for index in range(job.n):
                yield self._writer.choice(ChatChunkChoice(index=index, delta=Delta(content=job.echo)))

    def piece(self, piece: Piece, *, last: bool) -> Iterator[bytes]:
        """The chunk for a piece, unless it holds nothing to show; `last`: no other chunk of the stream follows."""
        delta, report = piece.delta, self._job.report
        if not shows_something(piece, report):
            return
        choice = ChatChunkChoice(
            index=piece.index,
            delta=Delta(content=delta.text),
            logprobs=_chat_logprobs(self._job, self._tokenizer, delta.token_ids, delta.logprobs),
            finish_reason=None if delta.finish_reason is None else delta.finish_reason.value,
            stop_reason=UNSET if delta.finish_reason is None else piece.stop_reason,
            token_ids=delta.token_ids if report.token_ids else UNSET,
        )
        yield self._writer.choice(choice, last=last)

    def ending(self) -> Iterator[bytes]:
        """The chunk without choices that ends a stream with `include_usage`."""
        return self._writer.ending()


def chat_body(
    job: Job, tokenizer: Tokenizer, head: ReplyHead, records: Sequence[ItemAnswer], usage: Usage
) -> ChatCompletion:
    """The whole response; `records` are the choices in order."""
    return ChatCompletion(
        **head.fields(),
        choices=[_choice(job, tokenizer, index, record) for index, record in enumerate(records)],
        system_fingerprint=head.fingerprint,
        usage=usage,
        kv_transfer_params=handed_over(records, head),
        prompt_logprobs=shown_prompt_logprobs(job, tokenizer, 0, records[0]),
        prompt_token_ids=job.prompts[0] if job.report.token_ids else None,
        prompt_text=job.prompt_texts[0] if job.prompt_texts else None,
    )


def _choice(job: Job, tokenizer: Tokenizer, index: int, record: ItemAnswer) -> ChatChoice:
    return ChatChoice(
        index=index,
        message=AssistantMessage(role=job.role, content=(job.echo or "") + record.text),
        logprobs=_chat_logprobs(job, tokenizer, record.token_ids, record.logprobs),
        finish_reason=finish_name(record),
        stop_reason=record.stop_reason,
        token_ids=record.token_ids if job.report.token_ids else None,
    )


def _chat_logprobs(
    job: Job, tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] | None
) -> ChatLogprobs | None:
    if not job.report.logprobs or (not tokens and job.stream):
        return None
    asked = bool(job.sampling.params.logprob_token_ids)
    entries = chat_logprobs(tokenizer, tokens, logprobs or (), as_ids=job.report.tokens_as_ids, itself=asked)
    return ChatLogprobs(list(entries) if job.stream else list_parts(entries))


def _prompt(job: Job) -> dict[str, object]:
    """The fields of the first chunk that show the prompt."""
    return {
        "prompt_token_ids": job.prompts[0] if job.report.token_ids else UNSET,
        "prompt_text": job.prompt_texts[0] if job.prompt_texts else UNSET,
    }
