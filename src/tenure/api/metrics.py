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

from tenure.process.counters import CountersSnapshot, HistogramSnapshot
from tenure.wire.messages import EngineLedger

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_ENGINE_LABELS = ("model", "engine")
_HISTOGRAMS = {
    "cancel_seconds": "Work requests whose client left: from its leaving until nothing ran or was held for them.",
    "time_to_first_token_seconds": "Work requests that were answered: from the end of the headers to the first tokens.",
    "request_seconds": "All work requests, however they ended: from the end of the headers to the end.",
}


class _Snapshot(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def metrics_text(http: CountersSnapshot, engines: Sequence[EngineLedger], version: str) -> bytes:
    """Return the Prometheus text; an engine that does not answer shows `tenure_engine_up` 0 and nothing else."""
    registry = CollectorRegistry()
    registry.register(_Snapshot([*_http(http, version), *_engines(engines)]))
    return generate_latest(registry)


def _http(http: CountersSnapshot, version: str) -> Iterable[Metric]:
    build = InfoMetricFamily("tenure_build", "The version that runs.")
    build.add_metric((), {"version": version})
    yield build
    opened = GaugeMetricFamily("tenure_requests_open", "Requests on work routes that are open now.", value=http.open)
    yield opened
    yield CounterMetricFamily(
        "tenure_requests_arrived", "Requests on work routes since the server started.", value=http.arrivals
    )
    ended = CounterMetricFamily(
        "tenure_requests_ended",
        "Requests on work routes that have ended, by how they ended.",
        labels=("route", "model", "outcome"),
    )
    for row in http.by_model:
        ended.add_metric((row.route, row.model, row.outcome.value), row.count)
    yield ended
    for name, counts in http.histograms.items():
        yield _histogram(name, counts)


def _histogram(name: str, counts: HistogramSnapshot) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*counts.bounds, float("inf")), counts.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
    return HistogramMetricFamily(f"tenure_{name}", _HISTOGRAMS[name], buckets=buckets, sum_value=counts.sum)


def _engines(engines: Sequence[EngineLedger]) -> Iterable[Metric]:
    up = GaugeMetricFamily(
        "tenure_engine_up", "1 for an engine that answers, 0 for one that does not.", labels=_ENGINE_LABELS
    )
    for engine in engines:
        up.add_metric(_labels(engine), int(engine.answering))
    yield up
    answering = [engine for engine in engines if engine.answering]
    yield _states(
        "tenure_kv_blocks", "KV blocks now, by state.", answering, "blocks", ("free", "cached", "leased", "quarantined")
    )
    yield _states("tenure_slots", "Batch slots now, by state.", answering, "slots", ("free", "leased"))
    states = ("waiting", "fetching_kv", "running", "preempted", "stalled")
    yield _states("tenure_items", "Items now that are not finished, by state.", answering, "items", states)
    permits = GaugeMetricFamily(
        "tenure_permits_held",
        "Requests, items and prompt tokens that are admitted and not over.",
        labels=(*_ENGINE_LABELS, "kind"),
    )
    for engine in answering:
        for kind in ("requests", "items", "tokens"):
            permits.add_metric((*_labels(engine), kind), getattr(engine.permits, kind).held)
    yield permits
    yield from _totals(answering)


def _totals(engines: Sequence[EngineLedger]) -> Iterable[Metric]:
    tokens = CounterMetricFamily(
        "tenure_tokens",
        "Tokens since the engine started: computed by the model; of these recomputed after a preemption, and wasted on "
        "requests that did not end well; cached are those found in the prefix cache instead; sampled are new ones.",
        labels=(*_ENGINE_LABELS, "kind"),
    )
    finished = CounterMetricFamily(
        "tenure_items_finished",
        "Items that have finished since the engine started, by finish reason; cancelled ones are none of them.",
        labels=(*_ENGINE_LABELS, "finish_reason"),
    )
    steps = CounterMetricFamily("tenure_engine_steps", "Steps since the engine started.", labels=_ENGINE_LABELS)
    preemptions = CounterMetricFamily(
        "tenure_preemptions", "Preemptions of items since the engine started.", labels=_ENGINE_LABELS
    )
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
