"""Small programs that stand for children of the supervisor, and a look at what a test leaves behind.

Each program knows: `report(line)`, `mark(word)` (appends to the file `marks`), `config` (read from standard input),
`wait_end_of_file()`, and the descriptors it was given.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from tenure.process.reports import AnyReport
from tenure.server.children import ChildSpec
from tests.tasks import until

_PRELUDE = """
import json, os, signal, sys
*descriptors, reports, parent = map(int, sys.argv[1:])
def report(kind, **fields):
    os.write(reports, json.dumps({"type": kind, **fields}).encode() + b"\\n")
def mark(word):
    with open("marks", "a") as marks:
        marks.write(word + "\\n")
def wait_end_of_file():
    while os.read(0, 4096):
        pass
"""
_READ_CONFIG = "config = json.loads(sys.stdin.buffer.raw.readline())\n"


class Settings(msgspec.Struct, frozen=True):
    """A configuration."""

    text: str = "čau\nsvěte"


class Programs:
    """Writes programs to `folder`, which must be the working directory, and reads what they marked."""

    def __init__(self, folder: Path) -> None:
        self.reports: list[AnyReport] = []
        self._folder = folder

    def spec(
        self,
        code: str,
        *,
        config: msgspec.Struct = Settings(),  # noqa: B008
        descriptors: tuple[int, ...] = (),
        reads_config: bool = True,
        environment: dict[str, str] | None = None,
    ) -> ChildSpec:
        (self._folder / "program.py").write_text(_PRELUDE + _READ_CONFIG * reads_config + code)
        return ChildSpec(
            name="program",
            module="program",
            config=config,
            descriptors=descriptors,
            on_report=self.reports.append,
            environment=environment or {},
        )

    @property
    def marks(self) -> list[str]:
        path = self._folder / "marks"
        return path.read_text().split() if path.exists() else []

    async def wait_marks(self, count: int) -> None:
        """Wait until the programs have marked so many words in all."""
        await until(lambda: len(self.marks) >= count)


def descriptors() -> set[str]:
    """What this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:  # the one that listed them
            continue
    return found


@contextmanager
def nothing_left() -> Iterator[None]:
    """No child, not even a dead one, and no descriptor is left at the end."""
    before = descriptors()
    yield
    assert psutil.Process().children(recursive=True) == []
    assert descriptors() == before


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open `count` more, and then none; what is open stays."""
    opened = [os.dup(0) for _ in range(count + 1)]
    for descriptor in opened:
        os.close(descriptor)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
