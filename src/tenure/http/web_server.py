"""uvicorn as an API process runs it: HTTP/1.1 by `http/protocol.py`, and nothing of uvicorn's own around it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from tenure.config import HttpLimits, TlsConfig
from tenure.http.protocol import http_protocol


class _Server(uvicorn.Server):
    """Leaves the signals alone: the process drains before the server is told to exit."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def web_server(app: ASGIApp, limits: HttpLimits, tls: TlsConfig | None = None) -> uvicorn.Server:
    """Return a server that is yet to be given its sockets."""
    config = uvicorn.Config(
        app,
        http=http_protocol(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        **_tls_settings(tls),
    )
    return _Server(config)


def _tls_settings(tls: TlsConfig | None) -> dict[str, Any]:
    if tls is None:
        return {}
    return {
        "ssl_certfile": tls.certfile,
        "ssl_keyfile": tls.keyfile,
        "ssl_ca_certs": tls.ca_certs,
        "ssl_cert_reqs": tls.cert_reqs,
        "ssl_ciphers": tls.ciphers,
    }
