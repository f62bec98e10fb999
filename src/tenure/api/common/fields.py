"""The sampling fields that chat completions and completions share, as they stand in a request body.

Every optional field is `T | None`: null and absence are the same thing. An integer field is `Integer`, because
clients send `16.0`; whether a value is a whole number and in range is checked afterwards, by `prompts.ranges`.
Fields that Tenure refuses are listed too, so that they are refused by name and never silently dropped.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Integer = Annotated[int | float, Meta(extra_json_schema={"x-whole-number": True})]
Number = float
Ids = list[Integer]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None

    @property
    def is_empty(self) -> bool:
        return self.include_usage is None and self.continuous_usage_stats is None


class RepetitionDetectionField(msgspec.Struct, frozen=True, kw_only=True):
    """Ends an answer that repeats one pattern of `min_pattern_size`..`max_pattern_size` tokens `min_count` times."""

    max_pattern_size: Integer | None = None
    min_pattern_size: Integer | None = None
    min_count: Integer | None = None


class FormatField(msgspec.Struct, frozen=True, kw_only=True):
    type: str


class IgnoredFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that are accepted and have no effect; the first use of each is logged."""

    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    session_id: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: Any = None

    def ignored(self) -> list[str]:
        """The names of those fields that the request sets."""
        return [name for name in IgnoredFields.__struct_fields__ if getattr(self, name) is not None]


class SamplingFields(IgnoredFields, frozen=True, kw_only=True):
    """Fields with the same meaning on both generation routes; ranges are in `prompts.ranges.RANGES`."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: Integer | None = None
    min_tokens: Integer | None = None
    n: Integer | None = None
    seed: Integer | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Integer | None = None
    min_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    length_penalty: Number | None = None
    logit_bias: dict[str, Number] | None = None
    allowed_token_ids: Ids | None = None
    bad_words: list[str] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Ids | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    repetition_detection: RepetitionDetectionField | None = None

    echo: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Integer | None = None
    truncation_side: str | None = None
    prompt_logprobs: Integer | None = None
    logprob_token_ids: Ids | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    stream_interval: Integer | None = None
    priority: Integer | None = None
    cache_salt: str | None = None

    user: Any = None

    # Refused unless they ask for nothing.
    best_of: Integer | None = None
    use_beam_search: bool | None = None
    thinking_token_budget: Integer | None = None
    response_format: FormatField | None = None
    structured_outputs: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    vllm_xargs: Any = None
    watermarking: Any = None
