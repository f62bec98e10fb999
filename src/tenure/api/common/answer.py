"""From the engine's outputs for the items of one job to the pieces of text, tokens and logprobs that are sent.

State: each item is *fresh* (no output yet), *unfinished*, then *finished*; output for a finished item (the engine
did not know yet of a matched stop string) is ignored. Owned by the handler's task; only `take` changes it.

Invariants: `unfinished` is the number of items that are not finished; each item gives exactly one piece with
`first` and exactly one with a finish reason; the token counts are those of the pieces given out or held back, and
do not depend on how the tokens were spread over outputs.
"""

from dataclasses import dataclass, field

from msgspec import UNSET

from tenure.api.common.job import Job
from tenure.api.common.reply import StopReason, Usage
from tenure.outcomes import FinishReason
from tenure.sampling import TokenLogprobs
from tenure.text.detokenizer import Delta, ItemText, TokenBytes
from tenure.wire.messages import ItemOutput


@dataclass(frozen=True, slots=True)
class Piece:
    """What one output adds to the answer of one item."""

    index: int
    delta: Delta
    first: bool
    """It is the first piece of its item."""
    stop_reason: StopReason = None
    """The stop string or stop token that ended the item; None at an end token of the model and otherwise."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    ticket: str = ""
    engine_goes_on: bool = False
    """A stop string ended the item here, and the engine has to be told (`FinishItem`)."""


@dataclass(slots=True)
class _UnfinishedItem:
    """An item, and its tokens that are held back until there are `stream_interval` of them."""

    text: ItemText
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    started: bool = False


class Answer:
    """The items of one job. See the module's docstring."""

    def __init__(self, job: Job, tokenizer: TokenBytes) -> None:
        self.unfinished = job.items
        self._job = job
        self._tokenizer = tokenizer
        self._interval = job.report.stream_interval if job.stream else 1
        self._unfinished: dict[int, _UnfinishedItem] = {}
        self._finished: set[int] = set()
        self._prompt_tokens = job.prompt_tokens
        self._finished_tokens = 0

    def take(self, output: ItemOutput) -> Piece | None:
        """Take an output of the engine; returns the piece to send, or None when there is nothing to send yet."""
        if output.index in self._finished:
            return None
        item = self._unfinished.get(output.index)
        if item is None:
            item = self._unfinished[output.index] = _UnfinishedItem(ItemText(self._tokenizer, self._job.text))
        item.tokens += output.tokens
        item.logprobs += output.logprobs or ()
        if output.prompt_logprobs is not None:
            item.prompt_logprobs = item.prompt_logprobs or []
            item.prompt_logprobs += output.prompt_logprobs
        if not output.tokens and output.finish_reason is None:
            return None  # a part of a large output, whose last part has the tokens
        if item.started and output.finish_reason is None and len(item.tokens) < self._interval:
            return None
        return self._piece(output, item)

    def usage(self) -> Usage:
        """Tokens so far, over all prompts and choices."""
        unfinished = sum(item.text.completion_tokens for item in self._unfinished.values())
        prompt, completion = self._prompt_tokens, self._finished_tokens + unfinished
        return Usage(
            prompt_tokens=prompt,
            total_tokens=prompt + completion,
            completion_tokens=completion,
            prompt_tokens_details=UNSET if self._job.stream else None,
        )

    def _piece(self, output: ItemOutput, item: _UnfinishedItem) -> Piece:
        delta = item.text.push(item.tokens, item.logprobs or None, output.finish_reason)
        item.tokens, item.logprobs = [], []
        first, item.started = not item.started, True
        if delta.finish_reason is not None:
            self._finish(output.index, item)
        goes_on = delta.stopped is not None and output.finish_reason is None
        reason = _stop_reason(delta, output)
        piece = Piece(output.index, delta, first, reason, item.prompt_logprobs, output.ticket, goes_on)
        item.prompt_logprobs = None
        return piece

    def _finish(self, index: int, item: _UnfinishedItem) -> None:
        self._finished_tokens += item.text.completion_tokens
        self._finished.add(index)
        self.unfinished -= 1
        del self._unfinished[index]


def _stop_reason(delta: Delta, output: ItemOutput) -> StopReason:
    if delta.finish_reason is not FinishReason.STOP:
        return None
    return output.stop_token if delta.stopped is None else delta.stopped


@dataclass(slots=True)
class ItemAnswer:
    """All pieces of one item together, for a response that is not streamed."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    text_offsets: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    ticket: str = ""
    parts: list[str] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        delta = piece.delta
        self.parts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.text_offsets += delta.text_offsets
        if piece.prompt_logprobs is not None:
            self.prompt_logprobs = piece.prompt_logprobs
        self.ticket = piece.ticket or self.ticket
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = piece.stop_reason
            self.text = "".join(self.parts)
