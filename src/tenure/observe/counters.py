"""Counters that several API workers share: one memory mapping, one row per worker, one writer per row.

The supervisor makes the mapping before it starts a worker and passes the file descriptor on. A cell is a 64-bit integer
and only ever grows, but for the supervisor's entries, which are written into the row of a worker that is dead
(`close_worker`): its open requests end as `worker_lost`, so that for every row, at every moment,

    arrivals = sum of outcomes + open,    open >= 0,    open = sum over the stages.

An open request is in one `WorkStage`. Of all but the first there are two cells for each model, entered and left; who is
in none of them is `received`. A row's writer raises `arrivals` first, leaves a stage before it enters the next, and
raises the outcome last; a reader reads the arrivals last, and stages left after stages entered, so it never sees more
endings than beginnings, nor a request twice. Aligned 64-bit loads and stores are single on the machines that we run on.

Owner of a row: its worker while it lives, then the supervisor. A restarted worker continues the row of its
predecessor, after `close_worker`.
"""

import mmap
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

import msgspec

from tenure.errors import InternalError
from tenure.outcomes import Outcome
from tenure.wire.messages import HistogramCounts

_OUTCOMES = tuple(Outcome)
_CELL_BYTES = 8
UNKNOWN_MODEL = ""
"""The name under which requests are counted that ended before their model was known."""
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
TOKEN_BUCKETS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
HISTOGRAMS: Mapping[str, tuple[float, ...]] = {
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
    "request_token_seconds": (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0),
    "request_choices": (1, 2, 4, 8, 16, 32, 64, 128),
    "request_max_tokens": TOKEN_BUCKETS,
}
"""`metrics.md` says what each means."""


class WorkStage(StrEnum):
    """The stage of an open work request."""

    RECEIVED = "received"
    """Not admitted yet; not counted by model."""
    ADMITTED = "admitted"
    """Admitted by an engine, without output so far."""
    ANSWERING = "answering"
    """Admitted, with some output."""
    ENDING = "ending"
    """The engine holds nothing of it any more; the answer is not complete."""


_COUNTED_STAGES = (WorkStage.ADMITTED, WorkStage.ANSWERING, WorkStage.ENDING)


@dataclass(frozen=True)
class CounterSchema:
    """What is counted; fixed at start and equal in all processes."""

    workers: int
    routes: tuple[str, ...] = WORK_PATHS
    models: tuple[str, ...] = ()


class OutcomeCount(msgspec.Struct, frozen=True):
    route: str
    model: str
    outcome: Outcome
    count: int


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
    routes: dict[str, int]
    """Arrivals."""
    by_model: list[OutcomeCount]
    """Those that occurred, by route and model."""
    histograms: dict[str, dict[str, HistogramCounts]]
    """By name and model; the empty name of a model only if it occurred."""
    stages: list[StageCount] = []
    """Their sum is `open`. All stages of all models; the first stage has no model."""


class _Layout:
    """Where in a row each cell is: arrivals per route, outcomes per route and model, stages entered and then those left
    per model, and the buckets and the sum of each histogram per model."""

    def __init__(self, schema: CounterSchema) -> None:
        self.routes = schema.routes
        self.models = tuple(dict.fromkeys((UNKNOWN_MODEL, *schema.models)))
        keys: list[tuple[str | int, ...]] = [
            *product(("arrived",), self.routes),
            *product(("ended",), self.routes, self.models, _OUTCOMES),
            *product(("entered", "left"), self.models, _COUNTED_STAGES),
        ]
        for name, bounds in HISTOGRAMS.items():
            keys += product((name,), self.models, range(len(bounds) + 2))
        self._cells = {key: cell for cell, key in enumerate(keys)}
        self.cells = len(keys)
        self.bytes = (schema.workers * self.cells + 1) * _CELL_BYTES  # the last is for all workers: `was_ready`
        first, after = (self.cell(kind, UNKNOWN_MODEL, _COUNTED_STAGES[0]) for kind in ("entered", "left"))
        self.stages = slice(first, after)

    def cell(self, *key: str | int) -> int:
        return self._cells[key]

    def counted(self, model: str) -> str:
        """The name under which a model is counted: its own if it is in the schema, else the empty one."""
        return model if model in self.models else UNKNOWN_MODEL

    def open_in(self, row: Sequence[int], route: str) -> int:
        """The number of open requests of a route in one row."""
        start = self.cell("ended", route, UNKNOWN_MODEL, _OUTCOMES[0])
        return row[self.cell("arrived", route)] - sum(row[start : start + len(self.models) * len(_OUTCOMES)])

    def scale(self, name: str) -> float:
        """The factor from a histogram's unit to that of its sum's cell."""
        return 1e9 if name.endswith("_seconds") else 1


class WorkerCounters:
    """One worker's row; only that worker's event loop may call this."""

    def __init__(self, row: memoryview, layout: _Layout) -> None:
        self._row = row
        self._layout = layout

    def arrive(self, route: str) -> None:
        """Count the arrival of a request on a work route."""
        self._row[self._layout.cell("arrived", route)] += 1

    def leave(self, route: str, model: str, outcome: Outcome) -> None:
        """Count the end of a request. A model outside the schema is counted under the empty name."""
        layout = self._layout
        if layout.open_in(self._row, route) <= 0:
            raise InternalError(f"a request on {route} ends that never began")
        self._row[layout.cell("ended", route, layout.counted(model), outcome)] += 1

    def move(self, model: str, before: WorkStage, after: WorkStage | None) -> None:
        """Move an open request of this model to another stage; to None right before it ends."""
        model = self._layout.counted(model)
        if before is not WorkStage.RECEIVED:
            self._row[self._layout.cell("left", model, before)] += 1
        if after is not None:
            self._row[self._layout.cell("entered", model, after)] += 1

    def observe(self, histogram: str, value: float, model: str = UNKNOWN_MODEL) -> None:
        """Add a value, in the unit that ends the name, to a histogram of the schema."""
        layout, bounds = self._layout, HISTOGRAMS[histogram]
        start = layout.cell(histogram, layout.counted(model), 0)
        self._row[start + bisect_left(bounds, value)] += 1
        self._row[start + len(bounds) + 1] += round(value * layout.scale(histogram))


class SharedCounters:
    """The whole mapping, as the supervisor makes it and every worker attaches it."""

    def __init__(self, descriptor: int, schema: CounterSchema) -> None:
        """Open the mapping that `descriptor` names; `schema` must be the one it was made with."""
        self.descriptor = descriptor
        """A memfd; inherited or passed to the workers, closed by `close`."""
        self.schema = schema
        self._layout = _Layout(schema)
        if os.fstat(descriptor).st_size != self._layout.bytes:
            raise InternalError("the shared counters were made with another schema")
        self._map = mmap.mmap(descriptor, self._layout.bytes)
        self._cells = memoryview(self._map).cast("q")
        self._lent: list[memoryview] = []

    @classmethod
    def create(cls, schema: CounterSchema) -> "SharedCounters":
        """Make the mapping, all zero."""
        descriptor = os.memfd_create("tenure-counters")
        os.ftruncate(descriptor, _Layout(schema).bytes)
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
        """Count the open requests of a dead worker as `worker_lost`; returns their number. Supervisor only."""
        row, entered = self._row(index), self._layout.stages
        lost = 0
        row[entered.stop : 2 * entered.stop - entered.start] = row[entered]
        for route in self.schema.routes:
            missing = self._layout.open_in(row, route)
            row[self._layout.cell("ended", route, UNKNOWN_MODEL, Outcome.WORKER_LOST)] += missing
            lost += missing
        return lost

    def snapshot(self) -> CountersSnapshot:
        rows = [self._read(index) for index in range(self.schema.workers)]
        totals, layout = [sum(cells) for cells in zip(*rows, strict=True)], self._layout
        routes = {route: totals[layout.cell("arrived", route)] for route in self.schema.routes}
        by_model = [
            OutcomeCount(route=route, model=model, outcome=outcome, count=count)
            for route, model, outcome in product(self.schema.routes, layout.models, _OUTCOMES)
            if (count := totals[layout.cell("ended", route, model, outcome)])
        ]
        outcomes: Counter[str] = Counter()
        for row in by_model:
            outcomes[row.outcome.value] += row.count
        arrivals = sum(routes.values())
        return CountersSnapshot(
            arrivals=arrivals,
            open=arrivals - outcomes.total(),
            outcomes=dict(outcomes),
            routes=routes,
            by_model=by_model,
            histograms={name: self._histograms(name, totals) for name in HISTOGRAMS},
            stages=self._stages(totals, arrivals - outcomes.total()),
        )

    def __repr__(self) -> str:
        now = self.snapshot()
        return f"<SharedCounters arrivals={now.arrivals} open={now.open} outcomes={now.outcomes}>"

    def _row(self, index: int) -> memoryview:
        if not 0 <= index < self.schema.workers:
            raise InternalError(f"there is no worker {index}")
        return self._cells[index * self._layout.cells : (index + 1) * self._layout.cells]

    def _read(self, index: int) -> list[int]:
        """A row's values, the endings read before the beginnings."""
        row, arrivals = self._row(index), len(self.schema.routes)
        rest = row[arrivals:].tolist()
        return [*row[:arrivals].tolist(), *rest]

    def _stages(self, totals: Sequence[int], open_requests: int) -> list[StageCount]:
        counts = []
        for model, stage in product(self._layout.models, _COUNTED_STAGES):
            entered, left = (totals[self._layout.cell(kind, model, stage)] for kind in ("entered", "left"))
            here = max(0, entered - left)  # below zero when a request came and went between the two readings
            if model or here:
                counts.append(StageCount(model, stage, here))
        received = open_requests - sum(count.open for count in counts)
        return [StageCount(UNKNOWN_MODEL, WorkStage.RECEIVED, received), *counts]

    def _histograms(self, name: str, totals: Sequence[int]) -> dict[str, HistogramCounts]:
        bounds = HISTOGRAMS[name]
        found = {}
        for model in self._layout.models:
            start = self._layout.cell(name, model, 0)
            *counts, total = totals[start : start + len(bounds) + 2]
            if model or any(counts):
                found[model] = HistogramCounts(bounds, tuple(counts), total / self._layout.scale(name))
        return found
