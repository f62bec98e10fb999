"""The address of the server: had whole, or refused with words that say why."""

import socket

import pytest

from tenure.errors import ResourceError
from tenure.server.supervisor import SEND_BUFFER_BYTES, address_of, listening


def test_a_free_port() -> None:
    with listening("127.0.0.1", 0) as listener:
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
        with listening("::1", 0) as listener:
            assert address_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"
    except ResourceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1", "x" * 64, "a..b", "256.0.0.1"])
def test_an_address_that_cannot_be_had(host: str) -> None:
    with pytest.raises(ResourceError, match="cannot listen on"), listening(host, 0):
        pytest.fail("it listens")


def test_a_port_that_is_taken() -> None:
    with listening("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ResourceError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            listening("127.0.0.1", port).__enter__()
