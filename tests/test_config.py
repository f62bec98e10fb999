"""A process reads its configuration, and not a byte more; the environment is read in one place."""

import os
import subprocess
import sys

import msgspec
import pytest

from tenure.config import (
    ApiConfig,
    ApiSettings,
    EngineConfig,
    KeyRing,
    ModelChoice,
    environment_api_keys,
    environment_log_level,
    environment_with,
    read_config,
)
from tenure.errors import CallerError
from tenure.source import SourceKind

CHOICE = ModelChoice(name="m", served_names=("m", "ž"), kind=SourceKind.GGUF, path="/models/m\n.gguf")


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(model=CHOICE, index=2, max_model_len=9, step_time=0.0, kv_cache_memory=0.5),
        ApiConfig(
            models=(CHOICE,),
            settings=ApiSettings(version="0", seed=-(2**63)),
            engine_sockets=(("/a", "/b"),),
            workers=2,
            api_keys=KeyRing(("k",)),
        ),
    ],
    ids=["engine", "api"],
)
def test_exactly_one_line_is_read(config: EngineConfig | ApiConfig) -> None:
    """The pipe is the control pipe afterwards, and its end is for others to find."""
    reading, writing = os.pipe()
    os.write(writing, msgspec.json.encode(config) + b"\nrest")
    assert read_config(type(config), reading) == config
    assert os.read(reading, 100) == b"rest"
    os.close(writing)
    assert os.read(reading, 100) == b""
    os.close(reading)


@pytest.mark.parametrize("sent", [b"", b'{"model": '])
def test_a_supervisor_that_dies_before_it_has_sent_it_all(sent: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, sent)
    os.close(writing)
    with pytest.raises(EOFError):
        read_config(EngineConfig, reading)
    os.close(reading)


def test_the_name_in_replies_is_the_first() -> None:
    assert ApiConfig(models=(CHOICE,), settings=ApiSettings(version="0")).model_names == ("m",)
    assert CHOICE.source.name == "m"


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, keys in (("", ()), (" , ", ()), ("a", ("a",)), ("a, b,,c ", ("a", "b", "c"))):
        monkeypatch.setenv("TENURE_API_KEY", value)
        assert environment_api_keys() == keys
    monkeypatch.delenv("TENURE_API_KEY")
    assert environment_api_keys() == ()


def test_the_users_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_TEST_ONE", "user")
    found = environment_with({"TENURE_TEST_ONE": "ours", "TENURE_TEST_TWO": "ours"})
    assert (found["TENURE_TEST_ONE"], found["TENURE_TEST_TWO"]) == ("user", "ours")


def test_log_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_LOG_LEVEL", raising=False)
    assert environment_log_level() == "INFO"
    monkeypatch.setenv("TENURE_LOG_LEVEL", "debug")
    assert environment_log_level() == "DEBUG"
    for wrong in ("verbose", ""):
        monkeypatch.setenv("TENURE_LOG_LEVEL", wrong)
        with pytest.raises(CallerError, match=r"TENURE_LOG_LEVEL is .* one of: .*INFO"):
            environment_log_level()


_LOGS = """
import logging
from tenure.observe.logs import configure_logging
configure_logging("api")
configure_logging("api")  # twice is once
logging.getLogger("tenure.client").warning("lost %s", "it")
logging.getLogger("tenure.client").debug("not worth a line")
logging.getLogger("uvicorn.error").info("not worth a line")
logging.getLogger("uvicorn.error").error("broken")
logging.getLogger("other").info("not ours")
"""


def test_every_event_is_one_line_with_the_name_of_its_process() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TENURE_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", _LOGS], capture_output=True, text=True, timeout=20, env=environment, check=True
    )
    lines = done.stderr.splitlines()
    assert [line.partition(" [")[2] for line in lines] == ["api] lost it", "api] broken"]
    assert done.stdout == ""
