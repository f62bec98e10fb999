"""The chunks of a stream, as both generation routes write them; and finish reasons."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import UNSET

from tenure.api.common.answer import ItemAnswer, Piece
from tenure.api.common.job import Job, ReportOptions
from tenure.api.common.json_parts import ENCODER
from tenure.api.common.reply import ReplyHead, Usage
from tenure.api.openai.response_types import (
    ChatChunk,
    ChatChunkChoice,
    CompletionChunk,
    CompletionChunkChoice,
    FinishName,
)

ChunkType = Callable[..., ChatChunk | CompletionChunk]


class ChunkWriter:
    """Encodes the chunks of one stream."""

    def __init__(self, kind: ChunkType, job: Job, head: ReplyHead, usage: Callable[[], Usage]) -> None:
        """`usage` returns the usage so far."""
        self._kind = kind
        self._head = head
        self._usage = usage
        self._continuous_usage = job.report.continuous_usage
        self._include_usage = job.report.include_usage

    def choice(
        self,
        choice: ChatChunkChoice | CompletionChunkChoice,
        *,
        last: bool = False,
        more: Mapping[str, object] | None = None,
    ) -> bytes:
        """A chunk with one choice and the fields `more` of the route's own; `last`: no other chunk follows."""
        return self._chunk([choice], usage=self._continuous_usage, last=last, more=more or {})

    def ending(self) -> Iterator[bytes]:
        """The chunk without choices that ends a stream with `include_usage`."""
        if self._include_usage:
            yield self._chunk([], usage=True, last=True, more={})

    def _chunk(
        self,
        choices: Sequence[ChatChunkChoice | CompletionChunkChoice],
        *,
        usage: bool,
        last: bool,
        more: Mapping[str, object],
    ) -> bytes:
        head = self._head
        return ENCODER.encode(
            self._kind(
                **head.fields(),
                choices=choices,
                usage=self._usage() if usage else UNSET,
                system_fingerprint=head.fingerprint if last else UNSET,
                **more,
            )
        )


def shows_something(piece: Piece, report: ReportOptions) -> bool:
    """Whether the chunk of a piece would hold anything that the request asks for."""
    delta = piece.delta
    tokens = bool(delta.token_ids) and (report.logprobs or report.token_ids)
    return bool(delta.text) or delta.finish_reason is not None or tokens


def finish_name(record: ItemAnswer) -> FinishName:
    """The `finish_reason` of a choice that is not streamed."""
    if record.finish_reason is None:
        raise RuntimeError("a choice has no finish reason")
    return record.finish_reason.value
