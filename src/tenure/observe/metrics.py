"""The text of `/metrics`: made anew at each scrape from the snapshots that `/ledger` reads too."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import asdict
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from tenure.observe.counters import CountersSnapshot, WorkStage
from tenure.observe.metric_table import METRICS, TABLE, Kind
from tenure.wire.messages import EngineLedger, HistogramCounts, ModelCard

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

Value = float | HistogramCounts
Sample = tuple[tuple[str, ...], Value]
"""Values of the labels, and the figure."""
ReadEngine = Callable[[EngineLedger], Value | Mapping[str, Value]]
"""A figure of one engine, or several by the value of one more label."""


@dataclass(frozen=True)
class Readings:
    """The snapshots for one scrape, read at one time."""

    version: str
    http: CountersSnapshot
    engines: Sequence[EngineLedger]
    cards: Sequence[ModelCard] = ()
    """Of the models whose engines are ready."""

    @property
    def answering(self) -> list[EngineLedger]:
        return [engine for engine in self.engines if engine.answering]


class _Families(list[Metric], Collector):
    """What a registry would have collected."""

    def collect(self) -> Iterable[Metric]:
        return self


def metrics_text(families: Iterable[Metric]) -> bytes:
    """The Prometheus text of these families."""
    return generate_latest(_Families(families))


def tenure_families(readings: Readings) -> Iterator[Metric]:
    """All families of the table, in its order. An engine that does not answer shows `tenure_engine_up` 0 alone."""
    found: dict[str, list[Sample]] = {
        "tenure_build_info": [((readings.version,), 1.0)],
        "tenure_engine_up": [(_labels(engine), int(engine.answering)) for engine in readings.engines],
        **{figure.name: engine_samples(readings, partial(_at, figure.path)) for figure in TABLE if figure.path},
        **_http(readings),
    }
    for figure in TABLE:
        yield family(figure.kind, figure.name, figure.meaning, figure.labels, found.pop(figure.name, []))
    assert not found, f"figures that are not in the table: {sorted(found)}"


def _at(path: str, engine: EngineLedger) -> Value | Mapping[str, Value]:
    """What stands at the path of a figure of the table."""
    group, several, field = path.partition(".*.")
    value: Any = attrgetter(group)(engine)
    if several:
        found = {kind: getattr(one, field) for kind, one in asdict(value).items()}
        return {kind: count for kind, count in found.items() if count is not UNSET}
    if isinstance(value, Struct) and not isinstance(value, HistogramCounts):
        return {state: count for state, count in asdict(value).items() if state != "total"}
    return value  # type: ignore[no-any-return]


def engine_samples(readings: Readings, read: ReadEngine) -> list[Sample]:
    """The samples of a figure for the engines that answer."""
    samples: list[Sample] = []
    for engine in readings.answering:
        value = read(engine)
        if isinstance(value, Mapping):
            samples += [((*_labels(engine), key), one) for key, one in value.items()]
        else:
            samples.append((_labels(engine), value))
    return samples


def family(kind: Kind, name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """One family as the client library has it; `name` as it is exported."""
    if kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for values, counts in samples:
            assert isinstance(counts, HistogramCounts)
            histogram.add_metric(values, _buckets(counts), counts.sum)
        return histogram
    made = (GaugeMetricFamily if kind is Kind.GAUGE else CounterMetricFamily)(name, text, labels=labels)
    for values, value in samples:
        assert not isinstance(value, HistogramCounts)
        made.add_metric(values, value)
    return made


def _buckets(counts: HistogramCounts) -> list[tuple[str, float]]:
    bounds = (*(repr(float(bound)) for bound in counts.bounds), "+Inf")
    return list(zip(bounds, accumulate(counts.counts), strict=True))


def _http(readings: Readings) -> dict[str, list[Sample]]:
    http = readings.http
    histograms: dict[str, list[Sample]] = {
        f"tenure_{name}": [((model,), counts) for model, counts in models.items()]
        for name, models in http.histograms.items()
        if f"tenure_{name}" in METRICS
    }
    return {
        **histograms,
        "tenure_requests_arrived_total": [((path,), arrived) for path, arrived in http.routes.items()],
        "tenure_requests_total": [((r.model, r.route, r.outcome.value), r.count) for r in http.by_model],
        "tenure_open_requests": [((model, stage), count) for model, stage, count in open_by_stage(readings)],
    }


def open_by_stage(readings: Readings) -> Iterator[tuple[str, str, int]]:
    """Open requests by model and stage. The engines' snapshots split the admitted ones into queued and running."""
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


def _labels(engine: EngineLedger) -> tuple[str, str]:
    return engine.model, str(engine.index)
