"""Under TLS the same holds as without: leaving is noticed, unread answers are bounded, refused clients read why."""

import ssl
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tenure.config import TlsConfig
from tests.certificates import Certificate, self_signed
from tests.http.rig import LIMITS, serving
from tests.http.web_server import RawClient, post
from tests.tasks import LOOPS, run, until

Leave = Callable[[RawClient], None]


def end_tcp(client: RawClient) -> None:
    """The connection below ends, without TLS's own goodbye."""
    client.writer.transport.abort()


LEAVING: dict[str, Leave] = {"close": RawClient.close, "reset": RawClient.reset, "cut": end_tcp}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    folder: Path = tmp_path_factory.mktemp("tls")
    return self_signed(folder, "server")


def settings(certificate: Certificate) -> TlsConfig:
    return TlsConfig(certfile=str(certificate.certificate), keyfile=str(certificate.key))


def trust(certificate: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate.certificate))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("path", ["/wait", "/stream"])
@pytest.mark.parametrize("leave", LEAVING)
def test_leaving_ends_the_request(certificate: Certificate, loop: str, path: str, leave: str) -> None:
    async def scenario() -> None:
        async with serving(tls=settings(certificate)) as rig, rig.client(trust(certificate)) as client:
            client.send(post(path))
            await until(lambda: rig.context.running == 1)
            LEAVING[leave](client)
            await rig.idle_after_arrival(client_cancelled=1)

    run(scenario, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_second_request_does_not_hide_the_leaving(certificate: Certificate, loop: str) -> None:
    async def scenario() -> None:
        async with serving(tls=settings(certificate)) as rig, rig.client(trust(certificate)) as client:
            client.send(post("/wait"))
            await until(lambda: rig.context.running == 1)
            client.send(post("/hello"))
            client.close()
            await until(lambda: rig.context.running == 0)
            await rig.idle_after_arrival(client_cancelled=1)

    run(scenario, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_does_not_read_is_given_up(certificate: Certificate, loop: str) -> None:
    limits = msgspec.structs.replace(LIMITS, stall_timeout=0.2)

    async def scenario() -> None:
        async with serving(tls=settings(certificate), limits=limits) as rig, rig.client(trust(certificate)) as client:
            client.writer.transport.pause_reading()
            client.send(post("/flood"))
            await rig.idle_after_arrival(stalled=1)

    run(scenario, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_refused_client_reads_why(certificate: Certificate, loop: str) -> None:
    async def scenario() -> None:
        async with serving(tls=settings(certificate)) as rig:
            async with rig.client(trust(certificate)) as client:
                client.send(post("/hello", b" " * 3_000_000))
                reply = await client.reply()
                assert (reply.status, reply.code) == (413, "request_too_large")
            async with rig.client(trust(certificate)) as client:
                client.send(b"nonsense\r\n\r\n")
                assert (await client.reply()).status == 400
            await until(lambda: not rig.server.server_state.connections)
            await rig.idle(invalid=1)

    run(scenario, loop)
