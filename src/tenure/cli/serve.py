"""`tenure serve`: from the command line to a configuration, and from there to a running server."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from typing import Annotated, Literal

from cyclopts import Parameter

from tenure import __version__
from tenure.cli import http_flags as http
from tenure.cli.engine_flags import EngineOptions
from tenure.cli.flags import Seconds, Texts, whole
from tenure.cli.http_flags import AccessOptions, LimitOptions
from tenure.cli.kv_flags import KVTransferOptions, kv_transfer
from tenure.cli.model_choices import choices_of, demo_models, with_tasks
from tenure.cli.observability_flags import ObserveOptions, report_config
from tenure.cli.request_flags import RequestOptions
from tenure.config import ApiConfig, ApiSettings, EngineConfig, ModelChoice, ServeConfig
from tenure.cores import cores
from tenure.errors import CallerError
from tenure.wire.messages import ModelCard

_HEARTBEAT_TIMEOUTS = ("engine_heartbeat_timeout", "engine_step_timeout", "api_heartbeat_timeout")
_LEAST_HEARTBEAT_TIMEOUT = 1.5

Processes = Annotated[int, whole(1, 256)]


@dataclass(frozen=True, kw_only=True)
class RecoveryOptions:
    """When a process counts as dead, and what is done then; `ServeConfig` has fields of these names."""

    on_engine_death: Literal["restart", "exit"] = "restart"
    """What to do when an engine process dies: start it again, or end the server."""
    engine_heartbeat_timeout: Seconds = 5.0
    """Seconds after which an engine that is stopped, or sleeps and says nothing, is killed, at least 1.5; 0 is never.
    Time in which it waits for a core does not count, here and below."""
    engine_step_timeout: Seconds = 30.0
    """Seconds of its own processor time after which an engine is killed in a step, at least 1.5; 0 is never."""
    api_heartbeat_timeout: Seconds = 30.0
    """Both limits for a process that serves HTTP, whose death cuts its connections."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The flags of `tenure serve`; they carry vLLM's names where they mean the same."""

    host: str = "127.0.0.1"
    """Address or name to listen on; empty for every interface, localhost for both loopback addresses."""
    port: Annotated[int, whole(0, 65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    served_model_name: Texts = field(default_factory=list)
    """Names of the model, the first of which is used in replies. For a server with one model."""
    task: Texts = field(default_factory=list)
    """What a model is used for, as [NAME=]TASK, where its files do not say it: generate, embed, token_embed (late
    interaction), classify, score."""
    api_server_count: Processes = 1
    """Processes that serve HTTP, all on the one port."""
    data_parallel_size: Processes = 1
    """Engines of each model, which share its requests; each has weights and a cache of its own."""
    shutdown_timeout: Seconds = 30.0
    """Seconds that open requests may take to finish when the server is told to stop."""
    recovery: Annotated[RecoveryOptions, Parameter(name="*", group="Recovery")] = field(default_factory=RecoveryOptions)
    engine: Annotated[EngineOptions, Parameter(name="*", group="Engines")] = field(default_factory=EngineOptions)
    kv: Annotated[KVTransferOptions, Parameter(name="*", group="Prefill and decode apart")] = field(
        default_factory=KVTransferOptions
    )
    requests: Annotated[RequestOptions, Parameter(name="*", group="Requests")] = field(default_factory=RequestOptions)
    access: Annotated[AccessOptions, Parameter(name="*", group="HTTP: access")] = field(default_factory=AccessOptions)
    limits: Annotated[LimitOptions, Parameter(name="*", group="HTTP: limits")] = field(default_factory=LimitOptions)
    observe: Annotated[ObserveOptions, Parameter(name="*", group="Logs, metrics, traces")] = field(
        default_factory=ObserveOptions
    )


def run_server(models: Sequence[str], options: ServeOptions) -> int:
    """Serve until told to stop; returns the exit code."""
    # Imported here, since the other commands need none of it.
    import anyio  # noqa: PLC0415

    from tenure.observe.logs import configure_logging  # noqa: PLC0415
    from tenure.server.supervisor import Supervisor  # noqa: PLC0415

    started = time.monotonic()
    configure_logging("supervisor", options.observe.log_format)
    config = serve_config(models, options)
    print(f"tenure: starting {', '.join(config.api.model_names)}", flush=True)
    return anyio.run(Supervisor(config, partial(print_ready, started, config.api.workers)).run)


def serve_config(models: Sequence[str], options: ServeOptions) -> ServeConfig:
    """Resolve the command line; downloads what is not on this machine. Raises CallerError, ResourceError."""
    for name in _HEARTBEAT_TIMEOUTS:
        if 0 < getattr(options.recovery, name) < _LEAST_HEARTBEAT_TIMEOUT:
            flag = f"--{name.replace('_', '-')}"
            raise CallerError(f"{flag} is 0 or at least 1.5: processes give a sign of life once a second")
    if options.requests.truncate_long_inputs and options.requests.chunk_long_inputs:
        raise CallerError("--truncate-long-inputs and --chunk-long-inputs exclude each other")
    models = models or demo_models()
    choices = with_tasks(choices_of(models, options.served_model_name), options.task)
    replicas = range(options.data_parallel_size)
    share = max(1, cores() // len(replicas))  # models are seldom all busy, and threads go where they are: decision 8
    engine = replace(options.engine, threads=options.engine.threads or share)
    return ServeConfig(
        engines=tuple(
            _engine_config(choice, index, number, engine, options)
            for number, (choice, index) in enumerate(product(choices, replicas))
        ),
        api=_api_config(choices, options),
        host=options.host,
        port=options.port,
        **asdict(options.recovery),
    )


def _engine_config(
    choice: ModelChoice, index: int, number: int, engine: EngineOptions, options: ServeOptions
) -> EngineConfig:
    return EngineConfig(
        model=choice,
        index=index,
        replicas=options.data_parallel_size,
        **asdict(engine),
        kv_transfer=kv_transfer(options.kv, number),
        log_format=options.observe.log_format,
    )


def _api_config(choices: tuple[ModelChoice, ...], options: ServeOptions) -> ApiConfig:
    return ApiConfig(
        models=choices,
        settings=ApiSettings(
            version=__version__,
            **asdict(options.requests),
            kv_transfer=bool(options.kv.kv_listen),
            vllm_metrics=options.observe.vllm_metrics,
            root_path=http.root_path(options.access),
        ),
        workers=options.api_server_count,
        shutdown_timeout=options.shutdown_timeout,
        api_keys=http.key_ring(options.access),
        limits=http.http_limits(options.limits),
        cors=http.cors(options.access),
        tls=http.tls(options.access),
        report=report_config(options.observe),
    )


def print_ready(started: float, workers: int, address: str, cards: Sequence[ModelCard]) -> None:
    """Print that the server is ready. `cards` has one for each engine, `started` is in monotonic seconds."""
    served_by = f", {workers} API processes" if workers > 1 else ""
    print(f"tenure: ready at {address} after {time.monotonic() - started:.1f} s{served_by}", flush=True)
    for card in {card.name: card for card in cards}.values():
        engines = sum(other.name == card.name for other in cards)
        each = f", in each of {engines} engines" if engines > 1 else ""
        room = (
            f", {card.num_blocks} KV blocks for {card.num_blocks * card.block_size} tokens" if card.num_blocks else ""
        )
        print(
            f"  {', '.join(card.served_names)}: {', '.join(card.tasks)} ({card.dtype}), window of "
            f"{card.max_model_len} tokens{room}{each}",
            flush=True,
        )
