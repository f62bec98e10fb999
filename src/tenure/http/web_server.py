"""uvicorn as an API process runs it: HTTP/1.1 by `http/protocol.py`, and nothing of uvicorn's own around it."""

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from msgspec.structs import asdict
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
        **({} if tls is None else {f"ssl_{name}": value for name, value in asdict(tls).items()}),
    )
    return _Server(config)
