"""The listening sockets of a server, one for each address family, and the folder of its internal sockets."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory

from tenure.errors import ResourceError

SEND_BUFFER_BYTES = 64 * 1024
"""The kernel would take megabytes for a client that never reads; that is hours of tokens."""
_BACKLOG = 2048
_LOOPBACKS = ("127.0.0.1", "::1")
"""Clients know both by the name of localhost, whatever this machine's own table of names says."""
_FOLDERS = (None, "/tmp", "/dev/shm")
"""Where a folder for sockets may be; None is where temporary files go (TMPDIR)."""
_LONGEST_FOLDER = 80
"""In bytes; Linux takes 107 for the path of a socket."""


@contextmanager
def socket_folder() -> Iterator[str]:
    """A temporary folder for sockets, private to this user; raises ResourceError when none can be made."""
    for parent in _FOLDERS:
        try:
            # A folder that cannot be removed (no descriptor is left) must not hide the reason for the server's end.
            folder = TemporaryDirectory(prefix="tenure-", dir=parent, ignore_cleanup_errors=True)
        except OSError:
            continue
        with folder as path:
            if len(path.encode()) <= _LONGEST_FOLDER:
                yield path
                return
    raise ResourceError("there is no folder for sockets: set TMPDIR to a short path to where files can be written")


@contextmanager
def listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """The listening sockets of the server, IPv4's first; an empty host is every interface.

    Raises ResourceError when the address is not available. An address family that this machine lacks is left out.
    """
    with ExitStack() as stack:
        try:
            listeners = _listeners(stack, host, port)
        except (OSError, UnicodeError) as error:  # the latter for a host that can be no name
            reason = error.strerror if isinstance(error, OSError) else "not the name of a host"
            raise ResourceError(f"cannot listen on {host}:{port}: {reason or error}") from error
        yield listeners


def _listeners(stack: ExitStack, host: str, port: int) -> list[socket.socket]:
    hosts = _LOOPBACKS if host == "localhost" else (host or None,)
    found = [
        info
        for name in hosts
        for info in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    ]
    addresses = {family: address for family, _, _, _, address in reversed(found)}
    listeners: list[socket.socket] = []
    for family, address in sorted(addresses.items()):
        if listeners:  # where any port will do, it is the same for both
            address = (address[0], listeners[0].getsockname()[1], *address[2:])
        try:
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            if family == socket.AF_INET6 and len(addresses) > 1:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) or len(addresses) == 1:
                raise
        else:
            listeners.append(listener)
    if not listeners:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    return listeners


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """The URL at which a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
