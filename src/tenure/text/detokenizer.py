"""From the tokens of one item to the text that is sent, piece by piece.

State: `ItemText` is open, then ended, by a stop string or by the engine's finish reason; an ended item ignores
whatever still arrives. It is owned by the task that answers the request; only `push` changes it.

A token passes through three places, in order:
1. the decoder turns its bytes into characters; an incomplete character waits there for its other bytes;
2. `_pieces` holds characters that may be the beginning of a stop string;
3. a `Delta` takes characters out, and every token whose last character is out with them.

Invariants:
- the joined text of all deltas is the UTF-8 text of all bytes (invalid ones as U+FFFD), cut at the stop string;
- no character that belongs to the matching stop string is ever in a delta (unless it is to be included);
- each token that counts is in exactly one delta, in order; the last delta carries all that remain;
- with `whole_tokens` the text of every delta but the last is exactly that of its tokens.

A stop string counts if at least `min_tokens` tokens, the one that completes it included, have been produced by
then; text before that may contain it. The token that the engine stopped at (an end token or one of
`stop_token_ids`) has no text unless stop strings are to be included.
"""

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tenure.outcomes import FinishReason
from tenure.sampling import TokenLogprobs
from tenure.text.stop_strings import StopMatcher


class TokenBytes(Protocol):
    """What this module needs of a tokenizer."""

    def token_bytes(self, token: int) -> bytes: ...

    def is_special(self, token: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What a request says about the text of its items."""

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    whole_tokens: bool = False
    """Whether text waits for the rest of its token."""


class Delta(msgspec.Struct, frozen=True):
    """The text and tokens that one `push` releases. All lists are parallel to `token_ids`."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    """None when the item has none."""
    text_offsets: list[int]
    """Where the token begins, in characters from the start of the item's text."""
    finish_reason: FinishReason | None = None
    """Set on the last delta, and only there."""
    stopped: str | None = None
    """The stop string that ended the item."""


class _Token(msgspec.Struct, frozen=True):
    id: int
    logprobs: TokenLogprobs | None
    start: int


class _Waiting(msgspec.Struct):
    """One token or several, not released yet; they are released once `end` characters are."""

    tokens: list[_Token]
    end: int


class ItemText:
    """Assembles the text of one item. See the top of the module for what holds at all times."""

    def __init__(self, tokenizer: TokenBytes, options: TextOptions) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self.ended = False
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = StopMatcher(options.stop)
        self._pieces: deque[str] = deque()
        self._waiting: deque[_Waiting] = deque()
        self._decoded = 0
        self._sent = 0
        self._stopped: str | None = None
        self._completion_tokens = 0

    @property
    def completion_tokens(self) -> int:
        """Tokens that count: all, or those through the one that completed the stop string."""
        return self._completion_tokens

    def push(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprobs] | None = None,
        finish_reason: FinishReason | None = None,
    ) -> Delta:
        """Take the next tokens, `logprobs` parallel to them; returns what can be sent now.

        With `finish_reason` these are the last ones; with STOP the very last one is the stop token itself.
        """
        if self.ended:
            return Delta("", [], None, [])
        silent = len(tokens) - 1 if finish_reason is FinishReason.STOP and not self._includes_stop else -1
        end: int | None = None
        for index, token in enumerate(tokens):
            end = self._take(token, None if logprobs is None else logprobs[index], index == silent)
            if end is not None:
                break
        if end is None and finish_reason is not None:
            end = self._read(self._decoder.decode(b"", final=True))
            end = self._decoded if end is None else end
        if end is not None:
            self.ended = True
            reason = FinishReason.STOP if self._stopped is not None else finish_reason
            return self._delta(end, logprobs is not None, reason)
        return self._delta(self._decoded - self._stops.depth, logprobs is not None, None)

    @property
    def _includes_stop(self) -> bool:
        return self._options.include_stop_str_in_output

    def _take(self, token: int, logprobs: TokenLogprobs | None, silent: bool) -> int | None:
        """Take one token; returns the character at which the text ends if it completes a stop string, else None."""
        self._completion_tokens += 1
        start = self._decoded
        dropped = silent or (self._options.skip_special_tokens and self._tokenizer.is_special(token))
        end = None if dropped else self._read(self._decoder.decode(self._tokenizer.token_bytes(token)))
        # Bytes that the decoder keeps are a valid beginning of a character, so they become exactly one.
        unfinished = not dropped and bool(self._decoder.getstate()[0])
        if not (self._options.whole_tokens and self._waiting and self._waiting[-1].end > start):
            self._waiting.append(_Waiting([], start))
        self._waiting[-1].tokens.append(_Token(token, logprobs, start))
        self._waiting[-1].end = self._decoded + unfinished
        return end

    def _read(self, piece: str) -> int | None:
        """Append characters; returns the character at which the text ends at a stop string, else None."""
        if not piece:
            return None
        match = self._stops.scan(piece, counting=self._completion_tokens >= self._options.min_tokens)
        before = self._decoded
        self._pieces.append(piece)
        self._decoded += len(piece)
        if match is None:
            return None
        length, self._stopped = match
        return before + length - (0 if self._includes_stop else len(self._stopped))

    def _delta(self, end: int, with_logprobs: bool, finish_reason: FinishReason | None) -> Delta:
        """Send the characters up to `end`, and the tokens that are complete with them (at the end all)."""
        rows: list[_Token] = []
        complete = self._sent
        while self._waiting and (self.ended or self._waiting[0].end <= end):
            group = self._waiting.popleft()
            rows += group.tokens
            complete = group.end
        text = self._release(complete if self._options.whole_tokens and not self.ended else end)
        logprobs = [row.logprobs for row in rows if row.logprobs is not None]
        return Delta(
            text=text,
            token_ids=[row.id for row in rows],
            logprobs=logprobs if with_logprobs or logprobs else None,
            text_offsets=[row.start for row in rows],
            finish_reason=finish_reason,
            stopped=self._stopped,
        )

    def _release(self, end: int) -> str:
        released = []
        while self._sent < end:
            piece = self._pieces.popleft()
            room = end - self._sent
            if len(piece) > room:
                self._pieces.appendleft(piece[room:])
                piece = piece[:room]
            released.append(piece)
            self._sent += len(piece)
        return "".join(released)


@dataclass(frozen=True, slots=True)
class TokenDisplay:
    """A token as logprobs show it."""

    text: str
    """Lossy where the token holds part of a character."""
    bytes: list[int]
    """Exact."""


def display_token(tokenizer: TokenBytes, token: int, as_id: bool = False) -> TokenDisplay:
    """How logprobs show a token; `as_id` prints `token_id:N` in place of its text."""
    data = tokenizer.token_bytes(token)
    text = f"token_id:{token}" if as_id else data.decode("utf-8", errors="replace")
    return TokenDisplay(text, list(data))


def text_with_offsets(
    tokenizer: TokenBytes, tokens: Sequence[int], skip_special_tokens: bool = True
) -> tuple[str, list[int]]:
    """The text of whole tokens, such as an echoed prompt, and the character at which each of them begins."""
    item = ItemText(tokenizer, TextOptions(skip_special_tokens=skip_special_tokens))
    delta = item.push(tokens, finish_reason=FinishReason.LENGTH)
    return delta.text, delta.text_offsets
