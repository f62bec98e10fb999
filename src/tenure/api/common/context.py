"""What the handlers need besides the request: a value that the server builds once; only its `notices` change."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tenure.api.common.notices import Notices
from tenure.client import Fleet
from tenure.config import ApiSettings
from tenure.observe.counters import CountersSnapshot
from tenure.process.compute_threads import Workers
from tenure.prompts.text_model import TextModel


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
    was_ready: Callable[[], bool] = lambda: True
    """Whether the whole server, all its API processes and engines, has ever been ready."""
    draining: Callable[[], bool] = lambda: False
    notices: Notices = field(default_factory=Notices)
    workers: Workers = field(default_factory=Workers)
    document: bytes = b""
    """The OpenAPI document; `api.app` fills it in."""
