"""Watchers of the storm: the server's own ledger, its processes, its log. What is wrong in passing is a fault at once.

At every moment, whichever process answers: every engine's ledger is conserved, no load is negative, and the figures of
`/metrics` add up, arrivals to outcomes and what is open, and the stages of the open requests. `Watch` keeps the highest
figures and the samples from which growth is told.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import msgspec

from benchmarks.storm.books import Books
from benchmarks.storm.connection import Cut, connect, get
from benchmarks.storm.server_process import LogLine, ServerProcess, Usage
from tenure.cli.check import ledger_faults
from tenure.wire.messages import ServerLedger

LOOK_EVERY = 0.5
_METRICS_EVERY = 10
"""Looks from one look at the metrics, which are long, to the next."""
_SECOND_LOOKS = 4

Page = TypeVar("Page")


class Load(msgspec.Struct):
    server_load: int


@dataclass
class Tokens:
    """Totals of an engine, by the epoch in which it counted them: a restarted one begins at zero."""

    by_epoch: dict[tuple[str, int, str], tuple[int, int]] = field(default_factory=dict)

    def note(self, ledger: ServerLedger) -> None:
        for engine in ledger.engines:
            if engine.answering:
                counts = engine.tokens
                self.by_epoch[engine.model, engine.index, engine.epoch] = (counts.computed, counts.sampled)

    @property
    def computed(self) -> int:
        return sum(computed for computed, _ in self.by_epoch.values())

    @property
    def sampled(self) -> int:
        return sum(sampled for _, sampled in self.by_epoch.values())


@dataclass
class Peaks:
    """The highest figures that were seen."""

    load: int = 0
    resident: int = 0
    descriptors: int = 0
    threads: int = 0
    slowest_page: float = 0.0
    """Seconds that a ledger took to come."""


class Watch:
    """See the module's text. Owner of its peaks, samples and tokens; the faults go into the books."""

    def __init__(self, server: ServerProcess, books: Books, *, killing: bool) -> None:
        self.peaks = Peaks()
        self.samples: list[tuple[float, Usage]] = []
        self.tokens = Tokens()
        self.ledger: ServerLedger | None = None
        """The last one."""
        self._server = server
        self._books = books
        self._killing = killing

    async def run(self, until: float) -> None:
        """Look again and again until the time is over."""
        looks = 0
        while anyio.current_time() < until:
            try:
                await self.look()
                if looks % _METRICS_EVERY == 0:
                    await self.check_metrics()
            except (Cut, OSError) as error:
                if not self._killing:
                    self._books.fault(f"the server's own ledger could not be read: {error}")
            looks += 1
            await anyio.sleep(LOOK_EVERY)

    async def look(self) -> list[str]:
        """One look at everything but the metrics; returns what is wrong with the ledger, which is a fault only if it
        stays, since the ledger's parts are not read at one moment."""
        load = await self.page("/load", Load)
        self.peaks.load = max(self.peaks.load, load.server_load)
        if load.server_load < 0:
            self._books.fault(f"the load is {load.server_load}")
        wrong: list[str] = []
        for _ in range(1 + _SECOND_LOOKS):
            wrong = self._judge(await self.timed_ledger())
            if not wrong:
                break
            await anyio.sleep(LOOK_EVERY)
        if not self._killing:
            for fault in wrong:
                self._books.fault(f"ledger: {fault}")
        self.note_usage()
        self.read_log()
        return wrong

    def _judge(self, ledger: ServerLedger) -> list[str]:
        self.ledger = ledger
        self.tokens.note(ledger)
        if not ledger.conserved:
            self._books.fault("a ledger was not conserved")
        return list(ledger_faults(ledger))

    async def timed_ledger(self) -> ServerLedger:
        began = anyio.current_time()
        ledger = await self.page("/ledger", ServerLedger)
        self.peaks.slowest_page = max(self.peaks.slowest_page, anyio.current_time() - began)
        return ledger

    async def check_metrics(self) -> Mapping[str, float]:
        """The metrics must say the same of themselves; returns the sum of each name's samples."""
        text = await self._get("/metrics")
        sums: dict[str, float] = {}
        for line in text.decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.partition("{")[0].partition(" ")[0], None, line.rpartition(" ")[2]
                sums[name] = sums.get(name, 0.0) + float(value)
        arrived, ended = sums["tenure_requests_arrived_total"], sums.get("tenure_requests_total", 0.0)
        if arrived - ended != sums["tenure_open_requests"]:
            self._books.fault(
                f"metrics: {arrived} arrived, {ended} ended, {sums['tenure_open_requests']} open by stage"
            )
        return sums

    def note_usage(self) -> Usage:
        usage, peaks = self._server.usage(), self.peaks
        self.samples.append((anyio.current_time(), usage))
        peaks.resident = max(peaks.resident, usage.resident)
        peaks.descriptors = max(peaks.descriptors, usage.descriptors)
        peaks.threads = max(peaks.threads, usage.threads)
        return usage

    def read_log(self) -> None:
        """Enter into the books what the server said since the last look."""
        for line in self._server.new_lines(self._take):
            self._books.fault(f"in the log: {line[:300]}")

    def _take(self, line: LogLine) -> None:
        if line.logger == "tenure.access" and line.outcome is not None:
            self._books.line(line.label, line.outcome)
        elif line.exception or (line.level in ("ERROR", "CRITICAL") and not self._killing):
            self._books.fault(f"in the log: {line.level} {line.message} {line.exception[-2000:]}")

    async def page(self, path: str, kind: type[Page]) -> Page:
        """One of the server's pages, on a connection of its own, so that any process may answer."""
        return msgspec.json.decode(await self._get(path), type=kind)

    async def _get(self, path: str) -> bytes:
        with await connect(self._server.address) as wire:
            await wire.send(get(path))
            status, _ = await wire.head()
            body = await wire.body()
        if status != 200:
            self._books.fault(f"{path} was answered {status}")
        return body
