"""Runs the `tenure` command within the test's process."""

import sys
from dataclasses import dataclass

import pytest

from tenure.cli.main import main


@dataclass
class Ended:
    code: int
    output: str
    errors: str


class Command:
    """Runs the command line with its output caught."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.delenv("TENURE_API_KEY", raising=False)
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["tenure", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        caught = self._capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0 if code is None else 1, caught.out, caught.err)
