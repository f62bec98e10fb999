"""Counters that several API workers share: one memory mapping, one row per worker, one writer per row.

The supervisor makes the mapping before it starts a worker and passes the file descriptor on. A cell is a 64-bit integer
and only ever grows, but for the supervisor's entries, which are written into the row of a worker that is dead
(`close_worker`): its open requests end as `worker_lost`, so that for every row, at every moment,

    arrivals = sum of outcomes + open,    open >= 0,    open = sum over the stages.

An open request is in one `WorkStage`. Of all but the first there are two cells for each model, entered and left; who is
in none of them is `received`. A row's writer raises `arrivals` first, leaves a stage before it enters the next, and
raises the outcome last; a reader reads the arrivals last, and stages left after stages entered, so it never sees more
endings than beginnings, nor a request twice. Aligned 64-bit loads and stores are single on the machines that we run on.

Owner of a row: its worker while it lives, then the supervisor. A restarted worker goes on in the row of its
predecessor, once that is buried.
"""

import mmap
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from tenure.errors import InternalError
from tenure.outcomes import Outcome
from tenure.wire.messages import HistogramCounts

_OUTCOMES = tuple(Outcome)
_CELL_BYTES = 8
UNKNOWN_MODEL = ""
WORK_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/pooling",
    "/classify",
    "/v1/embed",
    "/v2/embed",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
)
"""What the server counts as work: the paths of the work routes in `api/app.py`, which a supervisor does not import."""

CANCEL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)
MEAN_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)
TOKEN_BUCKETS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
DEFAULT_HISTOGRAMS: Mapping[str, tuple[float, ...]] = {
    "cancel_seconds": CANCEL_BUCKETS,
    "engine_cancel_seconds": CANCEL_BUCKETS,
    "time_to_first_token_seconds": FIRST_TOKEN_BUCKETS,
    "inter_token_seconds": INTER_TOKEN_BUCKETS,
    "request_seconds": FIRST_TOKEN_BUCKETS,
    "admitted_request_seconds": FIRST_TOKEN_BUCKETS,
    "request_prompt_tokens": TOKEN_BUCKETS,
    "request_output_tokens": TOKEN_BUCKETS,
    "request_longest_output_tokens": TOKEN_BUCKETS,
    "request_computed_prompt_tokens": TOKEN_BUCKETS,
    "request_token_seconds": MEAN_TOKEN_BUCKETS,
    "request_choices": (1, 2, 4, 8, 16, 32, 64, 128),
    "request_max_tokens": TOKEN_BUCKETS,
}
"""`docs/metrics.md` says what each means."""


class WorkStage(StrEnum):
    """How far an open work request has come."""

    RECEIVED = "received"
    """Being read, checked, or put to the engine; its model is not counted."""
    ADMITTED = "admitted"
    """The engine has it, and nothing has come of it."""
    ANSWERING = "answering"
    """The engine has it, and something has come."""
    ENDING = "ending"
    """The engine holds nothing of it any more."""


_COUNTED_STAGES = (WorkStage.ADMITTED, WorkStage.ANSWERING, WorkStage.ENDING)


@dataclass(frozen=True)
class CounterSchema:
    """What is counted; fixed at start and equal in all processes."""

    workers: int
    routes: tuple[str, ...] = WORK_PATHS
    models: tuple[str, ...] = ()
    histograms: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: DEFAULT_HISTOGRAMS)
    """The upper bounds of each histogram's buckets, in the unit that ends its name."""

    @property
    def counted_models(self) -> tuple[str, ...]:
        """The models, and the empty name for requests that ended before their model was known."""
        return (UNKNOWN_MODEL, *(name for name in dict.fromkeys(self.models) if name))


class OutcomeCount(msgspec.Struct, frozen=True):
    route: str
    model: str
    outcome: Outcome
    count: int


class RouteSnapshot(msgspec.Struct, frozen=True):
    arrivals: int
    open: int


class StageCount(msgspec.Struct, frozen=True):
    model: str
    stage: WorkStage
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
    histograms: dict[str, dict[str, HistogramCounts]]
    """By name and model; the empty name of a model only if it occurred."""
    stages: list[StageCount] = []
    """Their sum is `open`. All stages of all models; the first stage has no model."""


class _Layout:
    """Where in a row each cell is: arrivals per route, outcomes per route and model, stages entered and left per model,
    and histograms per model."""

    def __init__(self, schema: CounterSchema) -> None:
        self.routes = {route: index for index, route in enumerate(schema.routes)}
        self.models = {model: index for index, model in enumerate(schema.counted_models)}
        self.outcomes = {outcome: index for index, outcome in enumerate(_OUTCOMES)}
        self.first_outcome = len(self.routes)
        end = self.first_outcome + len(self.routes) * len(self.models) * len(_OUTCOMES)
        self.first_stage = end
        self.stage_cells = len(self.models) * len(_COUNTED_STAGES)
        end += 2 * self.stage_cells
        self.histograms: dict[str, tuple[int, tuple[float, ...], float]] = {}
        """First cell, bounds, and how many units the cell of the sum has for one of the name's."""
        for name, bounds in schema.histograms.items():
            self.histograms[name] = (end, bounds, 1e9 if name.endswith("_seconds") else 1)
            end += (len(bounds) + 2) * len(self.models)
        self.cells = end

    def outcome_cell(self, route: str, model: str, outcome: Outcome) -> int:
        table = self.routes[route] * len(self.models) + self.models.get(model, 0)
        return self.first_outcome + table * len(_OUTCOMES) + self.outcomes[outcome]

    def entered_cell(self, model: str, stage: WorkStage) -> int:
        """The cell that counts the leaving is `stage_cells` further."""
        return self.first_stage + self.models.get(model, 0) * len(_COUNTED_STAGES) + _COUNTED_STAGES.index(stage)

    def histogram_cell(self, name: str, model: str) -> int:
        start, bounds, _ = self.histograms[name]
        return start + self.models.get(model, 0) * (len(bounds) + 2)

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

    def move(self, model: str, before: WorkStage, after: WorkStage | None) -> None:
        """An open request of this model goes from one stage to another; to None right before it ends."""
        if before is not WorkStage.RECEIVED:
            self._row[self._layout.entered_cell(model, before) + self._layout.stage_cells] += 1
        if after is not None:
            self._row[self._layout.entered_cell(model, after)] += 1

    def observe(self, histogram: str, value: float, model: str = UNKNOWN_MODEL) -> None:
        """Enter one value, in the unit that ends the name, into a histogram of the schema."""
        start, bounds, scale = self._layout.histograms[histogram]
        start += self._layout.models.get(model, 0) * (len(bounds) + 2)
        self._row[start + bisect_left(bounds, value)] += 1
        self._row[start + len(bounds) + 1] += round(value * scale)


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

    def note_ready(self) -> None:
        """The whole server is ready. Supervisor only."""
        self._cells[-1] = 1

    def was_ready(self) -> bool:
        """Whether the whole server has ever been ready."""
        return bool(self._cells[-1])

    def worker(self, index: int) -> WorkerCounters:
        """The row of worker `index`, for its one writer."""
        row = self._row(index)
        self._lent.append(row)
        return WorkerCounters(row, self._layout)

    def close_worker(self, index: int) -> int:
        """End the open requests of a worker that is dead as `worker_lost`; how many there were. Supervisor only."""
        row = self._row(index)
        lost = 0
        first, count = self._layout.first_stage, self._layout.stage_cells
        row[first + count : first + 2 * count] = row[first : first + count]
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
            histograms={name: self._histograms(name, totals) for name in self._layout.histograms},
            stages=self._stages(totals, sum(route.open for route in routes.values())),
        )

    def audit(self) -> None:
        """Raise `InternalError` unless every row counts as many arrivals as endings at least, and stages likewise."""
        for index in range(self.schema.workers):
            row = self._read(index)
            open_requests = {route: self._layout.open_in(row, route) for route in self.schema.routes}
            first, count = self._layout.first_stage, self._layout.stage_cells
            staged = [row[cell] - row[cell + count] for cell in range(first, first + count)]
            if min(0, *open_requests.values(), *staged) < 0 or sum(staged) > sum(open_requests.values()):
                raise InternalError(f"worker {index} counts {open_requests} open requests, {staged} in stages")

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

    def _stages(self, totals: Sequence[int], open_requests: int) -> list[StageCount]:
        counts = []
        for model in self._layout.models:
            for stage in _COUNTED_STAGES:
                cell = self._layout.entered_cell(model, stage)
                # Below zero when a request came and went between the two readings.
                here = max(0, totals[cell] - totals[cell + self._layout.stage_cells])
                if model or here:
                    counts.append(StageCount(model, stage, here))
        received = open_requests - sum(count.open for count in counts)
        return [StageCount(UNKNOWN_MODEL, WorkStage.RECEIVED, received), *counts]

    def _histograms(self, name: str, totals: Sequence[int]) -> dict[str, HistogramCounts]:
        _, bounds, scale = self._layout.histograms[name]
        found = {}
        for model in self._layout.models:
            start = self._layout.histogram_cell(name, model)
            end = start + len(bounds) + 1
            counts = tuple(totals[start:end])
            if model or any(counts):
                found[model] = HistogramCounts(bounds, counts, totals[end] / scale)
        return found


def _size(schema: CounterSchema, layout: _Layout) -> int:
    return (schema.workers * layout.cells + 1) * _CELL_BYTES
