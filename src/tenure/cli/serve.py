"""`tenure serve`: from the command line to a configuration, and from there to a running server."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from tenure import __version__
from tenure.cli import http_flags as edge
from tenure.cli.choices import choices_of, demo_models, with_tasks
from tenure.cli.flags import MOST, real, whole
from tenure.cli.http_flags import EdgeOptions
from tenure.cli.observability_flags import ObserveOptions, report_config
from tenure.config import ApiConfig, ApiSettings, EngineConfig, ModelChoice, ServeConfig, cores
from tenure.errors import CallerError
from tenure.wire.messages import ModelCard

_HEARTBEAT_TIMEOUTS = ("engine_heartbeat_timeout", "engine_step_timeout", "api_heartbeat_timeout")
_LEAST_HEARTBEAT_TIMEOUT = 1.5

AtLeastOne = Annotated[int, whole(1)]
Processes = Annotated[int, whole(1, 256)]
Seconds = Annotated[float, real(0)]
Edge = Annotated[EdgeOptions, Parameter(name="*", group="HTTP: access and limits")]
Observe = Annotated[ObserveOptions, Parameter(name="*", group="Logs, metrics, traces")]


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The flags of `tenure serve`; they carry vLLM's names where they mean the same."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, whole(0, 65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    served_model_name: Annotated[list[str], Parameter(consume_multiple=True, negative="")] = field(default_factory=list)
    """Names of the model, the first of which is used in replies. For a server with one model."""
    task: Annotated[list[str], Parameter(consume_multiple=True, negative="")] = field(default_factory=list)
    """What a model is used for, as [NAME=]TASK, where its files do not say it: generate, embed, token_embed (late
    interaction), classify, score."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and cache; auto is float32 on a CPU."""
    max_model_len: AtLeastOne | None = None
    """Window in tokens, prompt and output together; by default the model's. An encoder takes it as an upper limit."""
    max_num_seqs: AtLeastOne = 64
    """Most sequences that run at a time in one engine."""
    max_num_batched_tokens: AtLeastOne = 2048
    """Most tokens of one engine step."""
    max_num_queued_reqs: Annotated[int, whole(0)] = 8192
    """Most sequences that wait in one engine."""
    max_num_queued_tokens: AtLeastOne = 524288
    """Most prompt tokens that are open in one engine."""
    step_time: Seconds = 0.1
    """Seconds that an engine step should stay near; 0 bounds steps in tokens alone, for reproducible runs."""
    block_size: AtLeastOne = 16
    """Tokens in a KV block."""
    kv_cache_memory: Annotated[float, Parameter(validator=validators.Number(gt=0, lte=MOST))] = 3.0
    """Memory for the KV cache of each engine, in GiB."""
    enable_prefix_caching: bool = True
    """Keep computed prompts for requests that begin alike."""
    seed: Annotated[int | None, whole(-(2**63), 2**63 - 1)] = None
    """Seed of requests that give none; by default each gets a random one."""
    generation_config: Literal["auto", "vllm"] = "auto"
    """auto takes sampling defaults from the model's generation config, vllm does not."""
    max_n: AtLeastOne = 128
    """Most choices of one prompt."""
    max_logprobs: Annotated[int, whole(-1)] = 20
    """Most logprobs per token; -1 allows the whole vocabulary."""
    max_prompts: AtLeastOne = 1024
    """Most prompts of one request that generates."""
    max_inputs: AtLeastOne = 8192
    """Most texts of one request for embeddings, scores or classes."""
    truncate_long_inputs: Annotated[bool, Parameter(alias="--auto-truncate")] = False
    """Cut an input beyond the window that is embedded, scored or classified; by default it is refused."""
    chunk_long_inputs: bool = False
    """Embed an input beyond the window in chunks, and average them; by default it is refused."""
    max_chunked_len: AtLeastOne = 131072
    """Most tokens of an input that is embedded in chunks."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """Order of waiting requests: as they came, whatever `priority` they ask for, or by priority, lower first."""
    edge: Edge = field(default_factory=EdgeOptions)
    observe: Observe = field(default_factory=ObserveOptions)
    api_server_count: Processes = 1
    """Processes that serve HTTP, all on the one port."""
    data_parallel_size: Processes = 1
    """Engines of each model, which share its requests; each has weights and a cache of its own."""
    queue_timeout: Seconds = 0.0
    """Seconds in which a request must begin to be computed; 0 is for ever."""
    request_timeout: Seconds = 0.0
    """Seconds in which a request must be over, whatever its X-Request-Timeout says; 0 is for ever."""
    shutdown_timeout: Seconds = 30.0
    """Seconds that open requests may take to finish when the server is told to stop."""
    on_engine_death: Literal["restart", "exit"] = "restart"
    """What to do when an engine process dies: start it again, or end the server."""
    engine_heartbeat_timeout: Seconds = 5.0
    """Seconds after which an engine that is stopped, or sleeps and says nothing, is killed, at least 1.5; 0 is never.
    Time in which it waits for a core does not count, here and below."""
    engine_step_timeout: Seconds = 30.0
    """Seconds of its own processor time after which an engine is killed in a step, at least 1.5; 0 is never."""
    api_heartbeat_timeout: Seconds = 30.0
    """Both limits for a process that serves HTTP, whose death cuts its connections."""


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
        if 0 < getattr(options, name) < _LEAST_HEARTBEAT_TIMEOUT:
            flag = f"--{name.replace('_', '-')}"
            raise CallerError(f"{flag} is 0 or at least 1.5: processes give a sign of life once a second")
    if options.truncate_long_inputs and options.chunk_long_inputs:
        raise CallerError("--truncate-long-inputs and --chunk-long-inputs exclude each other")
    models = models or demo_models()
    choices = with_tasks(choices_of(models, options.served_model_name), options.task)
    replicas = range(options.data_parallel_size)
    return ServeConfig(
        engines=tuple(_engine_config(choice, index, options) for choice in choices for index in replicas),
        api=_api_config(choices, options),
        host=options.host,
        port=options.port,
        on_engine_death=options.on_engine_death,
        engine_heartbeat_timeout=options.engine_heartbeat_timeout,
        engine_step_timeout=options.engine_step_timeout,
        api_heartbeat_timeout=options.api_heartbeat_timeout,
    )


def _engine_config(choice: ModelChoice, index: int, options: ServeOptions) -> EngineConfig:
    replicas = options.data_parallel_size
    return EngineConfig(
        model=choice,
        index=index,
        replicas=replicas,
        threads=0 if replicas == 1 else max(1, cores() // replicas),
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_queued_reqs=options.max_num_queued_reqs,
        max_num_queued_tokens=options.max_num_queued_tokens,
        step_time=options.step_time,
        block_size=options.block_size,
        kv_cache_memory=options.kv_cache_memory,
        prefix_caching=options.enable_prefix_caching,
        log_format=options.observe.log_format,
    )


def _api_config(choices: tuple[ModelChoice, ...], options: ServeOptions) -> ApiConfig:
    return ApiConfig(
        models=choices,
        settings=_settings(options),
        workers=options.api_server_count,
        shutdown_timeout=options.shutdown_timeout,
        api_keys=edge.key_ring(options.edge),
        limits=edge.http_limits(options.edge),
        cors=edge.cors(options.edge),
        tls=edge.tls(options.edge),
        report=report_config(options.observe),
        generation_config=options.generation_config,
    )


def _settings(options: ServeOptions) -> ApiSettings:
    return ApiSettings(
        version=__version__,
        max_n=options.max_n,
        max_logprobs=options.max_logprobs,
        max_prompts=options.max_prompts,
        priorities=options.scheduling_policy == "priority",
        max_inputs=options.max_inputs,
        truncate_long_inputs=options.truncate_long_inputs,
        chunk_long_inputs=options.chunk_long_inputs,
        max_chunked_len=options.max_chunked_len,
        queue_timeout=options.queue_timeout,
        request_timeout=options.request_timeout,
        seed=options.seed,
        vllm_metrics=options.observe.vllm_metrics,
        root_path=edge.root_path(options.edge),
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
