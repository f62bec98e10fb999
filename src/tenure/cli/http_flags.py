"""The flags of `tenure serve` that say who may talk to it, how, and how much at a time."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated

import msgspec
from cyclopts import Parameter

from tenure.cli.flags import AtLeastOne, Positive, Seconds, Texts, whole
from tenure.config import CorsConfig, HttpLimits, KeyRing, TlsConfig, environment_api_keys
from tenure.errors import CallerError

_HEADER_BYTES = Parameter(name="--max-header-size", alias="--h11-max-incomplete-event-size")
_MIB = 1024 * 1024
_DEFAULTS = HttpLimits()
_PREFIX = re.compile(r"(/[A-Za-z0-9_.~-]+)+")


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Keys, origins, certificates, the path."""

    api_key: Texts = field(default_factory=list, repr=False)
    """Keys that clients may use. Other users of the machine can read them in the list of processes: rather use
    --api-key-file, or TENURE_API_KEY, which counts when neither flag is given. Without a key all may pass."""
    api_key_file: str | None = None
    """File of further keys, one a line; empty lines and lines that begin with # are skipped."""
    allowed_origins: Texts = field(default_factory=list)
    """Origins whose web pages may call this server (CORS), * for all; none by default."""
    allowed_methods: Texts = field(default_factory=lambda: ["*"])
    """Methods that those pages may use."""
    allowed_headers: Texts = field(default_factory=lambda: ["*"])
    """Request headers that those pages may send."""
    allow_credentials: bool = False
    """Let those pages send cookies and stored credentials along."""
    ssl_certfile: str | None = None
    """Certificate (PEM, with its chain); with it the server speaks HTTPS alone."""
    ssl_keyfile: str | None = None
    """The certificate's key (PEM, not encrypted), if it is not in the same file."""
    ssl_ca_certs: str | None = None
    """Authorities (PEM) that sign the certificates of clients."""
    ssl_cert_reqs: Annotated[int, whole(0, 2)] = 0
    """Certificates of clients: 0 not asked for, 1 checked if there is one, 2 required."""
    ssl_ciphers: str | None = None
    """Ciphers for TLS up to 1.2, in OpenSSL's notation."""
    root_path: str = ""
    """Prefix under which a proxy serves this server, whether or not the proxy takes it off."""


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """How much, and for how long; `HttpLimits` has fields of these names, but sizes of bodies in bytes."""

    max_body_size: Positive = _DEFAULTS.max_body_bytes / _MIB
    """Largest request body, in MiB."""
    max_open_body_size: Positive = _DEFAULTS.max_open_body_bytes / _MIB
    """Most of all request bodies that one API process holds at a time, in MiB."""
    max_body_depth: Annotated[int, Parameter(name="--max-json-depth"), whole(1, 256)] = _DEFAULTS.max_body_depth
    """Deepest nesting of arrays and objects in a body."""
    max_body_items: Annotated[int, Parameter(name="--max-json-items"), whole(1)] = _DEFAULTS.max_body_items
    """Most items of all arrays and objects in a body; an array or an object counts as 16."""
    max_header_bytes: Annotated[int, _HEADER_BYTES, whole(1024)] = _DEFAULTS.max_header_bytes
    """Largest request head, in bytes."""
    max_header_count: Annotated[int, Parameter(alias="--h11-max-header-count"), whole(1)] = _DEFAULTS.max_header_count
    """Most headers of a request."""
    header_timeout: Positive = _DEFAULTS.header_timeout
    """Seconds in which a request's head must arrive."""
    body_timeout: Positive = _DEFAULTS.body_timeout
    """Seconds in which a request's body must arrive."""
    stall_timeout: Positive = _DEFAULTS.stall_timeout
    """Seconds that a response may wait for a client that does not read, and that its generation may stand in all."""
    max_connections: AtLeastOne = _DEFAULTS.max_connections
    """Most connections that one API process holds open."""
    keep_alive_timeout: Annotated[Seconds, Parameter(name="--timeout-keep-alive")] = _DEFAULTS.keep_alive_timeout
    """Seconds that a connection may be idle between requests; 0 closes it behind each answer. A proxy in front should
    give up its idle connections earlier than that."""
    keep_alive_interval: Annotated[Seconds, Parameter(name="--sse-keep-alive-interval")] = _DEFAULTS.keep_alive_interval
    """Seconds of silence in a stream after which a comment line is sent; 0 is never."""


def key_ring(options: AccessOptions) -> KeyRing:
    """Return the keys: those of the flags, else those of the environment. Raises CallerError."""
    given = tuple(key.strip() for key in options.api_key)
    if not all(given):
        raise CallerError("--api-key was given without a key; a server with an empty key would be open to all")
    if options.api_key_file is not None:
        given += _keys_of(options.api_key_file)
    return KeyRing(given or environment_api_keys())


def _keys_of(path: str) -> tuple[str, ...]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CallerError(f"--api-key-file {path}: {reason}") from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise CallerError(f"--api-key-file {path} holds no key; a server without keys would be open to all")
    return keys


def http_limits(options: LimitOptions) -> HttpLimits:
    fields = asdict(options)
    for name in ("max_body", "max_open_body"):
        fields[f"{name}_bytes"] = max(1, round(fields.pop(f"{name}_size") * _MIB))
    return HttpLimits(**fields)


def cors(options: AccessOptions) -> CorsConfig:
    lists = ("origins", "methods", "headers")
    allowed = {name: _listed(f"--allowed-{name}", getattr(options, f"allowed_{name}")) for name in lists}
    return CorsConfig(**allowed, credentials=options.allow_credentials)


def _listed(flag: str, values: Sequence[str]) -> tuple[str, ...]:
    """The values of a flag, each of which may also be a JSON list, as vLLM takes it."""
    found: list[str] = []
    for value in values:
        if not value.startswith("["):
            found.append(value)
            continue
        try:
            found += msgspec.json.decode(value, type=list[str])
        except msgspec.MsgspecError as error:
            raise CallerError(f"{flag} {value} is no JSON list of texts") from error
    return tuple(found)


def tls(options: AccessOptions) -> TlsConfig | None:
    """Return what the flags ask for, once it is known to work; None without a certificate. Raises CallerError."""
    others = (options.ssl_keyfile, options.ssl_ca_certs, options.ssl_ciphers, options.ssl_cert_reqs)
    if options.ssl_certfile is None:
        if any(others):
            raise CallerError("the --ssl flags need --ssl-certfile")
        return None
    if options.ssl_cert_reqs and options.ssl_ca_certs is None:
        raise CallerError("--ssl-cert-reqs needs --ssl-ca-certs, which says whose certificates are good")
    config = TlsConfig(**{name: getattr(options, f"ssl_{name}") for name in TlsConfig.__struct_fields__})
    _try_out(config)
    return config


def _try_out(config: TlsConfig) -> None:
    import ssl  # noqa: PLC0415 -- takes time to import, and few servers speak HTTPS themselves

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    what = f"--ssl-certfile {config.certfile}"
    try:
        context.load_cert_chain(config.certfile, config.keyfile, _no_password)
        if config.ca_certs is not None:
            what = f"--ssl-ca-certs {config.ca_certs}"
            context.load_verify_locations(config.ca_certs)
        if config.ciphers is not None:
            what = f"--ssl-ciphers {config.ciphers}"
            context.set_ciphers(config.ciphers)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        with_key = f" with --ssl-keyfile {config.keyfile}" if config.keyfile and "certfile" in what else ""
        raise CallerError(f"{what}{with_key}: {reason}") from error


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one that is not")


def root_path(options: AccessOptions) -> str:
    """Return the prefix as `/like/this`, or nothing. Raises CallerError."""
    path = options.root_path.rstrip("/")
    if path and not _PREFIX.fullmatch(path):
        raise CallerError(f"--root-path {options.root_path}: a path is needed, as /like/this")
    return path
