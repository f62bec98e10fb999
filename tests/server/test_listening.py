"""The address of the server: had whole, or refused with words that say why."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from tenure.errors import ResourceError
from tenure.server import addresses
from tenure.server.addresses import SEND_BUFFER_BYTES, address_of, listening, socket_folder


def test_a_free_port() -> None:
    with listening("127.0.0.1", 0) as [listener]:
        port = listener.getsockname()[1]
        assert address_of(listener) == f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            with accepted:
                # Linux gives twice what was asked for, for its own books.
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BUFFER_BYTES
                assert client.getpeername()[1] == port
    with listening("127.0.0.1", port):
        pass  # the port is free again at once


def test_an_address_of_the_other_family() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        with listening("::1", 0) as [listener]:
            assert address_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"
    except ResourceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1", "x" * 64, "a..b", "256.0.0.1"])
def test_an_address_that_cannot_be_had(host: str) -> None:
    with pytest.raises(ResourceError, match="cannot listen on"), listening(host, 0):
        pytest.fail("it listens")


def test_a_port_that_is_taken() -> None:
    with listening("127.0.0.1", 0) as [first]:
        port = first.getsockname()[1]
        with pytest.raises(ResourceError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            listening("127.0.0.1", port).__enter__()


@pytest.mark.parametrize("host", ["", "localhost"])
def test_both_families(host: str) -> None:
    """On the same port; an empty host is every interface."""
    with listening(host, 0) as listeners:
        port = listeners[0].getsockname()[1]
        assert address_of(listeners[0]) == f"http://{(host and '127.0.0.1') or '0.0.0.0'}:{port}"
        families = {listener.family for listener in listeners}
        assert socket.AF_INET in families
        for listener in listeners:
            loopback = "::1" if listener.family == socket.AF_INET6 else "127.0.0.1"
            with socket.create_connection((loopback, port)) as client:
                accepted, _ = listener.accept()
                with accepted:
                    assert accepted.getpeername()[1] == client.getsockname()[1]
        assert (socket.AF_INET6 in families) == Path("/proc/net/if_inet6").exists()


def test_a_family_that_this_machine_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name's other address serves."""
    infos = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0))]
    infos.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)))  # type: ignore[arg-type]
    monkeypatch.setattr(addresses.socket, "getaddrinfo", lambda *given, **more: infos)
    with listening("both", 0) as [listener]:
        assert listener.family == socket.AF_INET


def test_a_long_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a socket is short on Linux; there are other places."""
    folder = tmp_path / ("x" * 80)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with socket_folder() as path, socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"{path}/engine-65535.sock")
        assert os.stat(path).st_mode & 0o777 == 0o700
        assert list(folder.iterdir()) == []
    assert not os.path.exists(path)


def test_nowhere_to_put_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_FOLDERS", ("/nowhere", "/proc"))
    with pytest.raises(ResourceError, match="there is no folder for sockets: set TMPDIR"), socket_folder():
        pytest.fail("there is one")
