"""The flags of `tenure serve` that say what a request may ask for; `ApiSettings` has fields of these names."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from tenure.cli.flags import AtLeastOne, Seconds, whole


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What a request may ask for."""

    seed: Annotated[int | None, whole(-(2**63), 2**63 - 1)] = None
    """Seed of requests that give none; by default, and with -1, each gets a random one."""
    generation_config: Literal["auto", "vllm"] = "auto"
    """auto takes sampling defaults from the model's generation config, vllm does not."""
    max_n: AtLeastOne = 128
    """Most choices of one prompt."""
    max_stop_strings: AtLeastOne = 4
    """Most stop strings of a request; OpenAI's API takes 4."""
    max_logprobs: Annotated[int, whole(-1)] = 20
    """Most logprobs per token; -1 allows the whole vocabulary."""
    max_prompts: AtLeastOne = 1024
    """Most prompts of one request that generates."""
    max_inputs: AtLeastOne = 8192
    """Most texts of one request for embeddings, scores or classes."""
    truncate_long_inputs: Annotated[bool, Parameter(alias="--auto-truncate")] = False
    """Cut an input beyond the window that is embedded, scored or classified; by default it is refused."""
    chunk_long_inputs: bool = False
    """Embed an input beyond the window in chunks, and average them; by default it is refused."""
    max_chunked_len: AtLeastOne = 131072
    """Most tokens of an input that is embedded in chunks."""
    queue_timeout: Seconds = 0.0
    """Seconds in which a request must begin to be computed; 0 is for ever."""
    request_timeout: Seconds = 0.0
    """Seconds in which a request must be over, whatever its X-Request-Timeout says; 0 is for ever."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """Order of waiting requests: as they came, whatever `priority` they ask for, or by priority, lower first."""
