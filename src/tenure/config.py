"""Configuration: frozen values, made by the command line, handed to each process as JSON on its standard input.

This module is the only one that reads the environment.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from tenure.errors import CallerError
from tenure.source import ResolvedSource, SourceKind

_API_KEY = "TENURE_API_KEY"
_KV_SECRET = "TENURE_KV_SECRET"

_SECRETS = (_API_KEY, _KV_SECRET)

TASKS = ("generate", "embed", "token_embed", "classify", "score")
"""What an operator may say that a model is for."""


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the command line, resolved to files on this machine."""

    name: str
    served_names: tuple[str, ...]
    kind: SourceKind
    path: str
    task: str | None = None
    """What it is to be used for, where that is not what its files say."""

    @property
    def source(self) -> ResolvedSource:
        return ResolvedSource(self.kind, Path(self.path), self.name)


class Hidden(msgspec.Struct, frozen=True):
    """A secret: not shown when a configuration is printed."""

    value: str

    def __repr__(self) -> str:
        return "Hidden()"


class KVTransferConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine exchanges prompts with others of its cluster. Times in seconds."""

    listen: str
    """HOST:PORT where others reach it."""
    secret: Hidden
    """Of the cluster."""
    peers: tuple[str, ...] = ()
    """Hosts of other engines; empty: whichever a ticket of the cluster names."""
    lease: float = 30.0
    recompute: bool = True
    """Whether a prompt that cannot be taken over is computed, or fails its request."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process needs. Memory in GiB, times in seconds."""

    model: ModelChoice
    index: int = 0
    replicas: int = 1
    """How many engines the model has; `index` is below it."""
    dtype: str = "auto"
    device: str = "cpu"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_num_queued_reqs: int = 8192
    max_num_queued_tokens: int = 524288
    step_time: float = 0.1
    """0: steps are bounded in tokens alone, so that runs are reproducible."""
    async_scheduling: bool = False
    """The next step is planned and launched while one computes."""
    block_size: int = 16
    kv_cache_memory: float = 3.0
    enable_prefix_caching: bool = True
    threads: int = 0
    """0: one for each core that the process may use."""
    log_format: str = "text"
    kv_transfer: KVTransferConfig | None = None

    @property
    def title(self) -> str:
        """What the engine is called in logs."""
        number = f" {self.index}" if self.replicas > 1 else ""
        return f"engine{number} of {self.model.name}"


class KeyRing(msgspec.Struct, frozen=True):
    """The API keys of a server. They are not shown when a configuration is printed."""

    keys: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"KeyRing({len(self.keys)} keys)"


class CorsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What pages of other origins may do; without origins nothing."""

    origins: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("*",)
    headers: tuple[str, ...] = ("*",)
    credentials: bool = False


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files; the flags and uvicorn have the same names behind `ssl_`. `cert_reqs` is that of the standard
    library's ssl: 0 none, 1 optional, 2 required."""

    certfile: str
    keyfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = 0
    ciphers: str | None = None


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the HTTP layer of one API process. Sizes in bytes, times in seconds."""

    max_header_bytes: int = 64 * 1024
    max_header_count: int = 256
    header_timeout: float = 10.0
    """From the first byte of a request (or the start of a connection) to the end of its headers."""
    max_body_bytes: int = 32 * 1024 * 1024
    max_body_depth: int = 64
    max_body_items: int = 1024 * 1024
    """Of all arrays and objects of its JSON."""
    body_timeout: float = 30.0
    """From the end of the headers to the end of the body."""
    max_open_body_bytes: int = 1024 * 1024 * 1024
    """Of all bodies that are held at a time."""
    max_connections: int = 8192
    max_trailing_bytes: int = 64 * 1024
    """What a client may send ahead of time, beyond the request that is being answered."""
    linger_timeout: float = 5.0
    """How long a refused client may go on sending, so that it gets to read why it was refused."""
    stall_timeout: float = 30.0
    """How long one write may wait for a client that does not read, and a generation be stalled for it in all."""
    keep_alive_timeout: float = 120.0
    """How long a connection may be idle between requests, above the 60 to 90 s of most proxies' pools; 0 closes it
    behind each answer."""
    keep_alive_interval: float = 0.0
    """Silence in a stream after which a comment line is sent; 0 is off."""


class ReportConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a server tells of itself."""

    log_format: str = "text"
    """`text` or `json`."""
    log_bodies: int = 0
    """How many characters of a request's body are logged; 0 is none at all."""
    traces_endpoint: str = ""
    """Where spans go, by OTLP over HTTP; empty for nowhere."""


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and switches of the HTTP surface."""

    version: str
    generation_config: str = "auto"
    """`auto`: sampling defaults are those of the model's."""
    max_n: int = 128
    max_stop_strings: int = 4
    max_logprobs: int = 20
    """-1 lets a request ask for the whole vocabulary."""
    max_prompts: int = 1024
    scheduling_policy: str = "fcfs"
    """`priority`: the `priority` of a request has an effect."""
    max_inputs: int = 8192
    """Texts of one request for embeddings, scores or classes; the engine's gate may admit fewer."""
    truncate_long_inputs: bool = False
    """Whether an input of a pooling route beyond the window is cut when the request says nothing of cutting."""
    chunk_long_inputs: bool = False
    """Whether an input beyond the window is embedded in chunks."""
    max_chunked_len: int = 131072
    """Most tokens of such an input."""
    queue_timeout: float = 0.0
    """Seconds in which a request must begin to be computed; 0 is for ever."""
    request_timeout: float = 0.0
    """Seconds in which it must be over, whatever it asks for itself; 0 is for ever."""
    thread_above: int = 8192
    """Bytes of a body, or of a response with logprobs, from which the work on it leaves the event loop."""
    process_above: int = 131072
    """Bytes of a body from which it is read in a process of its own."""
    seed: int | None = None
    """Of requests that give none; None draws one for each."""
    kv_transfer: bool = False
    """Whether `kv_transfer_params` are served."""
    vllm_metrics: bool = False
    """Whether figures are exported under vLLM's names too."""
    root_path: str = ""
    """Prefix under which a proxy serves this server; empty or `/like/this`."""


class ApiConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an API process needs."""

    models: tuple[ModelChoice, ...]
    settings: ApiSettings
    engine_sockets: tuple[tuple[str, ...], ...] = ()
    """Of each model's engines, in the order of `models`."""
    epoch: str = ""
    """Drawn anew by each start of the server."""
    started_at: float = 0.0
    """When the server was started, in monotonic seconds."""
    created: int = 0
    """The same in Unix seconds."""
    worker: int = 0
    workers: int = 1
    """How many API processes there are; `worker` is below it."""
    shutdown_timeout: float = 30.0
    api_keys: KeyRing = KeyRing()
    limits: HttpLimits = HttpLimits()
    cors: CorsConfig = CorsConfig()
    tls: TlsConfig | None = None
    report: ReportConfig = ReportConfig()

    @property
    def title(self) -> str:
        """What the process is called in logs."""
        return f"API process {self.worker}" if self.workers > 1 else "API process"

    @property
    def model_names(self) -> tuple[str, ...]:
        """The name in replies and counts, for each model."""
        return tuple(model.served_names[0] for model in self.models)


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one `tenure serve`."""

    engines: tuple[EngineConfig, ...]
    api: ApiConfig
    host: str = "127.0.0.1"
    port: int = 8000
    on_engine_death: str = "restart"
    engine_heartbeat_timeout: float = 5.0
    engine_step_timeout: float = 30.0
    api_heartbeat_timeout: float = 30.0
    """The limits of `server.watchdog`: silence and work of an engine, both of an API process."""


Config = TypeVar("Config", EngineConfig, ApiConfig)


def read_config(kind: type[Config], descriptor: int) -> Config:
    """Read one line of JSON from `descriptor`; what follows it is left there. Raises EOFError when it was closed."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            raise EOFError("the supervisor closed the pipe before it had sent the configuration")
        line += byte
    return msgspec.json.decode(bytes(line), type=kind)


def environment_with(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, for a child, with `extra` where it does not say otherwise; without the API keys."""
    return {**extra, **{name: value for name, value in os.environ.items() if name not in _SECRETS}}


def environment_kv_secret() -> str:
    """The secret of the cluster from `TENURE_KV_SECRET`, or nothing."""
    return os.environ.get(_KV_SECRET, "")


def environment_api_keys() -> tuple[str, ...]:
    """Keys from `TENURE_API_KEY`, separated by commas."""
    return tuple(key.strip() for key in os.environ.get(_API_KEY, "").split(",") if key.strip())


def environment_log_level() -> str:
    """`TENURE_LOG_LEVEL`, by default INFO. Raises CallerError when there is no such level."""
    level = os.environ.get("TENURE_LOG_LEVEL", "INFO").upper()
    levels = logging.getLevelNamesMapping()
    if level not in levels:
        raise CallerError(f"TENURE_LOG_LEVEL is {level!r}; it may be one of: {', '.join(levels)}")
    return level
