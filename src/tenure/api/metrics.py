"""The text of `/metrics`: made anew at each scrape from the snapshots that `/ledger` reads too."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from tenure.api.context import HistogramCounts, HttpCounts
from tenure.wire.messages import EngineLedger

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_ENGINE_LABELS = ("model", "engine")


class _Snapshot(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def metrics_text(http: HttpCounts, engines: Sequence[EngineLedger], version: str) -> bytes:
    """Return the Prometheus text; an engine that does not answer shows `tenure_engine_up` 0 and nothing else."""
    registry = CollectorRegistry()
    registry.register(_Snapshot([*_http(http, version), *_engines(engines)]))
    return generate_latest(registry)


def _http(http: HttpCounts, version: str) -> Iterable[Metric]:
    build = InfoMetricFamily("tenure_build", "The version that runs.")
    build.add_metric((), {"version": version})
    yield build
    opened = GaugeMetricFamily("tenure_requests_open", "Open requests on work routes.", value=http.open)
    yield opened
    yield CounterMetricFamily("tenure_requests_arrived", "Requests on work routes.", value=http.arrivals)
    ended = CounterMetricFamily(
        "tenure_requests_ended", "Requests by how they ended.", labels=("route", "model", "outcome")
    )
    for row in http.by_model:
        ended.add_metric((row.route, row.model, row.outcome.value), row.count)
    yield ended
    for name, counts in http.histograms.items():
        yield _histogram(f"tenure_{name}", counts)


def _histogram(name: str, counts: HistogramCounts) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*counts.bounds, float("inf")), counts.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
    return HistogramMetricFamily(name, "Seconds.", buckets=buckets, sum_value=counts.sum)


def _engines(engines: Sequence[EngineLedger]) -> Iterable[Metric]:
    up = GaugeMetricFamily("tenure_engine_up", "Whether the engine answers.", labels=_ENGINE_LABELS)
    for engine in engines:
        up.add_metric(_labels(engine), int(engine.answering))
    yield up
    answering = [engine for engine in engines if engine.answering]
    yield _states(
        "tenure_kv_blocks", "KV blocks by state.", answering, "blocks", ("free", "cached", "leased", "quarantined")
    )
    yield _states("tenure_slots", "Batch slots by state.", answering, "slots", ("free", "leased"))
    states = ("waiting", "fetching_kv", "running", "preempted", "stalled")
    yield _states("tenure_items", "Items by state.", answering, "items", states)
    permits = GaugeMetricFamily("tenure_permits_held", "Admission permits held.", labels=(*_ENGINE_LABELS, "kind"))
    for engine in answering:
        for kind in ("requests", "items", "tokens"):
            permits.add_metric((*_labels(engine), kind), getattr(engine.permits, kind).held)
    yield permits
    yield from _totals(answering)


def _totals(engines: Sequence[EngineLedger]) -> Iterable[Metric]:
    tokens = CounterMetricFamily("tenure_tokens", "Tokens by what became of them.", labels=(*_ENGINE_LABELS, "kind"))
    finished = CounterMetricFamily(
        "tenure_items_finished", "Items by finish reason.", labels=(*_ENGINE_LABELS, "finish_reason")
    )
    steps = CounterMetricFamily("tenure_engine_steps", "Steps of the engine loop.", labels=_ENGINE_LABELS)
    preemptions = CounterMetricFamily("tenure_preemptions", "Items preempted.", labels=_ENGINE_LABELS)
    for engine in engines:
        for kind in engine.tokens.__struct_fields__:
            tokens.add_metric((*_labels(engine), kind), getattr(engine.tokens, kind))
        for reason, count in engine.finish_reasons.items():
            finished.add_metric((*_labels(engine), reason), count)
        steps.add_metric(_labels(engine), engine.steps)
        preemptions.add_metric(_labels(engine), engine.preemptions)
    yield from (tokens, finished, steps, preemptions)


def _states(
    name: str, text: str, engines: Sequence[EngineLedger], group: str, states: Sequence[str]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=(*_ENGINE_LABELS, "state"))
    for engine in engines:
        for state in states:
            family.add_metric((*_labels(engine), state), getattr(getattr(engine, group), state))
    return family


def _labels(engine: EngineLedger) -> tuple[str, str]:
    return engine.model, str(engine.index)
