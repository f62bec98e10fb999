"""The answer to one job as it grows: what the engine puts out, item by item, becomes pieces that can be sent.

State: each item is *fresh* (nothing came for it), *growing*, then *finished*; what arrives for a finished item (the
engine had not yet heard of a stop string) is ignored. `Answer` is owned by the handler's task; only `take` changes it.

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
from tenure.text.detokenizer import Delta, ItemText
from tenure.wire.messages import ItemOutput


@dataclass(frozen=True, slots=True)
class Piece:
    """What one output adds to one item."""

    index: int
    delta: Delta
    first: bool
    """Nothing was given out for this item before."""
    stop_reason: StopReason = None
    """The stop string or stop token that ended the item; None at an end token of the model and otherwise."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    engine_goes_on: bool = False
    """A stop string ended the item, of which the engine does not know."""


@dataclass(slots=True)
class _Growing:
    """An item and the outputs that are held back until a chunk is full."""

    text: ItemText
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    started: bool = False


class Answer:
    """Assembles the items of one job. See the top of the module."""

    def __init__(self, job: Job) -> None:
        self.unfinished = job.items
        self._job = job
        self._interval = job.stream_interval if job.stream else 1
        self._growing: dict[int, _Growing] = {}
        self._finished: set[int] = set()
        self._prompt_tokens = job.prompt_tokens
        self._counted = 0

    def take(self, output: ItemOutput) -> Piece | None:
        """Take what a step produced for an item; None when that is nothing to send."""
        if output.index in self._finished:
            return None
        item = self._growing.get(output.index)
        if item is None:
            item = self._growing[output.index] = _Growing(ItemText(self._job.model.tokenizer, self._job.text))
        item.tokens += output.tokens
        item.logprobs += output.logprobs or ()
        if output.prompt_logprobs is not None:
            item.prompt_logprobs = output.prompt_logprobs
        if item.started and output.finish_reason is None and len(item.tokens) < self._interval:
            return None
        return self._grow(output, item)

    def usage(self) -> Usage:
        """Tokens so far, over all prompts and choices."""
        growing = sum(item.text.completion_tokens for item in self._growing.values())
        prompt, completion = self._prompt_tokens, self._counted + growing
        return Usage(
            prompt_tokens=prompt,
            total_tokens=prompt + completion,
            completion_tokens=completion,
            prompt_tokens_details=UNSET if self._job.stream else None,
        )

    def _grow(self, output: ItemOutput, item: _Growing) -> Piece:
        delta = item.text.push(item.tokens, item.logprobs or None, output.finish_reason)
        item.tokens, item.logprobs = [], []
        first, item.started = not item.started, True
        if delta.finish_reason is not None:
            self._finish(output.index, item)
        goes_on = delta.stopped is not None and output.finish_reason is None
        piece = Piece(output.index, delta, first, _stop_reason(delta, output), item.prompt_logprobs, goes_on)
        item.prompt_logprobs = None
        return piece

    def _finish(self, index: int, item: _Growing) -> None:
        self._counted += item.text.completion_tokens
        self._finished.add(index)
        self.unfinished -= 1
        del self._growing[index]


def _stop_reason(delta: Delta, output: ItemOutput) -> StopReason:
    if delta.finish_reason is not FinishReason.STOP:
        return None
    return output.stop_token if delta.stopped is None else delta.stopped


@dataclass(slots=True)
class Record:
    """All pieces of one item together, for a response that is sent whole."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    text_offsets: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    parts: list[str] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        delta = piece.delta
        self.parts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.text_offsets += delta.text_offsets
        if piece.prompt_logprobs is not None:
            self.prompt_logprobs = piece.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = piece.stop_reason
            self.text = "".join(self.parts)
