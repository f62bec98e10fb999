"""The logging of every process: one line per event, on standard error, as text or as JSON.

A record may carry `fields`, a mapping: keys of the JSON object; in text they are part of the message already.
"""

import logging
import sys
from datetime import datetime
from typing import Any

import msgspec

from tenure.config import environment_log_level

_LIBRARIES = ("uvicorn", "opentelemetry")


def configure_logging(process: str, log_format: str = "text") -> None:
    """Send the logs of this process to standard error under its name."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter(f"%(asctime)s %(levelname)s [{process}] %(message)s")
    handler.setFormatter(JsonFormatter(process) if log_format == "json" else text)
    for name, level in (("tenure", environment_log_level()), *((name, "WARNING") for name in _LIBRARIES)):
        root = logging.getLogger(name)
        root.handlers = [handler]
        root.setLevel(level)
        root.propagate = False


def announce(message: str, log_format: str = "text") -> None:
    """Print a message about the whole server to the terminal, or log it when `log_format` is `json`."""
    if log_format == "json":
        logging.getLogger("tenure.supervisor").info(message)
    else:
        print(f"tenure: {message}", file=sys.stderr)


class JsonFormatter(logging.Formatter):
    """One object a line: time (RFC 3339), level, process, logger, message, what the record's `fields` say, and the
    traceback of an exception."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
