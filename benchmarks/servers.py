"""Servers to measure: Tenure, and a peer that is given as a command line."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
import psutil


@contextmanager
def tenure(*arguments: str, port: int = 8190) -> Iterator[str]:
    """A running `tenure serve`; its address."""
    command = [sys.executable, "-m", "tenure", "serve", *arguments, "--port", str(port)]
    with running(command, port, "/ready") as url:
        yield url


@contextmanager
def running(command: Sequence[str], port: int, ready: str, timeout: float = 600.0) -> Iterator[str]:
    """Any server, once `ready` answers 200; it is ended with its children."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(url + ready, process, timeout)
        yield url
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        for child in children:
            if child.is_running():
                child.kill()


def engine_socket(number: int = 0) -> str:
    """Where an engine of the only running Tenure below this process is reached."""
    ending = f"/engine-{number}.sock"
    for process in psutil.Process().children(recursive=True):
        for connection in process.net_connections("unix"):
            if str(connection.laddr).endswith(ending):
                return str(connection.laddr)
    raise RuntimeError("no engine has a socket")


def wait_ready(url: str, process: subprocess.Popen[bytes], timeout: float) -> None:
    """Poll until `url` answers 200."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}")
        try:
            if httpx.get(url, timeout=5.0).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.02)
    raise TimeoutError(url)


def at_rest(busy: float = 10.0, seconds: float = 1.0, timeout: float = 60.0) -> None:
    """Wait until all cores together were busy for less than `busy` percent of `seconds`, or until `timeout` is over."""
    until = time.monotonic() + timeout
    while psutil.cpu_percent(seconds) > busy and time.monotonic() < until:
        pass
