"""How every process logs: one line an event, on standard error."""

import logging
import sys

from tenure.config import environment_log_level


def configure_logging(process: str) -> None:
    """Send the logs of this process to standard error under its name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s [{process}] %(message)s"))
    for name, level in (("tenure", environment_log_level()), ("uvicorn", "WARNING")):
        root = logging.getLogger(name)
        root.handlers = [handler]
        root.setLevel(level)
        root.propagate = False
