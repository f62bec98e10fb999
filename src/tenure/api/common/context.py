"""What the handlers need besides the request: a value that the server builds once; only its `notices` change."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tenure.client import EndNamed, Fleet, no_requests
from tenure.config import ApiSettings
from tenure.observe.counters import CountersSnapshot
from tenure.process.compute_threads import Workers
from tenure.prompts.text_model import TextModel

logger = logging.getLogger("tenure.api")


class Notices:
    """What the log was told already: once in the life of the process, however many requests gave cause for it."""

    def __init__(self) -> None:
        self._ignored: set[str] = set()

    def ignored_field(self, name: str) -> None:
        """A request set the field `name`, which has no effect here. Callers' own names must not get in."""
        if name not in self._ignored:
            self._ignored.add(name)
            logger.warning("ignored the field %s of a request, which has no effect here; told once", name)


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
    process: str = "00000000"
    """What this API process is called in the ids that it makes."""
    end_named: EndNamed = no_requests
    """Ends those of this process."""
    document: bytes = b""
    """The OpenAPI document; `api.app` fills it in."""
