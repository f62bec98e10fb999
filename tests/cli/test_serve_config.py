"""From the command line to a configuration: what is meant is served, what cannot be meant is refused in a line."""

import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure import __version__
from tenure.cli.main import app
from tenure.cli.request_flags import RequestOptions
from tenure.cli.serve import RecoveryOptions, ServeOptions, print_ready, serve_config
from tenure.config import ApiConfig, ApiSettings, EngineConfig, ServeConfig
from tenure.cores import cores
from tenure.errors import CallerError, ResourceError
from tenure.source import SourceKind, installed_aliases
from tests.cli.command import Command
from tests.wire.samples import CARD


@pytest.fixture
def model(tmp_path: Path) -> str:
    """What passes for a model as long as nobody reads it."""
    path = tmp_path / "tiny-model.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


def names(config: ServeConfig) -> list[tuple[str, ...]]:
    return [choice.served_names for choice in config.api.models]


def options(*arguments: str) -> ServeOptions:
    """The flags as the command line reads them."""
    _, bound, _ = app.parse_args(["serve", *arguments], exit_on_error=False, print_error=False)[:3]
    found = bound.arguments.get("options", ServeOptions())
    assert isinstance(found, ServeOptions)
    return found


def test_a_model_is_called_by_its_file(model: str) -> None:
    config = serve_config([model], ServeOptions())
    assert names(config) == [("tiny-model",)]
    [choice] = config.api.models
    assert (choice.kind, choice.path) == (SourceKind.GGUF, model)
    [engine] = config.engines
    assert engine == EngineConfig(model=choice, threads=cores())  # the flags' defaults are the engine's own
    assert msgspec.structs.replace(config.api, models=()) == ApiConfig(
        models=(), settings=ApiSettings(version=__version__)
    )


def test_models_with_names_of_their_own(model: str, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    config = serve_config([f"first={model}", f"org/second={model}", str(other)], ServeOptions())
    assert names(config) == [("first",), ("org/second",), ("other",)]
    assert config.api.model_names == ("first", "org/second", "other")
    assert [engine.model for engine in config.engines] == list(config.api.models)


def test_a_path_with_an_equals_sign(tmp_path: Path) -> None:
    folder = tmp_path / "lr=0.1"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    assert names(serve_config([str(folder)], ServeOptions())) == [("lr=0.1",)]
    assert names(serve_config([f"tuned={folder}"], ServeOptions())) == [("tuned",)]


def test_served_model_names(model: str) -> None:
    """The first is the one in replies."""
    config = serve_config([f"mine={model}"], ServeOptions(served_model_name=["gpt-4", "tiny"]))
    assert names(config) == [("gpt-4", "tiny")]
    assert config.api.model_names == ("gpt-4",)


@pytest.mark.parametrize(
    ("models", "served", "words"),
    [
        (["{}", "{}"], [], "name of its own: tiny-model, tiny-model"),
        (["a={}", "a={}"], [], "name of its own: a, a"),
        (["={}"], [], "name of its own"),
        (["{}"], ["a", "a"], "name of its own: a, a"),
        (["{}"], [""], "name of its own"),
        (["{}", "b={}"], ["a"], "--served-model-name is for a server with one model"),
        (["no-such-alias"], [], "no model at 'no-such-alias'.*built-in alias .*smollm2"),
        (["name=no-such-alias"], [], "no model at 'no-such-alias'"),
        (["name="], [], "a model source is needed"),
        ([""], [], "a model source is needed"),
        (["/no/such.gguf"], [], "no model at '/no/such.gguf'"),
        (["/"], [], "needs a config.json"),
        (["/proc/self/status"], [], "not a GGUF file"),
    ],
)
def test_models_that_cannot_be_meant(model: str, models: list[str], served: list[str], words: str) -> None:
    with pytest.raises(CallerError, match=words):
        serve_config([text.replace("{}", model) for text in models], ServeOptions(served_model_name=served))


def test_without_a_model_the_demo_models_are_served() -> None:
    found = installed_aliases()
    if found:
        assert names(serve_config([], ServeOptions())) == [(alias,) for alias in found]
    else:
        with pytest.raises(ResourceError, match="no demo model is installed"):
            serve_config([], ServeOptions())


FLAGS: dict[str, tuple[tuple[str, ...], Any]] = {
    "host": (("--host", "0.0.0.0"), "0.0.0.0"),
    "port": (("--port", "0"), 0),
    "served_model_name": (("--served-model-name", "a", "b"), ["a", "b"]),
    "task": (("--task", "embed"), ["embed"]),
    "dtype": (("--dtype", "bfloat16"), "bfloat16"),
    "max_model_len": (("--max-model-len", "100"), 100),
    "max_num_seqs": (("--max-num-seqs", "3"), 3),
    "max_num_batched_tokens": (("--max-num-batched-tokens", "77"), 77),
    "max_num_queued_reqs": (("--max-num-queued-reqs", "0"), 0),
    "max_num_queued_tokens": (("--max-num-queued-tokens", "5000"), 5000),
    "step_time": (("--step-time", "0"), 0.0),
    "threads": (("--threads", "77"), 77),
    "async_scheduling": (("--async-scheduling",), True),
    "block_size": (("--block-size", "32"), 32),
    "kv_cache_memory": (("--kv-cache-memory", "0.25"), 0.25),
    "enable_prefix_caching": (("--no-enable-prefix-caching",), False),
    "seed": (("--seed", "-9223372036854775808"), -(2**63)),
    "generation_config": (("--generation-config", "vllm"), "vllm"),
    "max_stop_strings": (("--max-stop-strings", "9"), 9),
    "max_n": (("--max-n", "4"), 4),
    "max_logprobs": (("--max-logprobs", "-1"), -1),
    "max_prompts": (("--max-prompts", "5"), 5),
    "max_inputs": (("--max-inputs", "6"), 6),
    "truncate_long_inputs": (("--truncate-long-inputs",), True),
    "chunk_long_inputs": (("--chunk-long-inputs",), True),
    "max_chunked_len": (("--max-chunked-len", "5000"), 5000),
    "scheduling_policy": (("--scheduling-policy", "priority"), "priority"),
    "api_server_count": (("--api-server-count", "3"), 3),
    "data_parallel_size": (("--data-parallel-size", "2"), 2),
    "queue_timeout": (("--queue-timeout", "2.5"), 2.5),
    "request_timeout": (("--request-timeout", "60"), 60.0),
    "shutdown_timeout": (("--shutdown-timeout", "1"), 1.0),
    "on_engine_death": (("--on-engine-death", "exit"), "exit"),
    "engine_heartbeat_timeout": (("--engine-heartbeat-timeout", "0"), 0.0),
    "engine_step_timeout": (("--engine-step-timeout", "0"), 0.0),
    "api_heartbeat_timeout": (("--api-heartbeat-timeout", "0"), 0.0),
}


GROUPS = ("recovery", "engine", "kv", "requests", "access", "limits", "observe")


def flat(options: ServeOptions, *groups: str) -> dict[str, Any]:
    """The flags by name, without those of the other groups."""
    found = {field.name: getattr(options, field.name) for field in fields(options) if field.name not in GROUPS}
    for group in groups:
        found |= asdict(getattr(options, group))
    return found


@pytest.mark.parametrize("name", flat(ServeOptions(), "recovery", "engine", "requests"))
def test_every_flag_is_read_and_changes_what_is_run(name: str, model: str) -> None:
    arguments, value = FLAGS[name]
    read = options(model, *arguments)
    assert flat(read, *GROUPS) == {**flat(ServeOptions(), *GROUPS), name: value}
    config = serve_config([model], read)
    assert config != serve_config([model], ServeOptions())
    # What a child gets is what was meant.
    for part in (config.api, *config.engines):
        assert msgspec.json.decode(msgspec.json.encode(part), type=type(part)) == part


def test_a_long_input_is_cut_or_read_in_chunks_and_not_both(model: str) -> None:
    assert options(model, "--auto-truncate").requests.truncate_long_inputs, "as text-embeddings-inference calls it"
    with pytest.raises(CallerError, match="--truncate-long-inputs and --chunk-long-inputs exclude each other"):
        serve_config([model], ServeOptions(requests=RequestOptions(truncate_long_inputs=True, chunk_long_inputs=True)))


@pytest.mark.parametrize("seconds", [0.1, 1.0, 1.49])
@pytest.mark.parametrize("name", ["engine_heartbeat_timeout", "engine_step_timeout", "api_heartbeat_timeout"])
def test_a_limit_that_no_process_could_keep(model: str, name: str, seconds: float) -> None:
    given: dict[str, Any] = {name: seconds}
    with pytest.raises(CallerError, match=f"--{name.replace('_', '-')} .* once a second"):
        serve_config([model], ServeOptions(recovery=RecoveryOptions(**given)))


def test_several_engines_of_each_model(model: str) -> None:
    """They are told apart in logs, and share the cores."""
    config = serve_config([f"a={model}", f"b={model}"], ServeOptions(data_parallel_size=2))
    assert [(engine.model.name, engine.index) for engine in config.engines] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert [engine.title for engine in config.engines[:2]] == ["engine 0 of a", "engine 1 of a"]
    assert {engine.threads for engine in config.engines} == {max(1, cores() // 2)}
    [alone] = serve_config([f"a={model}"], ServeOptions()).engines
    assert (alone.title, alone.threads) == ("engine of a", cores())
    given = serve_config([model], options("--threads", "3", "--data-parallel-size", "2"))
    assert [engine.threads for engine in given.engines] == [3, 3]


def test_what_is_announced_of_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """Each model once, with the number of its engines."""
    other = msgspec.structs.replace(CARD, name="other", served_names=("other",))
    encoder = msgspec.structs.replace(CARD, name="reads", served_names=("reads",), num_blocks=0, block_size=0)
    print_ready(time.monotonic(), 3, "http://here", [CARD, CARD, other, encoder])
    first, tiny, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("tenure: ready at http://here after ")
    assert first.endswith(" s, 3 API processes")
    assert tiny.startswith("  tiny, žluťoučký: ")
    assert tiny.endswith("16 KV blocks for 64 tokens, in each of 2 engines")
    assert second.endswith("64 tokens")
    assert third.endswith("window of 64 tokens")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *[("--port", value) for value in ("-1", "65536", "http", "8000.5", "")],
        *[("--max-num-seqs", value) for value in ("0", "-3", "1.5", "many", str(2**31), str(10**30))],
        *[("--step-time", value) for value in ("-0.1", "nan", "inf", "1e400", "fast")],
        *[("--kv-cache-memory", value) for value in ("0", "-1", "inf", "nan", "3GiB")],
        *[("--seed", value) for value in (str(2**63), str(-(2**63) - 1), "x")],
        *[("--shutdown-timeout", value) for value in ("-1", "inf")],
        *[("--engine-heartbeat-timeout", value) for value in ("-1", "nan")],
        *[("--engine-step-timeout", value) for value in ("-1", "inf")],
        *[("--api-heartbeat-timeout", value) for value in ("-1", "inf")],
        *[("--api-server-count", value) for value in ("0", "257", "two")],
        *[("--data-parallel-size", value) for value in ("0", "257", "1.5")],
        *[(flag, "0") for flag in ("--max-model-len", "--block-size", "--max-num-batched-tokens", "--max-n")],
        *[(flag, str(10**20)) for flag in ("--max-model-len", "--block-size", "--max-num-queued-tokens", "--max-n")],
        ("--max-num-queued-reqs", "-1"),
        ("--max-logprobs", "-2"),
        ("--dtype", "int3"),
        ("--on-engine-death", "panic"),
        ("--generation-config", "other"),
    ],
)
def test_values_that_no_flag_takes(tenure: Command, model: str, flag: str, value: str) -> None:
    ended = tenure("serve", model, flag, value)
    assert ended.code != 0
    assert flag in ended.errors
    assert "Traceback" not in ended.errors
    assert ended.output == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--no-such-flag", "1"), "--no-such-flag"),
        (("serve", "--port"), "--port"),
        (("sreve",), "sreve"),
        (("chat", "--temperature", "2.5"), "--temperature"),
        (("chat", "--temperature", "nan"), "--temperature"),
        (("chat", "--max-tokens", "0"), "--max-tokens"),
        (("chat", "stray"), "stray"),
        (("ledger", "--output", "xml"), "--output"),
    ],
)
def test_command_lines_that_cannot_be_meant(tenure: Command, arguments: tuple[str, ...], words: str) -> None:
    ended = tenure(*arguments)
    assert ended.code != 0
    assert words in ended.errors
    assert "Traceback" not in ended.errors


def test_a_level_of_logging_that_there_is_not(tenure: Command, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_LOG_LEVEL", "chatty")
    ended = tenure("serve", model)
    assert ended.code == 1
    assert ended.errors.startswith("tenure: TENURE_LOG_LEVEL is 'CHATTY'")


def test_the_version(tenure: Command) -> None:
    ended = tenure("--version")
    assert (ended.code, ended.output.strip()) == (0, __version__)


@pytest.mark.parametrize("command", ["serve", "chat", "models", "ledger"])
def test_help_names_every_flag(tenure: Command, command: str) -> None:
    ended = tenure(command, "--help")
    assert ended.code == 0
    wanted = {"serve": ("--port", "--kv-cache-memory"), "chat": ("--system", "--url")}.get(command, ("--url",))
    assert all(flag in ended.output for flag in wanted)


def tasks(config: ServeConfig) -> list[str | None]:
    assert [engine.model for engine in config.engines] == list(config.api.models)
    return [choice.task for choice in config.api.models]


def test_a_task_is_for_the_only_model_or_for_the_one_it_names(model: str) -> None:
    assert tasks(serve_config([model], ServeOptions())) == [None]
    assert tasks(serve_config([model], options("--task", "embed"))) == ["embed"]
    several = options("--task", "judge=score", "--task", "words=token_embed")
    assert tasks(serve_config([f"chat={model}", f"judge={model}", f"words={model}"], several)) == [
        None,
        "score",
        "token_embed",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("embed", "say for which model"),
        ("nobody=embed", "no model is called 'nobody'"),
        ("chat=sing", "there is no task 'sing'"),
        ("chat=", "there is no task ''"),
    ],
)
def test_a_task_that_means_nothing_is_refused(model: str, given: str, message: str) -> None:
    with pytest.raises(CallerError, match=message):
        serve_config([f"chat={model}", f"other={model}"], ServeOptions(task=[given]))
