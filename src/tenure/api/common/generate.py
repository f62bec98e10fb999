"""Runs one validated job on an engine and answers in one body or as a stream. The generation routes share it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tenure.api.common.answer import Answer, ItemAnswer, Piece
from tenure.api.common.call import Call
from tenure.api.common.job import Job
from tenure.api.common.reply import ReplyHead, Usage
from tenure.client import EndOfGeneration, GenerationHandle
from tenure.text.tokenizer import Tokenizer
from tenure.wire.messages import ItemOutput

_CHARACTERS_PER_LOGPROB = 64


class Chunks(Protocol):
    """The events of one stream, in order. Each method gives events that are encoded already."""

    def opening(self) -> Iterator[bytes]: ...
    def piece(self, piece: Piece, *, last: bool) -> Iterator[bytes]: ...
    def ending(self) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class Format:
    """How a route writes its answers."""

    chunks: Callable[[Job, Tokenizer, ReplyHead, Callable[[], Usage]], Chunks]
    """The last argument tells the tokens so far."""
    body: Callable[[Job, Tokenizer, ReplyHead, Sequence[ItemAnswer], Usage], object]


async def run_job(call: Call, job: Job, form: Format) -> None:
    """Answer `call` with what an engine makes of `job`. A refusal is raised before anything is sent."""
    head = call.reply_head()
    async with call.generation(call.engine(job.model), job.submit()) as handle:
        if job.stream:
            await _stream(call, handle, job, head, form)
        else:
            await _answer_whole(call, handle, job, head, form)


async def _stream(call: Call, handle: GenerationHandle, job: Job, head: ReplyHead, form: Format) -> None:
    tokenizer = call.context.texts[job.model].tokenizer
    answer = Answer(job, tokenizer)
    chunks = form.chunks(job, tokenizer, head, answer.usage)
    async with call.event_stream() as stream:

        async def send(events: Iterator[bytes]) -> None:
            for event in events:
                await stream.send(event)

        outputs = await _receive(handle)
        if outputs is not None:
            await send(chunks.opening())
        while outputs is not None:
            for piece in _pieces(handle, answer, outputs):
                await send(chunks.piece(piece, last=answer.unfinished == 0 and not job.report.include_usage))
            outputs = await _receive(handle)
        _check_complete(answer)
        await send(chunks.ending())
        await stream.done()


async def _answer_whole(call: Call, handle: GenerationHandle, job: Job, head: ReplyHead, form: Format) -> None:
    tokenizer = call.context.texts[job.model].tokenizer
    answer = Answer(job, tokenizer)
    records = [ItemAnswer() for _ in range(job.items)]
    while (outputs := await _receive(handle)) is not None:
        for piece in _pieces(handle, answer, outputs):
            records[piece.index].add(piece)
    _check_complete(answer)
    await call.respond_long(lambda: form.body(job, tokenizer, head, records, answer.usage()), _size(job, records))


def _pieces(handle: GenerationHandle, answer: Answer, outputs: Sequence[ItemOutput]) -> Iterator[Piece]:
    """Yield the pieces that the outputs add. Tells the engine of items that a stop string has ended."""
    for output in outputs:
        piece = answer.take(output)
        if piece is not None:
            if piece.engine_goes_on:
                handle.finish_item(piece.index)
            yield piece


async def _receive(handle: GenerationHandle) -> Sequence[ItemOutput] | None:
    """The next outputs; None when the generation has ended well."""
    try:
        return await handle.receive()
    except EndOfGeneration:
        return None


def _check_complete(answer: Answer) -> None:
    if answer.unfinished:
        raise RuntimeError(f"the engine ended a request with {answer.unfinished} unfinished items")


def _size(job: Job, records: Sequence[ItemAnswer]) -> int:
    """Characters of the body, roughly: what decides whether it is built in a thread."""
    size = 0
    for record in records:
        size += sum(map(len, record.parts))
        for reported in (*record.logprobs, *(record.prompt_logprobs or ())):
            size += _CHARACTERS_PER_LOGPROB * (1 + reported.count) if reported is not None else 0
    return size if job.report.logprobs or job.report.prompt_logprobs is not None else size // 100
