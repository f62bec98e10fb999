"""Counters shared by processes: every arrival ends once, a dead worker's requests end as `worker_lost`."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import InternalError
from tenure.observe.counters import CounterSchema, SharedCounters, WorkStage
from tenure.outcomes import Outcome

CHAT, RERANK = "/v1/chat/completions", "/rerank"
SCHEMA = CounterSchema(workers=3, routes=(CHAT, RERANK), models=("smollm2", "minilm"))


@pytest.fixture
def counters() -> Iterator[SharedCounters]:
    made = SharedCounters.create(SCHEMA)
    yield made
    assert min(stage.open for stage in made.snapshot().stages) >= 0
    made.close()


def test_new_counters_are_zero(counters: SharedCounters) -> None:
    now = counters.snapshot()
    assert (now.arrivals, now.open, now.outcomes, now.by_model) == (0, 0, {}, [])
    assert {sum(counts.counts) for models in now.histograms.values() for counts in models.values()} == {0}
    assert set(now.histograms["cancel_seconds"]) == {"smollm2", "minilm"}
    assert {stage.open for stage in now.stages} == {0}


def test_the_sum_goes_over_workers_and_routes(counters: SharedCounters) -> None:
    first, second = counters.worker(0), counters.worker(2)
    first.arrive(CHAT)
    second.arrive(CHAT)
    second.arrive(RERANK)
    first.leave(CHAT, "smollm2", Outcome.OK)
    second.leave(RERANK, "minilm", Outcome.CLIENT_CANCELLED)
    now = counters.snapshot()
    assert (now.arrivals, now.open) == (3, 1)
    assert now.outcomes == {"ok": 1, "client_cancelled": 1}
    assert (now.routes[CHAT], now.routes[RERANK]) == (2, 1)
    assert [(row.route, row.model, row.outcome, row.count) for row in now.by_model] == [
        (CHAT, "smollm2", Outcome.OK, 1),
        (RERANK, "minilm", Outcome.CLIENT_CANCELLED, 1),
    ]


def test_an_unknown_model_counts_under_the_empty_name(counters: SharedCounters) -> None:
    worker = counters.worker(0)
    worker.arrive(CHAT)
    worker.leave(CHAT, "no-such-model", Outcome.INVALID)
    assert [row.model for row in counters.snapshot().by_model] == [""]


def test_an_ending_without_a_beginning_is_refused_and_changes_nothing(counters: SharedCounters) -> None:
    worker = counters.worker(1)
    worker.arrive(RERANK)
    with pytest.raises(InternalError):
        worker.leave(CHAT, "", Outcome.OK)
    assert (counters.snapshot().open, counters.snapshot().outcomes) == (1, {})
    worker.leave(RERANK, "", Outcome.OK)
    with pytest.raises(InternalError):
        worker.leave(RERANK, "", Outcome.OK)


def test_values_fall_into_buckets_by_model(counters: SharedCounters) -> None:
    counters.worker(0).observe("cancel_seconds", 0.0005, "minilm")
    counters.worker(1).observe("cancel_seconds", 0.001, "minilm")
    counters.worker(1).observe("cancel_seconds", 1e6, "minilm")
    counters.worker(1).observe("cancel_seconds", 1.0, "of another server")
    models = counters.snapshot().histograms["cancel_seconds"]
    histogram = models["minilm"]
    assert histogram.counts[0] == 2
    assert histogram.counts[-1] == 1
    assert len(histogram.counts) == len(histogram.bounds) + 1
    assert histogram.sum == pytest.approx(1000000.0015)
    assert {model: sum(counts.counts) for model, counts in models.items()} == {"": 1, "smollm2": 0, "minilm": 3}


def test_a_sum_of_tokens_does_not_run_over(counters: SharedCounters) -> None:
    """As one of nanoseconds would, after nine thousand million tokens."""
    for _ in range(100):
        counters.worker(0).observe("request_prompt_tokens", 2**50, "minilm")
    assert counters.snapshot().histograms["request_prompt_tokens"]["minilm"].sum == 100 * 2**50


def stages(counters: SharedCounters) -> dict[tuple[str, str], int]:
    return {(count.model, count.stage.value): count.open for count in counters.snapshot().stages if count.open}


def test_an_open_request_is_in_one_stage(counters: SharedCounters) -> None:
    first, second = counters.worker(0), counters.worker(1)
    for worker in (first, first, second):
        worker.arrive(CHAT)
    first.move("smollm2", WorkStage.RECEIVED, WorkStage.ADMITTED)
    first.move("smollm2", WorkStage.ADMITTED, WorkStage.ANSWERING)
    second.move("minilm", WorkStage.RECEIVED, WorkStage.ADMITTED)
    assert stages(counters) == {("", "received"): 1, ("smollm2", "answering"): 1, ("minilm", "admitted"): 1}
    first.move("smollm2", WorkStage.ANSWERING, None)
    first.leave(CHAT, "smollm2", Outcome.OK)
    assert stages(counters) == {("", "received"): 1, ("minilm", "admitted"): 1}
    counters.close_worker(1)
    assert stages(counters) == {("", "received"): 1}
    assert counters.snapshot().open == 1


def test_another_process_counts_into_the_same_memory(counters: SharedCounters) -> None:
    child = os.fork()
    if child == 0:  # the descriptor is inherited, as by a worker
        attached = SharedCounters(counters.descriptor, SCHEMA)
        worker = attached.worker(1)
        for _ in range(5):
            worker.arrive(CHAT)
        worker.leave(CHAT, "smollm2", Outcome.OK)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (counters.snapshot().arrivals, counters.snapshot().open) == (5, 4)
    assert counters.close_worker(1) == 4
    assert counters.snapshot().open == 0
    assert counters.snapshot().outcomes == {"ok": 1, "worker_lost": 4}


def test_burying_twice_or_an_idle_worker_changes_nothing(counters: SharedCounters) -> None:
    counters.worker(0).arrive(CHAT)
    assert counters.close_worker(0) == 1
    assert counters.close_worker(0) == 0
    assert counters.close_worker(2) == 0
    assert counters.snapshot().outcomes == {"worker_lost": 1}


def test_a_successor_goes_on_in_the_row_of_the_dead(counters: SharedCounters) -> None:
    counters.worker(0).arrive(CHAT)
    counters.close_worker(0)
    successor = counters.worker(0)
    successor.arrive(CHAT)
    successor.leave(CHAT, "smollm2", Outcome.OK)
    assert (counters.snapshot().arrivals, counters.snapshot().open) == (2, 0)


def test_another_schema_cannot_attach(counters: SharedCounters) -> None:
    with pytest.raises(InternalError):
        SharedCounters(counters.descriptor, CounterSchema(workers=4, routes=(CHAT,)))


def test_there_are_no_rows_beyond_the_workers(counters: SharedCounters) -> None:
    for index in (-1, 3):
        with pytest.raises(InternalError):
            counters.worker(index)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "move", "leave", "close_worker"]), st.integers(0, 2), st.sampled_from([CHAT, RERANK])
    ),
    max_size=60,
)
NEXT = {
    WorkStage.RECEIVED: WorkStage.ADMITTED,
    WorkStage.ADMITTED: WorkStage.ANSWERING,
    WorkStage.ANSWERING: WorkStage.ENDING,
}


@given(EVENTS)
def test_arrivals_are_the_outcomes_and_the_open_ones_at_every_moment(events: list[tuple[str, int, str]]) -> None:
    """And the open ones are those of all stages."""
    counters = SharedCounters.create(SCHEMA)
    keys = [(worker, route) for worker in range(3) for route in SCHEMA.routes]
    requests: dict[tuple[int, str], list[WorkStage]] = {key: [] for key in keys}
    for kind, worker, route in events:
        staged = requests[worker, route]
        if kind == "arrive":
            counters.worker(worker).arrive(route)
            staged.append(WorkStage.RECEIVED)
        elif kind == "move" and staged and staged[0] in NEXT:
            counters.worker(worker).move("minilm", staged[0], NEXT[staged[0]])
            staged[0] = NEXT[staged[0]]
        elif kind == "leave" and staged:
            counters.worker(worker).move("minilm", staged.pop(0), None)
            counters.worker(worker).leave(route, "minilm", Outcome.OK)
        elif kind == "close_worker":
            counters.close_worker(worker)
            requests.update({key: [] for key in requests if key[0] == worker})
        now = counters.snapshot()
        assert now.open == sum(map(len, requests.values())) == sum(stage.open for stage in now.stages)
        assert now.arrivals == now.open + sum(now.outcomes.values())
    counters.close()
