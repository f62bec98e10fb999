"""The same figures under vLLM's names, so that its dashboards and the inference gateways of Kubernetes find them.

What vLLM counts and does not exist here (adapters, multimodal and external caches, speculative drafts) is left out,
but for `lora_requests_info`, which gateways look for, and `engine_sleep_state`, without which a dashboard takes an
engine for down: they truly say that there is no adapter, and that an engine that answers is awake.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import Metric

from tenure.observe.metric_table import Kind
from tenure.observe.metrics import ReadEngine, Readings, Sample, Value, engine_samples, family
from tenure.outcomes import Outcome
from tenure.wire.messages import EngineLedger

_LABELS = ("model_name", "engine")
_G, _C, _H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM
_ENDED_BY = {
    "abort": (Outcome.CLIENT_CANCELLED, Outcome.ABORTED, Outcome.DEADLINE, Outcome.STALLED),
    "error": (Outcome.ENGINE_ERROR, Outcome.KV_LOST, Outcome.WORKER_LOST),
}


class _EngineMetric(NamedTuple):
    name: str
    kind: Kind
    text: str
    read: ReadEngine
    label: str = ""
    """The one more by which there are several values."""


def _usage(engine: EngineLedger) -> float:
    blocks = engine.blocks
    return (blocks.leased + blocks.quarantined) / blocks.total if blocks.total else 0.0


def _waiting(engine: EngineLedger) -> dict[str, int]:
    items = engine.items
    return {"capacity": items.waiting + items.preempted, "deferred": items.awaiting_prefill + items.fetching_kv}


def _sources(engine: EngineLedger) -> dict[str, Value]:
    cached = engine.figures.sequence_cached_tokens
    computed = engine.figures.sequence_prompt_tokens - cached
    return {"local_compute": computed, "local_cache_hit": cached, "external_kv_transfer": 0}


_AWAKE: dict[str, Value] = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
_METRICS = (
    _EngineMetric("num_requests_running", _G, "Sequences that run.", lambda e: e.items.running + e.items.stalled),
    _EngineMetric("num_requests_waiting", _G, "Sequences that wait.", lambda e: sum(_waiting(e).values())),
    _EngineMetric("num_requests_waiting_by_reason", _G, "Why sequences wait.", _waiting, "reason"),
    _EngineMetric("engine_sleep_state", _G, "An engine that answers is awake.", lambda _: _AWAKE, "sleep_state"),
    _EngineMetric("kv_cache_usage_perc", _G, "Share of KV blocks in use, 0 to 1.", _usage),
    _EngineMetric("prompt_tokens_total", _C, "Tokens of prompts.", lambda e: e.figures.sequence_prompt_tokens),
    _EngineMetric("prompt_tokens_by_source_total", _C, "Where they come from.", _sources, "source"),
    _EngineMetric("prompt_tokens_cached_total", _C, "Cached.", lambda e: e.figures.sequence_cached_tokens),
    _EngineMetric("generation_tokens_total", _C, "Tokens sampled.", lambda e: e.tokens.sampled),
    _EngineMetric("num_preemptions_total", _C, "Preemptions.", lambda e: e.preemptions),
    _EngineMetric("prefix_cache_queries_total", _C, "Tokens looked up.", lambda e: e.figures.queried_tokens),
    _EngineMetric("prefix_cache_hits_total", _C, "Tokens found.", lambda e: e.tokens.cached),
    _EngineMetric("request_queue_time_seconds", _H, "Time in the queue.", lambda e: e.figures.queue_seconds),
    _EngineMetric("request_prefill_time_seconds", _H, "Time in prefill.", lambda e: e.figures.prefill_seconds),
    _EngineMetric("request_decode_time_seconds", _H, "Time in decode.", lambda e: e.figures.decode_seconds),
    _EngineMetric("request_inference_time_seconds", _H, "Time in steps.", lambda e: e.figures.inference_seconds),
    _EngineMetric("request_num_preemptions", _H, "Of a request.", lambda e: e.figures.request_preemptions),
    _EngineMetric("iteration_tokens_total", _H, "Of a step, prompts whole.", lambda e: e.figures.iteration_tokens),
)
_API_METRICS = {
    "time_to_first_token_seconds": ("time_to_first_token_seconds", "Time to the first token."),
    "inter_token_latency_seconds": ("inter_token_seconds", "Time between outputs of a sequence."),
    "e2e_request_latency_seconds": ("admitted_request_seconds", "Time from arrival to end."),
    "request_prompt_tokens": ("request_prompt_tokens", "Prompt tokens of a request."),
    "request_generation_tokens": ("request_output_tokens", "Output tokens of a request."),
    "request_max_num_generation_tokens": ("request_longest_output_tokens", "Output tokens of its longest sequence."),
    "request_prefill_kv_computed_tokens": ("request_computed_prompt_tokens", "Prompt tokens not found in the cache."),
    "request_time_per_output_token_seconds": ("request_token_seconds", "Time of an output token but the first, mean."),
    "request_params_n": ("request_choices", "The `n` of a request."),
    "request_params_max_tokens": ("request_max_tokens", "The `max_tokens` of a request."),
}
"""vLLM's name, the name in the counters of the API processes, and a text."""


def vllm_families(readings: Readings) -> Iterator[Metric]:
    """Families `vllm:*` with true values."""
    for name, kind, text, read, label in _METRICS:
        labels = (*_LABELS, label) if label else _LABELS
        yield family(kind, f"vllm:{name}", text, labels, engine_samples(readings, read))
    for name, (counted, text) in _API_METRICS.items():
        models = readings.http.histograms.get(counted, {})
        measured: list[Sample] = [((model, "0"), counts) for model, counts in models.items() if model]
        yield family(_H, f"vllm:{name}", text, _LABELS, measured)
    yield _admission_rejections(readings)
    yield _request_success(readings)
    yield _cache_config(readings)
    yield _lora_requests()


def _admission_rejections(readings: Readings) -> Metric:
    refusals = (Outcome.QUEUE_FULL,)
    samples: list[Sample] = [((model, "queue_full"), _ended(readings, model, refusals)) for model in _models(readings)]
    return family(_C, "vllm:admission_rejections_total", "Refused with 429.", ("model_name", "reason"), samples)


def _request_success(readings: Readings) -> Metric:
    samples = engine_samples(readings, lambda e: e.finish_reasons)
    for model in _models(readings):
        for reason, outcomes in _ENDED_BY.items():
            samples.append(((model, "0", reason), _ended(readings, model, outcomes)))
    text = "Sequences by finish reason; for abort and error requests."
    return family(_C, "vllm:request_success_total", text, (*_LABELS, "finished_reason"), samples)


def _models(readings: Readings) -> Iterable[str]:
    return dict.fromkeys(engine.model for engine in readings.engines)


def _ended(readings: Readings, model: str, outcomes: Sequence[Outcome]) -> int:
    """How many requests of a model have ended in one of these ways."""
    return sum(row.count for row in readings.http.by_model if row.model == model and row.outcome in outcomes)


def _cache_config(readings: Readings) -> Metric:
    cards = {card.name: card for card in readings.cards}
    samples: list[Sample] = [
        ((engine.model, str(engine.index), str(card.block_size), str(card.num_blocks), card.dtype), 1)
        for engine in readings.answering
        if (card := cards.get(engine.model)) is not None
    ]
    labels = (*_LABELS, "block_size", "num_gpu_blocks", "cache_dtype")
    return family(_G, "vllm:cache_config_info", "Always 1; the shape of the KV cache.", labels, samples)


def _lora_requests() -> Metric:
    labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
    samples: list[Sample] = [(("0", "", ""), time.time())]
    return family(_G, "vllm:lora_requests_info", "Adapters in use: there are none.", labels, samples)
