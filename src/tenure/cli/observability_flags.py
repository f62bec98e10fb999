"""The flags of `tenure serve` that say what the server tells of itself: logs, metrics, traces."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Literal
from urllib.parse import urlsplit

from tenure.cli.flags import whole
from tenure.config import ReportConfig
from tenure.errors import CallerError, ResourceError


@dataclass(frozen=True, kw_only=True)
class ObserveOptions:
    """Logs, metrics, traces."""

    log_format: Literal["text", "json"] = "text"
    """Form of the log lines on standard error."""
    enable_log_requests: bool = False
    """Log what callers send, prompts included, when a request has been read; by default nothing of it is logged."""
    max_log_len: Annotated[int, whole(1)] = 2048
    """Most characters that are logged of a request's body."""
    vllm_metrics: bool = False
    """Export the metrics under vLLM's names as well."""
    otlp_traces_endpoint: str = ""
    """Where spans go, by OTLP over HTTP, such as http://localhost:4318/v1/traces. Needs the extra tenure[otel]."""


def report_config(options: ObserveOptions) -> ReportConfig:
    """Raises CallerError for an address that is none, ResourceError when tracing is wanted and not installed."""
    return ReportConfig(
        log_format=options.log_format,
        log_bodies=options.max_log_len if options.enable_log_requests else 0,
        traces_endpoint=_endpoint(options.otlp_traces_endpoint) if options.otlp_traces_endpoint else "",
    )


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CallerError(f"--otlp-traces-endpoint is an address such as http://localhost:4318/v1/traces, not {url!r}")
    if not all(map(_installed, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"))):
        raise ResourceError("--otlp-traces-endpoint needs OpenTelemetry: pip install 'tenure[otel]'")
    return url if parts.path not in ("", "/") else f"{url.rstrip('/')}/v1/traces"


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
