"""`tenure serve` as a process of its own, and what a test may ask of it from outside."""

import os
import queue
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import IO, Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.wire import Wire

READY_WITHIN = 90.0
_TRIES = 1200
_PAUSE = 0.025


@dataclass(frozen=True)
class Work:
    """Totals of one engine: steps, and tokens by what became of them."""

    steps: int
    computed: int
    cached: int
    recomputed: int
    sampled: int
    wasted: int

    def __sub__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))


class Figures:
    """What `/metrics` said at one time."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """Of all samples of this name with these labels; 0 when there is none."""
        return sum(s.value for s in self._samples if s.name == name and labels.items() <= s.labels.items())

    def unrest(self) -> list[str]:
        """What differs from a server at rest."""
        gauges = ("tenure_open_requests", "tenure_items", "tenure_permits_held")
        wrong = [f"{name} {self.sum(name)}" for name in gauges if self.sum(name)]
        wrong += [
            f"{name} {state} {held}"
            for name in ("tenure_kv_blocks", "tenure_slots")
            for state in ("leased", "quarantined")
            if (held := self.sum(name, state=state))
        ]
        arrived, ended = self.sum("tenure_requests_arrived_total"), self.sum("tenure_requests_total")
        return wrong if arrived == ended else [*wrong, f"{arrived} arrived, {ended} ended"]


class ServerProcess:
    """A running server. `stop` (or `kill`) ends it; whatever the way, no process of it may be left."""

    def __init__(
        self,
        *arguments: str,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` and `tls` are what its clients here use, `environment` is on top of ours."""
        self._headers = dict(headers or {})
        self._tls = tls
        command = [sys.executable, "-m", "tenure", "serve", *arguments, "--port", "0"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **(environment or {})},
        )
        self.sources = {name: source or name for name, _, source in (a.partition("=") for a in _models(arguments))}
        """Of each model by its name, in the order of the command line."""
        self._log: list[str] = []
        self._announced: list[str] = []
        self.expected_to_end = False
        self._printed: queue.Queue[str | None] = queue.Queue()
        self._relatives: dict[int, psutil.Process] = {}
        self._readers = [
            threading.Thread(target=self._read_errors, args=(self._process.stderr,), daemon=True),
            threading.Thread(target=self._read_prints, args=(self._process.stdout,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.address = ""
        self._http: httpx.Client | None = None

    def wait_ready(self) -> None:
        """Wait until the server says so; fails with its log when it ends first. After a restart it says so again."""
        deadline = time.monotonic() + READY_WITHIN
        while True:
            try:
                line = self._printed.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not ready in {READY_WITHIN} s: {self.log_text()}") from None
            assert line is not None, f"the server ended before it was ready: {self.log_text()}"
            if found := re.search(r"ready at (https?://\S+)", line):
                break
        if not self.address:
            self.address = found[1]
            self._http = self.new_client()
        self._note_relatives()

    # processes

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def engine_pid(self) -> int:
        """Of the first engine; 0 when none runs."""
        return self._child("tenure.engine.main")

    @property
    def api_pid(self) -> int:
        return self._child("tenure.api.main")

    def _child(self, module: str) -> int:
        return next(iter(self._children(module)), 0)

    def _children(self, module: str) -> list[int]:
        found = []
        for child in psutil.Process(self.pid).children():
            with suppress(psutil.Error):  # it has just ended
                if module in child.cmdline():
                    found.append(child.pid)
        return found

    def port(self) -> int:
        """Where it listens; 0 while it does not."""
        listeners = [one for one in psutil.Process(self.pid).net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        return listeners[0].laddr.port if listeners else 0

    def api_pids(self) -> list[int]:
        return self._children("tenure.api.main")

    def engine_pids(self) -> dict[int, int]:
        """The processes of all engines by their numbers, counted over all models; those that have started so far."""
        found = {}
        for pid in self._children("tenure.engine.main"):
            with suppress(psutil.Error):
                for connection in psutil.Process(pid).net_connections("unix"):
                    if number := re.search(r"/engine-(\d+)\.sock$", str(connection.laddr)):
                        found[int(number[1])] = pid
        return found

    def worker_of(self, wire: Wire) -> int:
        """The API process that serves a connection."""
        for pid in self.api_pids():
            with suppress(psutil.Error):
                for connection in psutil.Process(pid).net_connections("tcp"):
                    if connection.raddr and connection.raddr.port == wire.port:
                        return pid
        raise AssertionError("no API process has the connection")

    def engine_socket(self, model: str) -> str:
        """Where the engine of a model is reached."""
        name = f"engine-{list(self.sources).index(model)}.sock"
        addresses = {
            str(connection.laddr)
            for child in psutil.Process(self.pid).children()
            for connection in child.net_connections("unix")
        }
        return next(address for address in addresses if address.endswith(f"/{name}"))

    def _note_relatives(self) -> None:
        try:
            relatives = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self._relatives.update((process.pid, process) for process in relatives)

    def send_signal(self, number: signal.Signals) -> None:
        self._note_relatives()
        self._process.send_signal(number)

    def wait(self, timeout: float) -> int:
        """The exit code, once the server and every process of it has ended."""
        self.expected_to_end = True
        self._note_relatives()
        code = self._process.wait(timeout)
        alive = [process for process in self._relatives.values() if _lives(process)]
        until(lambda: not any(map(_lives, alive)), f"processes survived: {alive}", tries=400)
        for reader in self._readers:
            reader.join(10)
        return code

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait(60)

    def close(self) -> None:
        """End what is left of the server, by force if need be, and check what it leaves behind."""
        try:
            self.check_alive()
            if self.alive:
                self.stop()
            self.wait(1)
        finally:
            if self.alive:
                self._process.kill()
                self._process.wait()
            for reader in self._readers:
                reader.join(10)
            if self._http is not None:
                self._http.close()
            for stream in (self._process.stdout, self._process.stderr):
                assert stream is not None
                stream.close()
        self.check_log()

    # what it says

    def _read_errors(self, stream: IO[str]) -> None:
        for line in stream:
            self._log.append(line.rstrip("\n"))

    def _read_prints(self, stream: IO[str]) -> None:
        for line in stream:
            self._announced.append(line.rstrip("\n"))
            self._printed.put(line)
        self._printed.put(None)

    def announced(self) -> list[str]:
        """The lines on standard output so far."""
        return list(self._announced)

    def log(self) -> list[str]:
        """The lines on standard error so far."""
        return list(self._log)

    def log_text(self) -> str:
        return "\n".join(self.log())

    def check_alive(self) -> None:
        """Fails when the server has ended and no test wanted that."""
        code = self._process.poll()
        assert code is None or self.expected_to_end, f"the server ended with code {code}: {self.log()[-20:]}"

    def check_log(self) -> None:
        assert "Traceback" not in self.log_text(), self.log_text()

    def log_lines(self, *parts: str) -> list[str]:
        """The lines on standard error so far that contain all of `parts`."""
        return [line for line in self.log() if all(part in line for part in parts)]

    def wait_for_log(self, *parts: str, count: int = 1) -> list[str]:
        """What `log_lines` says once there are so many: a process logs before it acts, but words take their time."""
        until(lambda: len(self.log_lines(*parts)) >= count, lambda: f"{parts} is not in {self.log_text()}")
        return self.log_lines(*parts)

    # HTTP

    def new_client(self, **more: Any) -> httpx.Client:
        verify = True if self._tls is None else self._tls
        given = {"timeout": 60, "headers": self._headers, "verify": verify, **more}
        return httpx.Client(base_url=self.address, trust_env=False, **given)

    @property
    def http(self) -> httpx.Client:
        assert self._http is not None
        return self._http

    @contextmanager
    def connect(self) -> Iterator[Wire]:
        """A raw connection."""
        url = httpx.URL(self.address)
        with socket.create_connection((url.host, url.port or 80), timeout=60) as sock:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=url.host)
            with sock, Wire(sock) as wire:
                yield wire

    def complete(self, prompt: Any, max_tokens: int, model: str = "script", **more: Any) -> dict[str, Any]:
        """A whole completion at temperature 0."""
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        reply = self.http.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    def text(self, prompt: Any, max_tokens: int, model: str = "script", **more: Any) -> str:
        return str(self.complete(prompt, max_tokens, model, **more)["choices"][0]["text"])

    def ledger(self) -> dict[str, Any]:
        ledger: dict[str, Any] = self.http.get("/ledger").json()
        return ledger

    def engine(self, model: str = "script") -> dict[str, Any]:
        """The engine's entry in the ledger."""
        found: dict[str, Any] = next(entry for entry in self.ledger()["engines"] if entry["model"] == model)
        return found

    def outcomes(self) -> dict[str, int]:
        counts: dict[str, int] = self.ledger()["http"]["outcomes"]
        return counts

    def load(self) -> int:
        return int(self.http.get("/load").json()["server_load"])

    def work(self, model: str = "script") -> Work:
        totals = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                if sample.labels.get("model") == model and sample.name == "tenure_tokens_total":
                    totals[sample.labels["kind"]] = int(sample.value)
                if sample.labels.get("model") == model and sample.name == "tenure_engine_steps_total":
                    totals["steps"] = int(sample.value)
        return Work(**totals)

    def figures(self) -> Figures:
        return Figures(self.http.get("/metrics").text)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of a `tenure` command about this server."""
        command = [sys.executable, "-m", "tenure", *arguments, "--url", self.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    # rest

    def wait_at_rest(self) -> dict[str, Any]:
        """Wait until nothing is held or open; returns that ledger. What never comes back fails here."""
        found: dict[str, Any] = {}

        def at_rest() -> bool:
            found.clear()
            found.update(self.ledger())
            return not unrest(found)

        until(at_rest, lambda: f"not at rest: {unrest(found)}; holders {[e['holders'] for e in found['engines']]}")
        assert self.load() == 0
        assert self.figures().unrest() == []
        return found


def unrest(ledger: dict[str, Any]) -> list[str]:
    """What of a ledger differs from that of a server at rest."""
    http = ledger["http"]
    wrong = [] if ledger["conserved"] else ["not conserved"]
    if http["open"] or http["arrivals"] != sum(http["outcomes"].values()):
        wrong.append(f"http {http}")
    for engine in ledger["engines"]:
        blocks, slots, permits = engine["blocks"], engine["slots"], engine["permits"]
        if not engine["answering"]:
            wrong.append(f"{engine['model']} does not answer")
        if blocks["free"] + blocks["cached"] != blocks["total"]:
            wrong.append(f"blocks {blocks}")
        if slots["free"] != slots["total"]:
            wrong.append(f"slots {slots}")
        wrong += [f"{kind} permits {permit}" for kind, permit in permits.items() if permit["held"]]
        if any(engine["items"].values()) or engine["holders"] or engine["figures"]["queued_requests"]:
            wrong.append(f"items {engine['items']}")
    return wrong


def until(
    condition: Callable[[], bool], problem: str | Callable[[], str] = "it never happened", tries: int = _TRIES
) -> None:
    """Ask again and again, a bounded number of times, until something is so that nobody tells us about."""
    for _ in range(tries):
        if condition():
            return
        time.sleep(_PAUSE)
    raise AssertionError(problem if isinstance(problem, str) else problem())


def _models(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments before the first flag."""
    return list(takewhile(lambda argument: not argument.startswith("-"), arguments))


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
