"""What the handlers need besides the request: a value that the server builds once; only its `notices` change."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tenure.api.notices import Notices
from tenure.api.text_model import TextModel
from tenure.api.threads import Workers
from tenure.client import Fleet
from tenure.process.counters import CountersSnapshot


@dataclass(frozen=True)
class ApiSettings:
    """Limits and switches of the HTTP surface."""

    version: str
    max_n: int = 128
    max_logprobs: int = 20
    """-1 lets a request ask for the whole vocabulary."""
    max_prompts: int = 1024
    priorities: bool = False
    """Whether the `priority` of a request has an effect."""
    max_inputs: int = 8192
    """Texts of one request for embeddings, scores or classes; the engine's gate may admit fewer."""
    chunk_long_inputs: bool = False
    """Whether an input beyond the window is embedded in chunks."""
    max_chunked_len: int = 131072
    """Most tokens of such an input."""
    queue_timeout: float = 0.0
    """Seconds in which a request must begin to be computed; 0 is for ever."""
    request_timeout: float = 0.0
    """Seconds in which it must be over, whatever it asks for itself; 0 is for ever."""
    thread_above: int = 8192
    """Bytes of a body, or of a response with logprobs, from which the work on it leaves the event loop."""
    seed: int | None = None
    """Of requests that give none; None draws one for each."""
    vllm_metrics: bool = False
    """Whether figures are exported under vLLM's names too."""
    root_path: str = ""
    """Prefix under which a proxy serves this server."""


@dataclass(frozen=True)
class AppContext:
    """Everything a handler may use."""

    fleet: Fleet
    texts: Mapping[str, TextModel]
    """By first served name."""
    settings: ApiSettings
    counts: Callable[[], CountersSnapshot]
    """Work requests, summed over all API processes."""
    epoch: str
    """Drawn anew by each start of the server."""
    started_at: float
    """Monotonic seconds."""
    draining: Callable[[], bool] = lambda: False
    notices: Notices = field(default_factory=Notices)
    workers: Workers = field(default_factory=Workers)
    document: bytes = b""
    """The OpenAPI document; `api.app` fills it in."""
