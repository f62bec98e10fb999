"""What the log is told once, however many requests give cause for it."""

import logging

logger = logging.getLogger("tenure.api")


class Notices:
    """The warnings that were given already, for as long as the process lives. Used by the event loop alone."""

    def __init__(self) -> None:
        self._ignored: set[str] = set()

    def ignored_field(self, name: str) -> None:
        """A request set the field `name`, which constrains nothing here. Callers' own names must not get in."""
        if name not in self._ignored:
            self._ignored.add(name)
            logger.warning("ignored the field %s of a request: the output is not constrained; told once", name)
