"""Counters that several API workers share: one memory mapping, one row per worker, one writer per row.

The supervisor makes the mapping before it starts a worker and passes the file descriptor on. A cell is a 64-bit integer
and only ever grows, but for the supervisor's entries, which are written into the row of a worker that is dead
(`bury`): its open requests end as `worker_lost`, so that for every row, at every moment,

    arrivals = sum of outcomes + open,    open >= 0.

A row's writer raises `arrivals` before and an outcome after a request, so a reader that reads the outcomes first never
sees more endings than beginnings. Aligned 64-bit loads and stores are single on the machines that we run on.

Owner of a row: its worker while it lives, then the supervisor. A restarted worker goes on in the row of its
predecessor, once that is buried.
"""

import mmap
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tenure.errors import InternalError
from tenure.outcomes import Outcome

_OUTCOMES = tuple(Outcome)
_CELL_BYTES = 8
UNKNOWN_MODEL = ""

CANCEL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
FIRST_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
DEFAULT_HISTOGRAMS: Mapping[str, tuple[float, ...]] = {
    "cancel_seconds": CANCEL_BUCKETS,
    "time_to_first_token_seconds": FIRST_TOKEN_BUCKETS,
    "request_seconds": FIRST_TOKEN_BUCKETS,
}


@dataclass(frozen=True)
class CounterSchema:
    """What is counted; fixed at start and equal in all processes."""

    workers: int
    routes: tuple[str, ...]
    models: tuple[str, ...] = ()
    histograms: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: DEFAULT_HISTOGRAMS)
    """The upper bounds of each histogram's buckets, in seconds."""

    @property
    def counted_models(self) -> tuple[str, ...]:
        """The models, and the empty name for requests that ended before their model was known."""
        return (UNKNOWN_MODEL, *(name for name in dict.fromkeys(self.models) if name))


class OutcomeCount(msgspec.Struct, frozen=True):
    route: str
    model: str
    outcome: Outcome
    count: int


class HistogramSnapshot(msgspec.Struct, frozen=True):
    """`counts` has one entry per bound and a last one for what lies beyond; not cumulative."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class RouteSnapshot(msgspec.Struct, frozen=True):
    arrivals: int
    open: int


class CountersSnapshot(msgspec.Struct, frozen=True):
    """The sum over all workers; arrivals = sum of outcomes + open."""

    arrivals: int
    open: int
    outcomes: dict[str, int]
    """Those that occurred."""
    routes: dict[str, RouteSnapshot]
    by_model: list[OutcomeCount]
    """Those that occurred, by route and model."""
    histograms: dict[str, HistogramSnapshot]


class _Layout:
    """Where in a row each cell is: arrivals per route, outcomes per route and model, then the histograms."""

    def __init__(self, schema: CounterSchema) -> None:
        self.routes = {route: index for index, route in enumerate(schema.routes)}
        self.models = {model: index for index, model in enumerate(schema.counted_models)}
        self.outcomes = {outcome: index for index, outcome in enumerate(_OUTCOMES)}
        self.first_outcome = len(self.routes)
        end = self.first_outcome + len(self.routes) * len(self.models) * len(_OUTCOMES)
        self.histograms: dict[str, tuple[int, tuple[float, ...]]] = {}
        for name, bounds in schema.histograms.items():
            self.histograms[name] = (end, bounds)
            end += len(bounds) + 2
        self.cells = end

    def outcome_cell(self, route: str, model: str, outcome: Outcome) -> int:
        table = self.routes[route] * len(self.models) + self.models.get(model, self.models[UNKNOWN_MODEL])
        return self.first_outcome + table * len(_OUTCOMES) + self.outcomes[outcome]

    def open_in(self, row: Sequence[int], route: str) -> int:
        """Requests of a route that have begun and not ended, by one row."""
        width = len(self.models) * len(_OUTCOMES)
        start = self.first_outcome + self.routes[route] * width
        return row[self.routes[route]] - sum(row[start : start + width])


class WorkerCounters:
    """One worker's row; only that worker's event loop may call this."""

    def __init__(self, row: memoryview, layout: _Layout) -> None:
        self._row = row
        self._layout = layout

    def arrive(self, route: str) -> None:
        """A request on a work route has begun."""
        self._row[self._layout.routes[route]] += 1

    def leave(self, route: str, model: str, outcome: Outcome) -> None:
        """It has ended. A model outside the schema is counted under the empty name."""
        if self._layout.open_in(self._row, route) <= 0:
            raise InternalError(f"a request on {route} ends that never began")
        self._row[self._layout.outcome_cell(route, model, outcome)] += 1

    def observe(self, histogram: str, seconds: float) -> None:
        """Enter one duration, in seconds, into a histogram of the schema."""
        start, bounds = self._layout.histograms[histogram]
        self._row[start + bisect_left(bounds, seconds)] += 1
        self._row[start + len(bounds) + 1] += round(seconds * 1e9)


class SharedCounters:
    """The whole mapping, as the supervisor makes it and every worker attaches it."""

    def __init__(self, descriptor: int, schema: CounterSchema) -> None:
        self.descriptor = descriptor
        """A memfd; inherited or passed to the workers, closed by `close`."""
        self.schema = schema
        self._layout = _Layout(schema)
        self._map = mmap.mmap(descriptor, _size(schema, self._layout))
        self._cells = memoryview(self._map).cast("q")
        self._lent: list[memoryview] = []

    @classmethod
    def create(cls, schema: CounterSchema) -> "SharedCounters":
        """Make the mapping, all zero."""
        descriptor = os.memfd_create("tenure-counters")
        os.ftruncate(descriptor, _size(schema, _Layout(schema)))
        return cls(descriptor, schema)

    @classmethod
    def attach(cls, descriptor: int, schema: CounterSchema) -> "SharedCounters":
        """Open the mapping that `descriptor` names; its schema must be the one it was made with."""
        if os.fstat(descriptor).st_size != _size(schema, _Layout(schema)):
            raise InternalError("the shared counters were made with another schema")
        return cls(descriptor, schema)

    def close(self) -> None:
        """Unmap; the memory goes with the last process that has it."""
        for row in (*self._lent, self._cells):
            row.release()
        self._map.close()
        os.close(self.descriptor)

    def worker(self, index: int) -> WorkerCounters:
        """The row of worker `index`, for its one writer."""
        row = self._row(index)
        self._lent.append(row)
        return WorkerCounters(row, self._layout)

    def bury(self, index: int) -> int:
        """End the open requests of a worker that is dead as `worker_lost`; how many there were. Supervisor only."""
        row = self._row(index)
        lost = 0
        for route in self.schema.routes:
            missing = self._layout.open_in(row, route)
            row[self._layout.outcome_cell(route, UNKNOWN_MODEL, Outcome.WORKER_LOST)] += missing
            lost += missing
        return lost

    def snapshot(self) -> CountersSnapshot:
        totals = self._totals()
        routes: dict[str, RouteSnapshot] = {}
        by_model: list[OutcomeCount] = []
        for route in self.schema.routes:
            counts = self._outcomes_of(route, totals)
            arrivals = totals[self._layout.routes[route]]
            routes[route] = RouteSnapshot(arrivals=arrivals, open=arrivals - sum(count.count for count in counts))
            by_model += counts
        outcomes: dict[str, int] = {}
        for count in by_model:
            outcomes[count.outcome.value] = outcomes.get(count.outcome.value, 0) + count.count
        return CountersSnapshot(
            arrivals=sum(route.arrivals for route in routes.values()),
            open=sum(route.open for route in routes.values()),
            outcomes=outcomes,
            routes=routes,
            by_model=by_model,
            histograms={name: self._histogram(name, totals) for name in self._layout.histograms},
        )

    def audit(self) -> None:
        """Raise `InternalError` unless every row of every worker has counted at least as many arrivals as endings."""
        for index in range(self.schema.workers):
            row = self._read(index)
            for route in self.schema.routes:
                if (open_requests := self._layout.open_in(row, route)) < 0:
                    raise InternalError(f"worker {index} counts {open_requests} open requests on {route}")

    def __repr__(self) -> str:
        now = self.snapshot()
        return f"<SharedCounters arrivals={now.arrivals} open={now.open} outcomes={now.outcomes}>"

    def _row(self, index: int) -> memoryview:
        if not 0 <= index < self.schema.workers:
            raise InternalError(f"there is no worker {index}")
        return self._cells[index * self._layout.cells : (index + 1) * self._layout.cells]

    def _read(self, index: int) -> list[int]:
        """A row's values, the endings read before the beginnings."""
        row = self._row(index)
        rest = row[self._layout.first_outcome :].tolist()
        return [*row[: self._layout.first_outcome].tolist(), *rest]

    def _totals(self) -> list[int]:
        rows = [self._read(index) for index in range(self.schema.workers)]
        return [sum(cells) for cells in zip(*rows, strict=True)]

    def _outcomes_of(self, route: str, totals: Sequence[int]) -> list[OutcomeCount]:
        return [
            OutcomeCount(route=route, model=model, outcome=outcome, count=count)
            for model in self._layout.models
            for outcome in _OUTCOMES
            if (count := totals[self._layout.outcome_cell(route, model, outcome)])
        ]

    def _histogram(self, name: str, totals: Sequence[int]) -> HistogramSnapshot:
        start, bounds = self._layout.histograms[name]
        end = start + len(bounds) + 1
        return HistogramSnapshot(bounds=bounds, counts=tuple(totals[start:end]), sum=totals[end] / 1e9)


def _size(schema: CounterSchema, layout: _Layout) -> int:
    return max(1, schema.workers * layout.cells) * _CELL_BYTES
