"""Logs as JSON: one object a line, whatever is in it."""

import json
import logging
import sys
from datetime import datetime

import pytest

from tenure.observe.logs import JsonFormatter, announce, configure_logging


def line(message: str, *arguments: object, exc_info: object = None, **extra: object) -> dict:
    record = logging.LogRecord("tenure.api", logging.WARNING, "", 1, message, arguments, exc_info)
    record.__dict__.update(extra)
    text = JsonFormatter("engine of tiny").format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_says_when_where_and_what() -> None:
    found = line("lost %s", "it")
    assert datetime.fromisoformat(found.pop("time")).tzinfo is not None
    assert found == {"level": "WARNING", "process": "engine of tiny", "logger": "tenure.api", "message": "lost it"}


def test_fields_are_keys_of_their_own() -> None:
    found = line("over", fields={"outcome": "ok", "stages": {"queued": 0.5}, "model": None})
    assert (found["outcome"], found["stages"], found["model"]) == ("ok", {"queued": 0.5}, None)


@pytest.mark.parametrize("text", ["two\nlines", 'a "quote"', "\x00\x1b[31m", "žluťoučký \U0001f40e", "{}"])
def test_any_text_is_one_line(text: str) -> None:
    assert line("%s", text)["message"] == text


def test_an_exception_comes_with_its_traceback() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        found = line("failed", exc_info=sys.exc_info())
    assert "ValueError: wrong" in found["exception"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_the_server_says_as_a_whole_has_the_form_of_its_logs(
    log_format: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenure = logging.getLogger("tenure")
    for name, value in (("handlers", tenure.handlers), ("level", tenure.level), ("propagate", tenure.propagate)):
        monkeypatch.setattr(tenure, name, value)  # so that they are put back
    configure_logging("supervisor", log_format)
    announce("stopping", log_format)
    said = capsys.readouterr().err
    if log_format == "text":
        assert said == "tenure: stopping\n"
    else:
        assert json.loads(said)["message"] == "stopping"
