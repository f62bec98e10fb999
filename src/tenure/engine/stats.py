"""The engine loop's measurements of requests and steps, in histograms with fixed buckets.

A request that is open has one `_Times` here, from `admit` to `end`:

    queued --first row--> computing --first token--> decoding --ended--> (forgotten)

Owner: the loop, in its thread; others see the frozen `snapshot`. A sample is entered when its event happens: a request
that is cancelled in the queue has no queue time, one without a token no prefill time, and only one that ended
as `ok` has a decode time. Times are seconds by the loop's clock, which is also that of `Request.arrived_at`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenure.core.plan import StepPlan
from tenure.core.report import Output
from tenure.core.request import Item, Request
from tenure.outcomes import Outcome
from tenure.wire.messages import HistogramCounts, StatsSnapshot

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_STEP = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BUCKETS: Mapping[str, tuple[float, ...]] = {
    "queue_seconds": _LATENCY,
    "prefill_seconds": _LATENCY,
    "decode_seconds": _LATENCY,
    "inference_seconds": _LATENCY,
    "step_seconds": _STEP,
    "step_rows": _ROWS,
    "step_tokens": _TOKENS,
    "iteration_tokens": _TOKENS,
    "request_preemptions": (1, 2, 3, 5, 10, 20),
}
"""Upper bounds of the buckets: seconds from a reranker's on a GPU to a long answer's on a CPU; rows; tokens."""


class _Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def snapshot(self) -> HistogramCounts:
        return HistogramCounts(self.bounds, tuple(self.counts), self.sum)


class _Times:
    """When an open request had its first row, its first token and its last one; None before that."""

    __slots__ = ("first_token", "last_token", "silent", "started")

    def __init__(self, items: Iterable[Item]) -> None:
        self.silent = {item.index: item for item in items}  # those that have had no output
        self.started: float | None = None
        self.first_token: float | None = None
        self.last_token = 0.0


class EngineStats:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._histograms = {name: _Histogram(bounds) for name, bounds in BUCKETS.items()}
        self._open: dict[int, _Times] = {}
        self._queued = 0
        self._prompt_tokens = self._sequence_prompt_tokens = self._sequence_cached_tokens = 0

    def admit(self, request: Request) -> None:
        """The loop has taken in a request."""
        self._open[request.number] = _Times(request.items)
        self._queued += 1

    def start(self, items: Iterable[Item], now: float) -> None:
        """A step begins in which these items have rows."""
        for item in items:
            times = self._open[item.request.number]
            if times.started is None:
                times.started = now
                self._queued -= 1
                self._observe("queue_seconds", max(0.0, now - item.request.spec.arrived_at))

    def step(self, plan: StepPlan, seconds: float) -> None:
        """A step has landed."""
        self._observe("step_seconds", seconds)
        self._observe("step_rows", len(plan.rows))
        self._observe("step_tokens", sum(row.count for row in plan.rows))

    def output(self, outputs: Sequence[Output], now: float) -> None:
        """A step has brought these outputs."""
        before, sampled = self._sequence_prompt_tokens, 0
        for output in outputs:
            times = self._open.get(output.request)
            if times is None:
                continue
            item = times.silent.pop(output.index, None)
            if item is not None:
                self._sequence_prompt_tokens += item.prompt_length
                self._sequence_cached_tokens += output.cached_tokens
                self._prompt_tokens += item.prompt_length if item.choice == 0 else 0
            if not output.tokens:
                continue
            sampled += 1
            times.last_token = now
            if times.first_token is None and times.started is not None:
                times.first_token = now
                self._observe("prefill_seconds", now - times.started)
        if outputs:
            self._observe("iteration_tokens", self._sequence_prompt_tokens - before + sampled)

    def end(self, request: Request, now: float) -> float | None:
        """A request is over; how long it was queued, in seconds, if it had a row at all."""
        times = self._open.pop(request.number)
        if times.started is None:
            self._queued -= 1
            return None
        if request.outcome is Outcome.OK:
            self._observe("inference_seconds", now - times.started)
            self._observe("request_preemptions", sum(item.preemptions for item in request.items))
            if times.first_token is not None:
                self._observe("decode_seconds", times.last_token - times.first_token)
        return max(0.0, times.started - request.spec.arrived_at)

    def snapshot(self) -> StatsSnapshot:
        """What was measured here; how many tokens were looked up in the prefix cache is the scheduler's to say."""
        histograms: dict[str, Any] = {name: histogram.snapshot() for name, histogram in self._histograms.items()}
        return StatsSnapshot(
            queued_requests=self._queued,
            prompt_tokens=self._prompt_tokens,
            sequence_prompt_tokens=self._sequence_prompt_tokens,
            sequence_cached_tokens=self._sequence_cached_tokens,
            **histograms,
        )

    def __repr__(self) -> str:
        return f"<EngineStats: {len(self._open)} open, {self._queued} of them queued>"

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)
