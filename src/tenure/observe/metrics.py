"""The text of `/metrics`: made anew at each scrape from the snapshots that `/ledger` reads too."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from tenure.observe.counters import CountersSnapshot, WorkStage
from tenure.observe.metric_table import FIGURES, TABLE, Kind
from tenure.wire.messages import EngineLedger, HistogramCounts, ModelCard

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PERMITS = ("requests", "items", "tokens")
_STATES = {
    "tenure_kv_blocks": ("blocks", ("free", "cached", "leased", "quarantined")),
    "tenure_slots": ("slots", ("free", "leased")),
    "tenure_items": ("items", ("waiting", "fetching_kv", "running", "preempted", "stalled")),
}
_ENGINE_HISTOGRAMS = ("queue", "prefill", "decode", "inference", "step")

Sample = tuple[tuple[str, ...], float | HistogramCounts]
"""Values of the labels, and the figure."""


@dataclass(frozen=True)
class Readings:
    """Everything that is exported, read at one time."""

    version: str
    http: CountersSnapshot
    engines: Sequence[EngineLedger]
    cards: Sequence[ModelCard] = ()
    """Of the models whose engines are ready."""

    @property
    def answering(self) -> list[EngineLedger]:
        return [engine for engine in self.engines if engine.answering]


class _Snapshot(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def metrics_text(families: Iterable[Metric]) -> bytes:
    """The Prometheus text of these families."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(list(families)))
    return generate_latest(registry)


def tenure_families(readings: Readings) -> Iterator[Metric]:
    """All families of the table, in its order. An engine that does not answer shows `tenure_engine_up` 0 alone."""
    found: dict[str, list[Sample]] = {"tenure_build_info": [((readings.version,), 1.0)]}
    for name, labels, value in (*_http(readings), *_engines(readings)):
        found.setdefault(name, []).append((labels, value))
    for figure in TABLE:
        yield family(figure.kind, figure.name, figure.meaning, figure.labels, found.pop(figure.name, []))
    assert not found, f"figures that are not in the table: {sorted(found)}"


def family(kind: Kind, name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """One family as the client library has it; `name` as it is exported."""
    if kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for values, counts in samples:
            assert isinstance(counts, HistogramCounts)
            histogram.add_metric(values, _buckets(counts), counts.sum)
        return histogram
    if kind is Kind.INFO:
        info = InfoMetricFamily(name.removesuffix("_info"), text)
        for values, _ in samples:
            info.add_metric((), dict(zip(labels, values, strict=True)))
        return info
    made = (GaugeMetricFamily if kind is Kind.GAUGE else CounterMetricFamily)(name, text, labels=labels)
    for values, value in samples:
        assert not isinstance(value, HistogramCounts)
        made.add_metric(values, value)
    return made


def _buckets(counts: HistogramCounts) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*counts.bounds, float("inf")), counts.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
    return buckets


Reading = tuple[str, tuple[str, ...], float | HistogramCounts]


def _http(readings: Readings) -> Iterator[Reading]:
    http = readings.http
    for path, route in http.routes.items():
        yield "tenure_requests_arrived_total", (path,), route.arrivals
    for row in http.by_model:
        yield "tenure_requests_total", (row.model, row.route, row.outcome.value), row.count
    for model, stage, count in open_by_stage(readings):
        yield "tenure_open_requests", (model, stage), count
    for name, models in http.histograms.items():
        if f"tenure_{name}" in FIGURES:
            for model, counts in models.items():
                yield f"tenure_{name}", (model,), counts


def open_by_stage(readings: Readings) -> Iterator[tuple[str, str, int]]:
    """Open requests by model and stage. Which of the admitted ones have been in a step is for the engines to say."""
    queued: dict[str, int] = {}
    for engine in readings.answering:
        queued[engine.model] = queued.get(engine.model, 0) + engine.figures.queued_requests
    silent = {engine.model for engine in readings.engines if not engine.answering}
    for row in readings.http.stages:
        if row.stage is not WorkStage.ADMITTED:
            yield row.model, row.stage.value, row.open
            continue
        waiting = row.open if row.model in silent else min(row.open, queued.get(row.model, 0))
        yield row.model, "queued", waiting
        yield row.model, "prefill", row.open - waiting


def _engines(readings: Readings) -> Iterator[Reading]:
    for engine in readings.engines:
        yield "tenure_engine_up", engine_labels(engine), int(engine.answering)
    for engine in readings.answering:
        labels = engine_labels(engine)
        yield "tenure_ledger_conserved", labels, int(engine.conserved)
        for name, (group, states) in _STATES.items():
            for state in states:
                yield name, (*labels, state), getattr(getattr(engine, group), state)
        for kind in PERMITS:
            permit = getattr(engine.permits, kind)
            yield "tenure_permits_held", (*labels, kind), permit.held
            if isinstance(permit.limit, int):
                yield "tenure_permits_limit", (*labels, kind), permit.limit
        yield from _totals(engine, labels)


def _totals(engine: EngineLedger, labels: tuple[str, str]) -> Iterator[Reading]:
    figures = engine.figures
    for name in _ENGINE_HISTOGRAMS:
        yield f"tenure_{name}_seconds", labels, getattr(figures, f"{name}_seconds")
    yield "tenure_step_rows", labels, figures.step_rows
    yield "tenure_step_tokens", labels, figures.step_tokens
    yield "tenure_engine_steps_total", labels, engine.steps
    for kind in engine.tokens.__struct_fields__:
        yield "tenure_tokens_total", (*labels, kind), getattr(engine.tokens, kind)
    yield "tenure_prompt_tokens_total", labels, figures.prompt_tokens
    yield "tenure_prefix_cache_queried_tokens_total", labels, figures.queried_tokens
    for reason, count in engine.finish_reasons.items():
        yield "tenure_items_finished_total", (*labels, reason), count
    yield "tenure_preemptions_total", labels, engine.preemptions
    yield "tenure_unmatched_messages_total", labels, engine.unmatched_messages


def engine_labels(engine: EngineLedger) -> tuple[str, str]:
    return engine.model, str(engine.index)
