"""Bodies and chunks of chat completions. Pure: pieces of an `Answer` in, bytes out."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import UNSET, UnsetType

from tenure.api.answer import Piece, Record
from tenure.api.job import Job
from tenure.api.logprobs import chat_logprobs, prompt_logprobs
from tenure.api.reply import ENCODER, ReplyHead
from tenure.api.response_types import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Delta,
    PromptLogprobs,
    Usage,
)
from tenure.sampling import TokenLogprobs


class ChatChunks:
    """Makes the chunks of one stream, in the order: opening, pieces, ending."""

    def __init__(self, job: Job, head: ReplyHead, usage: Callable[[], Usage]) -> None:
        """`usage` tells the tokens so far."""
        self._job = job
        self._head = head
        self._usage = usage

    def opening(self) -> Iterator[bytes]:
        """The role chunk of each choice and, with `echo`, the text that the answer repeats."""
        for index in range(self._job.n):
            delta = Delta(role=self._job.role, content="")
            yield self._encode(ChatChunkChoice(index=index, delta=delta), opening=index == 0)
        if self._job.echo:
            for index in range(self._job.n):
                yield self._encode(ChatChunkChoice(index=index, delta=Delta(content=self._job.echo)))

    def piece(self, piece: Piece, *, last: bool) -> Iterator[bytes]:
        """The chunk for a piece, unless it holds nothing to show; `last`: no other chunk of the stream follows."""
        delta, report = piece.delta, self._job.report
        shown = delta.text or delta.finish_reason or (delta.token_ids and (report.logprobs or report.token_ids))
        if not shown:
            return
        choice = ChatChunkChoice(
            index=piece.index,
            delta=Delta(content=delta.text),
            logprobs=_chat_logprobs(self._job, delta.token_ids, delta.logprobs),
            finish_reason=None if delta.finish_reason is None else delta.finish_reason.value,
            stop_reason=UNSET if delta.finish_reason is None else piece.stop_reason,
            token_ids=delta.token_ids if report.token_ids else UNSET,
        )
        yield self._encode(choice, last=last)

    def ending(self) -> bytes:
        """The chunk without choices that ends a stream with `include_usage`."""
        head = self._head
        return ENCODER.encode(
            ChatChunk(
                id=head.id,
                created=head.created,
                model=head.model,
                choices=[],
                usage=self._usage(),
                system_fingerprint=head.fingerprint,
            )
        )

    def _encode(self, choice: ChatChunkChoice, *, opening: bool = False, last: bool = False) -> bytes:
        job, head = self._job, self._head
        return ENCODER.encode(
            ChatChunk(
                id=head.id,
                created=head.created,
                model=head.model,
                choices=[choice],
                usage=self._usage() if job.report.continuous_usage else UNSET,
                prompt_token_ids=job.prompts[0] if opening and job.report.token_ids else UNSET,
                prompt_text=_prompt_text(job) if opening else UNSET,
                system_fingerprint=head.fingerprint if last else UNSET,
            )
        )


def chat_body(job: Job, head: ReplyHead, records: Sequence[Record], usage: Usage) -> bytes:
    """The whole response; `records` are the choices in order."""
    return ENCODER.encode(
        ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[_choice(job, index, record) for index, record in enumerate(records)],
            system_fingerprint=head.fingerprint,
            usage=usage,
            prompt_logprobs=_prompt_logprobs(job, records[0]),
            prompt_token_ids=job.prompts[0] if job.report.token_ids else None,
            prompt_text=job.prompt_texts[0] if job.report.prompt_text else None,
        )
    )


def _choice(job: Job, index: int, record: Record) -> ChatChoice:
    if record.finish_reason is None:
        raise RuntimeError(f"choice {index} has no finish reason")
    return ChatChoice(
        index=index,
        message=AssistantMessage(role=job.role, content=(job.echo or "") + record.text),
        logprobs=_chat_logprobs(job, record.token_ids, record.logprobs),
        finish_reason=record.finish_reason.value,
        stop_reason=record.stop_reason,
        token_ids=record.token_ids if job.report.token_ids else None,
    )


def _chat_logprobs(job: Job, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> ChatLogprobs | None:
    if not job.report.logprobs or (not tokens and job.stream):
        return None
    return chat_logprobs(job.model.tokenizer, tokens, logprobs or (), as_ids=job.report.tokens_as_ids)


def _prompt_logprobs(job: Job, record: Record) -> PromptLogprobs | None:
    limit = job.report.prompt_logprobs
    if limit is None or record.prompt_logprobs is None:
        return None
    as_ids = job.report.tokens_as_ids
    return prompt_logprobs(job.model.tokenizer, job.prompts[0], record.prompt_logprobs, as_ids=as_ids, limit=limit)


def _prompt_text(job: Job) -> str | UnsetType:
    return job.prompt_texts[0] if job.report.prompt_text else UNSET
