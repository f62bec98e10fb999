"""A fork server of the process that runs the tests, which is waited for at the end."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psutil

from tenure.process.fork_server import ForkServer, Work


@contextmanager
def fork_server(work: Work, **options: float) -> Iterator[ForkServer]:
    """One that does `work`, until the scope is left; nothing of it is left behind."""
    before = set(psutil.Process().children())
    with closing(ForkServer.start(work, **options)) as found:
        yield found
    for process in set(psutil.Process().children()) - before:
        process.wait()
