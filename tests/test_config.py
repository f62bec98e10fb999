"""A process reads its configuration, and not a byte more; the environment is read in one place."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tenure.config import (
    ApiConfig,
    ApiSettings,
    EngineConfig,
    KeyRing,
    ModelChoice,
    cores,
    cpu_quota,
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


V1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")


@pytest.mark.parametrize(
    ("group", "files", "quota"),
    [
        ("0::/", {"cpu.max": "400000 100000"}, 4),
        ("0::/", {"cpu.max": "max 100000"}, 65536),
        ("0::/", {}, 65536),
        ("0::/kubepods/pod1/c", {"kubepods/pod1/c/cpu.max": "max 100000", "kubepods/cpu.max": "250000 100000"}, 2.5),
        ("0::/../host", {"cpu.max": "50000 100000"}, 0.5),
        (
            "4:memory:/x\n3:cpu,cpuacct:/docker/c",
            {"cpu/docker/c/" + V1[0]: "400000", "cpu/docker/c/" + V1[1]: "100000"},
            4,
        ),
        ("3:cpu:/only/the/host/knows", {"cpu/" + V1[0]: "150000", "cpu/" + V1[1]: "50000"}, 3),
        ("3:cpu:/", {"cpu/" + V1[0]: "-1", "cpu/" + V1[1]: "100000"}, 65536),
    ],
)
def test_a_quota_of_processor_time(tmp_path: Path, group: str, files: dict[str, str], quota: float) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert cpu_quota(tmp_path) == quota


def test_cores_follow_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    for quota, found in ((65536.0, 64), (4.0, 4), (2.9, 2), (0.2, 1)):
        monkeypatch.setattr("tenure.config.cpu_quota", lambda quota=quota: quota)
        assert cores() == found
