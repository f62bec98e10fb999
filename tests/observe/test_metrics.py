"""`/metrics`: every figure is in the table and every entry of the table is exported; stages add up; vLLM's names."""

from importlib.resources import files

import anyio
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenure.client import EngineClient, ServedModel, ServedModels
from tenure.config import ApiSettings
from tenure.errors import Refusal
from tenure.observe.counters import HISTOGRAMS, CounterSchema, SharedCounters, WorkStage
from tenure.observe.metric_table import TABLE, Kind
from tenure.observe.metrics import Readings, metrics_text, tenure_families
from tenure.observe.vllm_metrics import vllm_families
from tenure.outcomes import Outcome
from tenure.wire import messages as wire
from tests.api.generation_rig import Rig
from tests.api.test_operations import LEDGER, AnsweringEngine, with_engine

CHAT = "/v1/chat/completions"
PAGE = files("tenure.observe") / "metrics.md"
SILENT = msgspec.structs.replace(LEDGER, index=1, answering=False)
CARD = Rig().engine.card
FIGURES = wire.StatsSnapshot(
    queued_requests=1,
    prompt_tokens=50,
    queried_tokens=60,
    queue_seconds=wire.HistogramCounts((0.5,), (2, 1), 3.25),
    sequence_prompt_tokens=70,
    sequence_cached_tokens=30,
)


def families(text: bytes | str) -> dict[str, list]:
    """Samples by the name of their family, as it is exported."""
    text = text.decode() if isinstance(text, bytes) else text
    found = {}
    for family in text_string_to_metric_families(text):
        ending = "_total" if family.type == "counter" else ""
        found[family.name + ending] = family.samples
    return found


def labelled(samples: list, **labels: str) -> list[float]:
    return [sample.value for sample in samples if labels.items() <= sample.labels.items()]


@pytest.fixture
def readings():
    """Of a server with one request in each stage but the first, of which there are two, and with one of each ending."""
    counters = SharedCounters.create(CounterSchema(workers=2, routes=(CHAT,), models=("tiny",)))
    workers = counters.worker(0), counters.worker(1)
    for number in range(7):
        workers[number % 2].arrive(CHAT)
    for worker, stages in zip((*workers, *workers), ([], ["admitted"] * 2, ["answering"], ["ending"]), strict=True):
        for stage in stages:
            worker.move("tiny", WorkStage.RECEIVED, WorkStage(stage))
    workers[0].leave(CHAT, "tiny", Outcome.CLIENT_CANCELLED)
    workers[1].arrive(CHAT)
    workers[1].leave(CHAT, "tiny", Outcome.QUEUE_FULL)
    for name in HISTOGRAMS:
        workers[0].observe(name, 0.25, "tiny")
        workers[1].observe(name, 0.5, "tiny")
    yield Readings("1.2", counters.snapshot(), [msgspec.structs.replace(LEDGER, figures=FIGURES), SILENT], [CARD])
    counters.close()


def test_the_page_names_every_outcome():
    assert f"`outcome` is one of {', '.join(f'`{outcome}`' for outcome in Outcome)}." in PAGE.read_text()


def test_what_is_exported_is_what_the_table_says(readings):
    """Names, kinds and labels; each figure of the table has at least one sample."""
    exported = families(metrics_text(tenure_families(readings)))
    assert set(exported) == {figure.name for figure in TABLE}
    for figure in TABLE:
        samples = exported[figure.name]
        assert samples, figure.name
        for sample in samples:
            assert set(sample.labels) - {"le"} == set(figure.labels), figure.name


def test_names_follow_the_conventions():
    for figure in TABLE:
        assert figure.name.startswith("tenure_")
        assert figure.name.endswith("_total") == (figure.kind is Kind.COUNTER)
        assert figure.name.endswith("_seconds") == (figure.unit == "seconds")
        assert figure.meaning.endswith(".")


def test_the_stages_add_up_to_what_is_open(readings):
    samples = families(metrics_text(tenure_families(readings)))["tenure_open_requests"]
    stages = {sample.labels["stage"]: int(sample.value) for sample in samples}
    assert sum(stages.values()) == readings.http.open == 6
    assert stages == {"received": 2, "queued": 2, "prefill": 0, "answering": 1, "ending": 1}


def test_the_engines_say_who_is_still_queued(readings):
    """When all answer; what a silent one holds cannot be known."""
    told = Readings("1.2", readings.http, readings.engines[:1])
    samples = families(metrics_text(tenure_families(told)))["tenure_open_requests"]
    stages = {sample.labels["stage"]: int(sample.value) for sample in samples}
    assert stages == {"received": 2, "queued": 1, "prefill": 1, "answering": 1, "ending": 1}


def test_arrivals_are_outcomes_and_open_requests(readings):
    exported = families(metrics_text(tenure_families(readings)))
    arrived, ended, opened = (
        sum(labelled(exported[name]))
        for name in ("tenure_requests_arrived_total", "tenure_requests_total", "tenure_open_requests")
    )
    assert arrived == ended + opened == 8
    assert labelled(exported["tenure_requests_total"], model="tiny", route=CHAT, outcome="client_cancelled") == [1]


def test_samples_are_summed_over_the_workers(readings):
    exported = families(metrics_text(tenure_families(readings)))
    samples = exported["tenure_inter_token_seconds"]
    assert [s.value for s in samples if s.name.endswith("_sum")] == [0.75]
    assert [s.value for s in samples if s.name.endswith("_count")] == [2]
    buckets = [s.value for s in samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets), "they are cumulative"


def test_an_engine_that_does_not_answer_shows_that_alone(readings):
    exported = families(metrics_text(tenure_families(readings)))
    assert labelled(exported["tenure_engine_up"], engine="1") == [0]
    for name, samples in exported.items():
        if name != "tenure_engine_up":
            assert not labelled(samples, engine="1"), name
    assert labelled(exported["tenure_queue_seconds"], engine="0", le="0.5") == [2]


def test_the_route_exports_the_state_of_now():
    """Fault F17: nothing is kept from the last step."""
    engine = AnsweringEngine()
    rig = with_engine(engine)
    assert labelled(families(rig.request("GET", "/metrics").text)["tenure_items"], state="running") == [1]
    engine._ledger = msgspec.structs.replace(LEDGER, items=wire.ItemCounts(0, 0, 0, 0, 0))
    reply = rig.request("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert labelled(families(reply.text)["tenure_items"], state="running") == [0]
    assert "vllm:" not in reply.text


# vLLM's names

DASHBOARD = {
    *("vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"),
    *("vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:request_max_num_generation_tokens"),
    *("vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds"),
    *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"),
}
"""What vLLM's dashboards `grafana`, `performance_statistics` and `query_statistics` ask for."""
NEWER_DASHBOARDS = {
    *("vllm:engine_sleep_state", "vllm:request_time_per_output_token_seconds"),
    "vllm:request_prefill_kv_computed_tokens",
    *("vllm:num_requests_waiting_by_reason", "vllm:iteration_tokens_total", "vllm:num_preemptions_total"),
    *("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "vllm:prompt_tokens_cached_total"),
    *("vllm:request_params_n", "vllm:request_params_max_tokens", "vllm:request_inference_time_seconds"),
}
"""What `vllm_overview`, `_instances`, `_kv_cache` and `_service_status` ask for besides, and exists here."""
GATEWAY = {
    *("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:lora_requests_info"),
    "vllm:cache_config_info",
}
"""What the inference extension of Kubernetes' gateway API reads of a model server."""


@pytest.mark.parametrize("names", [DASHBOARD, NEWER_DASHBOARDS, GATEWAY], ids=["dashboards", "newer", "gateway"])
def test_the_names_that_others_look_for_are_there(readings, names):
    exported = families(metrics_text(vllm_families(readings)))
    assert names <= set(exported)
    for name in names - {"vllm:lora_requests_info"}:
        assert exported[name], name
        assert all({"model_name", "engine"} <= set(sample.labels) for sample in exported[name]), name
    assert set(exported["vllm:lora_requests_info"][0].labels) == {
        *("max_lora", "running_lora_adapters", "waiting_lora_adapters")
    }


NAMES = {
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"),
    *("engine_sleep_state", "lora_requests_info", "cache_config_info"),
    *("prompt_tokens_total", "generation_tokens_total", "request_success_total", "num_preemptions_total"),
    *("prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_cached_total"),
    *("prompt_tokens_by_source_total", "admission_rejections_total"),
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens"),
    *("request_generation_tokens", "request_max_num_generation_tokens", "request_params_n"),
    *("request_params_max_tokens", "iteration_tokens_total", "request_num_preemptions"),
    "request_prefill_kv_computed_tokens",
}
"""All that the reference names, but for what does not exist here: `external_prefix_cache_*`, `mm_cache_*`,
`spec_decode_*`."""


def test_no_name_of_the_reference_is_missing(readings):
    assert set(families(metrics_text(vllm_families(readings)))) == {f"vllm:{name}" for name in NAMES}


def test_vllm_names_have_true_values(readings):
    exported = families(metrics_text(vllm_families(readings)))

    def value(name: str, **labels: str) -> float:
        [found] = labelled(exported[f"vllm:{name}"], **labels)
        return found

    assert value("kv_cache_usage_perc") == 0.1
    assert (value("num_requests_running"), value("num_requests_waiting")) == (1, 0)
    assert value("prompt_tokens_total") == 70
    assert value("prefix_cache_queries_total") == 60
    assert value("prompt_tokens_by_source_total", source="local_compute") == 40
    assert value("prompt_tokens_by_source_total", source="local_cache_hit") == value("prompt_tokens_cached_total") == 30
    assert value("admission_rejections_total", model_name="tiny") == 1
    assert value("request_success_total", finished_reason="stop") == 4
    assert value("request_success_total", finished_reason="abort") == 1
    assert value("request_success_total", finished_reason="error") == 0
    assert value("request_queue_time_seconds", le="+Inf") == 3
    assert value("engine_sleep_state", sleep_state="awake") == 1
    assert value("engine_sleep_state", sleep_state="discard_all") == 0
    assert labelled(exported["vllm:cache_config_info"], block_size="16", num_gpu_blocks="4096") == [1]


def test_vllm_names_are_exported_where_they_are_asked_for():
    rig = Rig(settings=ApiSettings(version="0.0", vllm_metrics=True))
    text = rig.request("GET", "/metrics").text
    assert "vllm:num_requests_waiting" in text
    assert "tenure_open_requests" in text


def test_an_engine_that_is_not_there_is_not_waited_for():
    """And one that does not answer not beyond its deadline, all of them at the same time."""

    async def scrape() -> list[wire.EngineLedger]:
        engines = [EngineClient(f"/nowhere/{number}") for number in range(20)]
        with anyio.fail_after(10):
            return await ServedModels([ServedModel(("tiny",), engines, ("generate",))]).ledgers(timeout=60)

    assert [ledger.answering for ledger in anyio.run(scrape)] == [False] * 20


def test_a_request_that_is_refused_is_no_latency_of_vllms():
    """vLLM measures what its engine has admitted: refusals, which are quick, must not make a full server look fast."""
    rig = Rig()
    assert rig.chat().status_code == 200
    rig.engine.refusal = Refusal(Outcome.QUEUE_FULL, "queue_full", "full")
    assert rig.chat().status_code == 429
    assert len(rig.counts.seconds["request_seconds"]) == 2
    assert len(rig.counts.seconds["admitted_request_seconds"]) == 1
