"""How every process logs: one line an event, on standard error."""

import logging
import sys

from tenure.config import environment_log_level


def configure_logging(process: str) -> None:
    """Send the logs of this process to standard error under its name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s [{process}] %(message)s"))
    root = logging.getLogger("tenure")
    root.handlers = [handler]
    root.setLevel(environment_log_level())
    root.propagate = False
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers = [handler]
        logging.getLogger(name).setLevel(logging.WARNING)
