"""The server under the storm: its command line, its processes and what they use, its log."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import anyio
import httpx
import msgspec
import psutil

from tenure.outcomes import Outcome

READY_WITHIN = 300.0
_STOPS_WITHIN = 60.0


class LogLine(msgspec.Struct):
    """What is read of a line of the server's log."""

    logger: str
    level: str
    message: str
    label: str = ""
    outcome: Outcome | None = None
    exception: str = ""


@dataclass(frozen=True)
class Usage:
    """Of all processes of the server together."""

    resident: int
    """Bytes. What processes share is counted in each."""
    descriptors: int
    threads: int
    processes: int
    engines: int
    """Of the resident bytes, those of the engines."""


class ServerProcess:
    """A running server. Made by `started`, ended by `stop` or, at the latest, `close`."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, log: IO[bytes]) -> None:
        self._process = process
        self._printed = folder / "printed"
        self._log = log
        self._half_line = b""
        self.address = ""

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def wait_ready(self) -> None:
        """Raises RuntimeError when the server ends instead, or takes too long."""
        until = time.monotonic() + READY_WITHIN
        while not (found := re.search(r"ready at (http://\S+)", self._printed.read_text())):
            if not self.alive or time.monotonic() > until:
                raise RuntimeError(f"the server did not become ready: {self._log.read().decode()[-2000:]}")
            await anyio.sleep(0.05)
        self.address = found[1]

    async def wait_ready_again(self, within: float) -> bool:
        """After a death: whether all that died is there again in time."""
        with anyio.move_on_after(within):
            # Whichever process takes each connection. Nobody tells us when.
            while not all([await self._ready() for _ in range(4)]):  # noqa: ASYNC110
                await anyio.sleep(0.2)
            return True
        return False

    async def _ready(self) -> bool:
        async with httpx.AsyncClient(trust_env=False) as http:
            try:
                return (await http.get(f"{self.address}/ready")).status_code == httpx.codes.OK
            except httpx.HTTPError:
                return False

    def children(self) -> dict[str, list[int]]:
        """The processes that serve, by what they are: `api` or `engine`."""
        found: dict[str, list[int]] = {"api": [], "engine": []}
        for child in psutil.Process(self._process.pid).children():
            with suppress(psutil.Error):  # it has just ended
                for kind, pids in found.items():
                    if f"tenure.{kind}.main" in child.cmdline():
                        pids.append(child.pid)
        return found

    def kill_oldest(self) -> str:
        """kill -9 the process that has served longest, so that it is another's turn each time; says which."""
        oldest = min(
            (psutil.Process(pid).create_time(), kind, pid) for kind, pids in self.children().items() for pid in pids
        )
        os.kill(oldest[2], signal.SIGKILL)
        return f"{oldest[1]} {oldest[2]}"

    def usage(self) -> Usage:
        processes = [psutil.Process(self._process.pid)]
        processes += processes[0].children(recursive=True)
        resident = descriptors = threads = alive = engines = 0
        for process in processes:
            with suppress(psutil.Error):
                with process.oneshot():
                    resident += (own := process.memory_info().rss)
                    engines += own if "tenure.engine.main" in process.cmdline() else 0
                    descriptors += process.num_fds()
                    threads += process.num_threads()
                alive += 1
        return Usage(resident, descriptors, threads, alive, engines)

    def new_lines(self, take: Callable[[LogLine], None]) -> list[str]:
        """Read on in the log: `take` gets each line; returns those that are not of the server's making."""
        foreign = []
        *lines, self._half_line = (self._half_line + self._log.read()).split(b"\n")
        for line in lines:
            try:
                take(msgspec.json.decode(line, type=LogLine))
            except msgspec.MsgspecError:
                foreign.append(line.decode(errors="replace"))
        return foreign

    async def stop(self) -> int:
        """SIGTERM; the exit code once no process is left. Raises TimeoutError."""
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.send_signal(signal.SIGTERM)
        until = time.monotonic() + _STOPS_WITHIN
        while self.alive or any(child.is_running() for child in children):
            if time.monotonic() > until:
                raise TimeoutError(f"the server did not end within {_STOPS_WITHIN:g} s")
            await anyio.sleep(0.05)
        return int(self._process.returncode)

    def close(self) -> None:
        """End what is left by force."""
        if self.alive:
            children = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            for child in children:
                with suppress(psutil.Error):
                    child.kill()
        self._process.wait()
        self._log.close()


def started(arguments: Sequence[str], folder: Path) -> ServerProcess:
    """Start `tenure serve` with JSON logs, on a free port; what it prints and logs goes to files in `folder`."""
    command = [sys.executable, "-m", "tenure", "serve", *arguments, "--port", "0", "--log-format", "json"]
    log = folder / "log"
    # Appended to, since several processes write to it.
    with log.open("ab") as errors, (folder / "printed").open("wb") as printed:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors)
    return ServerProcess(process, folder, log.open("rb"))


def scratch() -> "tempfile.TemporaryDirectory[str]":
    """A folder for one storm."""
    return tempfile.TemporaryDirectory(prefix="tenure-soak-")
