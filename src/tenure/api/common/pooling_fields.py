"""The fields that all routes for pooled vectors and scores share, as they stand in a request body.

Null and absence are the same thing. `request_id` and `user` are taken and change nothing: ids are the server's own.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from tenure.api.common.body_reading import BodyReading, SelectedModel
from tenure.api.common.fields import Integer
from tenure.api.common.sampling_rules import check_cache_salt, check_priority
from tenure.http.errors import invalid_request
from tenure.prompts.ranges import RANGES, check_number
from tenure.prompts.token_prompts import Truncation, check_truncation

_TO_THE_WINDOW = -1
"""The value of `truncate_prompt_tokens` that cuts what the model cannot read."""


class PoolingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges are in `prompts.ranges.RANGES`."""

    model: str | None = None
    truncate_prompt_tokens: Integer | None = None
    truncation_side: str | None = None
    padding: str | None = None
    """`do_not_pad` alone is accepted: texts are never padded."""
    use_activation: bool | None = None
    priority: Integer | None = None
    cache_salt: str | None = None

    user: Any = None
    request_id: Any = None

    # Refused unless they ask for nothing.
    normalize: bool | None = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None


@dataclass(frozen=True)
class Shared:
    """The checked values of these fields."""

    truncation: Truncation | None
    activation: bool
    priority: int
    cache_salt: str


def check_shared(request: PoolingFields, selected: SelectedModel, reading: BodyReading) -> Shared:
    """Raises a 400."""
    settings = reading.settings
    if request.normalize is not None:
        raise invalid_request("`normalize` is not a field of this server; use `use_activation`.", "normalize")
    if request.padding not in (None, "do_not_pad"):
        raise invalid_request("`padding` may be `do_not_pad` alone: texts are read as they are.", "padding")
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if getattr(request, name):
            raise invalid_request(f"`{name}` is not supported: the models read text alone.", name)
    numbers: dict[str, int | float] = {}
    for name in ("truncate_prompt_tokens", "priority"):
        value = getattr(request, name)
        if value is not None:
            numbers[name] = check_number(name, value, RANGES[name])
    window, side = selected.text_window, request.truncation_side
    truncation = check_truncation(
        numbers.get("truncate_prompt_tokens", _TO_THE_WINDOW if settings.truncate_long_inputs else None),
        selected.text.tokenizer.truncation_side if side is None else side,
        most=window,
        all_of_it=window,
        limit_name=f"the {window} tokens that the model reads at a time",
    )
    return Shared(
        truncation=truncation,
        activation=request.use_activation is not False,
        priority=check_priority(numbers, reading.routed.priority, settings),
        cache_salt=check_cache_salt(request.cache_salt),
    )
