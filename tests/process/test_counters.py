"""Counters shared by processes: every arrival ends once, a dead worker's requests end as `worker_lost`."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import InternalError
from tenure.outcomes import Outcome
from tenure.process.counters import CounterSchema, SharedCounters

CHAT, RERANK = "/v1/chat/completions", "/rerank"
SCHEMA = CounterSchema(workers=3, routes=(CHAT, RERANK), models=("smollm2", "minilm"))


@pytest.fixture
def counters() -> Iterator[SharedCounters]:
    made = SharedCounters.create(SCHEMA)
    yield made
    made.audit()
    made.close()


def test_new_counters_are_zero(counters: SharedCounters) -> None:
    now = counters.snapshot()
    assert (now.arrivals, now.open, now.outcomes, now.by_model) == (0, 0, {}, [])
    assert sum(now.histograms["cancel_seconds"].counts) == 0


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
    assert (now.routes[CHAT].open, now.routes[RERANK].open) == (1, 0)
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


def test_durations_fall_into_buckets(counters: SharedCounters) -> None:
    counters.worker(0).observe("cancel_seconds", 0.0005)
    counters.worker(1).observe("cancel_seconds", 0.001)
    counters.worker(1).observe("cancel_seconds", 1e6)
    histogram = counters.snapshot().histograms["cancel_seconds"]
    assert histogram.counts[0] == 2
    assert histogram.counts[-1] == 1
    assert len(histogram.counts) == len(histogram.bounds) + 1
    assert histogram.sum == pytest.approx(1000000.0015)


def test_another_process_counts_into_the_same_memory(counters: SharedCounters) -> None:
    child = os.fork()
    if child == 0:  # the descriptor is inherited, as by a worker
        attached = SharedCounters.attach(counters.descriptor, SCHEMA)
        worker = attached.worker(1)
        for _ in range(5):
            worker.arrive(CHAT)
        worker.leave(CHAT, "smollm2", Outcome.OK)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (counters.snapshot().arrivals, counters.snapshot().open) == (5, 4)
    assert counters.bury(1) == 4
    assert counters.snapshot().open == 0
    assert counters.snapshot().outcomes == {"ok": 1, "worker_lost": 4}


def test_burying_twice_or_an_idle_worker_changes_nothing(counters: SharedCounters) -> None:
    counters.worker(0).arrive(CHAT)
    assert counters.bury(0) == 1
    assert counters.bury(0) == 0
    assert counters.bury(2) == 0
    assert counters.snapshot().outcomes == {"worker_lost": 1}


def test_a_successor_goes_on_in_the_row_of_the_dead(counters: SharedCounters) -> None:
    counters.worker(0).arrive(CHAT)
    counters.bury(0)
    successor = counters.worker(0)
    successor.arrive(CHAT)
    successor.leave(CHAT, "smollm2", Outcome.OK)
    assert (counters.snapshot().arrivals, counters.snapshot().open) == (2, 0)


def test_another_schema_cannot_attach(counters: SharedCounters) -> None:
    with pytest.raises(InternalError):
        SharedCounters.attach(counters.descriptor, CounterSchema(workers=4, routes=(CHAT,)))


def test_there_are_no_rows_beyond_the_workers(counters: SharedCounters) -> None:
    for index in (-1, 3):
        with pytest.raises(InternalError):
            counters.worker(index)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["arrive", "leave", "bury"]), st.integers(0, 2), st.sampled_from([CHAT, RERANK])),
    max_size=60,
)


@given(EVENTS)
def test_arrivals_are_the_outcomes_and_the_open_ones_at_every_moment(events: list[tuple[str, int, str]]) -> None:
    counters = SharedCounters.create(SCHEMA)
    open_requests = {(worker, route): 0 for worker in range(3) for route in (CHAT, RERANK)}
    for kind, worker, route in events:
        if kind == "arrive":
            counters.worker(worker).arrive(route)
            open_requests[worker, route] += 1
        elif kind == "leave" and open_requests[worker, route]:
            counters.worker(worker).leave(route, "minilm", Outcome.OK)
            open_requests[worker, route] -= 1
        elif kind == "bury":
            counters.bury(worker)
            open_requests.update({key: 0 for key in open_requests if key[0] == worker})
        counters.audit()
        now = counters.snapshot()
        assert now.open == sum(open_requests.values())
        assert now.arrivals == now.open + sum(now.outcomes.values())
    counters.close()
