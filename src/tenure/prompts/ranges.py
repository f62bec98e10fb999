"""The allowed range of each numeric field, and the functions that check numbers and token ids.

`RANGES` serves validation and the OpenAPI document alike. Ints are compared as they are, however long, so an
integer beyond 64 bits is refused by its range and never reaches the wire.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from tenure.http.errors import invalid_request

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Range:
    """`low`..`high`, both included unless `above_low`. `clamped`: no upper limit, the value is lowered later."""

    low: float
    high: float
    whole: bool = False
    above_low: bool = False
    clamped: bool = False

    def admits(self, value: float) -> bool:
        if self.above_low and value <= self.low:
            return False
        return value >= self.low and (self.clamped or value <= self.high)

    def describe(self) -> str:
        noun = "an integer" if self.whole else "a number"
        if self.low == INT64_MIN:
            return f"{noun} of 64 bits"
        if self.clamped or self.high in (INT64_MAX, math.inf):
            return f"{noun} {'above' if self.above_low else 'of at least'} {self.low:g}"
        start = f"above {self.low:g} and at most" if self.above_low else f"from {self.low:g} to"
        return f"{noun} {start} {self.high:g}"


def _whole(low: int, high: int = INT64_MAX, *, clamped: bool = False) -> Range:
    return Range(low, high, whole=True, clamped=clamped)


RANGES: Mapping[str, Range] = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, above_low=True),
    "top_k": _whole(-1),
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, math.inf, above_low=True),
    "length_penalty": Range(-math.inf, math.inf),
    "n": _whole(1),
    "best_of": _whole(1),
    "seed": _whole(INT64_MIN),
    "min_tokens": _whole(0),
    "max_tokens": _whole(1, clamped=True),
    "max_completion_tokens": _whole(1, clamped=True),
    "truncate_prompt_tokens": _whole(-1),
    "prompt_logprobs": _whole(-1),
    "top_logprobs": _whole(-1),
    "logprobs": _whole(-1),
    "stream_interval": _whole(1),
    "priority": _whole(INT64_MIN),
    "dimensions": _whole(1),
    "output_dimension": _whole(1),
    "thinking_token_budget": _whole(-1),
    "top_n": _whole(1, clamped=True),
    "max_tokens_per_doc": _whole(0, clamped=True),
    "max_tokens_per_query": _whole(0, clamped=True),
}


def check_number(name: str, value: float, allowed: Range) -> int | float:
    """Return `value` as an int (whole ranges) or a finite float; raise a 400 that names the field."""
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid_request(f"`{name}` must be {allowed.describe()}.", name)
    if allowed.whole and isinstance(value, float) and not value.is_integer():
        raise invalid_request(f"`{name}` must be an integer.", name)
    if not allowed.admits(value):
        raise invalid_request(f"`{name}` must be {allowed.describe()}.", name)
    return int(value) if allowed.whole else float(value)


def check_ids(name: str, values: Sequence[float], vocabulary_size: int, without: Container[int] = ()) -> list[int]:
    """Return token ids as ints; raise a 400 that names the position of the first id that is not a token.

    `without`: ids below `vocabulary_size` that have no token.
    """
    top = vocabulary_size - 1
    ids: list[int] = []
    for position, value in enumerate(values):
        if value.__class__ is not int:
            if not float(value).is_integer():
                raise invalid_request(f"`{name}[{position}]` must be an integer.", name)
            value = int(value)
        if not 0 <= value <= top or value in without:
            raise invalid_request(f"`{name}[{position}]` is not a token of this model: ids go from 0 to {top}.", name)
        ids.append(int(value))
    return ids
