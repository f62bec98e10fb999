"""The flags of `tenure serve` that each engine gets as they are; `EngineConfig` has fields of these names."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tenure.cli.flags import AtLeastOne, Positive, Seconds, whole


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Engines: weights, cache, steps."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and cache; auto is float32 on a CPU."""
    max_model_len: AtLeastOne | None = None
    """Window in tokens, prompt and output together; by default the model's. An encoder takes it as an upper limit."""
    max_num_seqs: AtLeastOne = 64
    """Most sequences that run at a time in one engine."""
    max_num_batched_tokens: AtLeastOne = 2048
    """Most tokens of one engine step."""
    max_num_queued_reqs: Annotated[int, whole(0)] = 8192
    """Most sequences that wait in one engine."""
    max_num_queued_tokens: AtLeastOne = 524288
    """Most prompt tokens that are open in one engine."""
    step_time: Seconds = 0.1
    """Seconds that an engine step should stay near; 0 bounds steps in tokens alone, for reproducible runs."""
    async_scheduling: bool = False
    """Plan and launch the next step while one computes."""
    threads: Annotated[int, whole(0, 4096)] = 0
    """Threads that compute in each engine; 0 shares the cores that the server may use, by affinity and by the quota of
    its container, out among the engines of a model."""
    block_size: AtLeastOne = 16
    """Tokens in a KV block."""
    kv_cache_memory: Positive = 3.0
    """Memory for the KV cache of each engine, in GiB."""
    enable_prefix_caching: bool = True
    """Keep computed prompts for requests that begin alike."""
