"""What the handlers need besides the request: a value that the server builds once; only its `notices` are mutable."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tenure.api.common.body_readers import BodyReaders
from tenure.client import EndNamed, ServedModels, no_requests
from tenure.config import ApiSettings
from tenure.observe.counters import CountersSnapshot
from tenure.process.compute_threads import Workers
from tenure.prompts.text_model import TextModel

logger = logging.getLogger("tenure.api")


class Notices:
    """Warnings that are logged once per process, however many requests cause them."""

    def __init__(self) -> None:
        self._ignored: set[str] = set()

    def ignored_field(self, name: str) -> None:
        """Warn once that `name` is ignored. `name` is one of a fixed set of fields, which bounds the memory."""
        if name not in self._ignored:
            self._ignored.add(name)
            logger.warning("ignored the field %s of a request, which has no effect here; told once", name)


@dataclass(frozen=True)
class AppContext:
    """Everything a handler may use."""

    models: ServedModels
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
    readers: BodyReaders = field(default_factory=BodyReaders)
    process: str = "00000000"
    """The name of this API process in the ids of its requests."""
    end_named: EndNamed = no_requests
    """Ends the named requests of this process alone."""
    document: bytes = b""
    """The OpenAPI document; `api.app` fills it in."""

    @property
    def workers(self) -> Workers:
        return self.readers.workers
