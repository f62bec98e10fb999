"""Scripted runs, replayed with a message or a fault injected at every event; see `simulation` for what is checked."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from tenure.core.ledger import Holder, HolderKind
from tenure.core.lifecycle import State
from tenure.core.limits import Limits
from tenure.outcomes import Outcome
from tests.core.scripts import SCRIPTS, UNBOUNDED, Script, text
from tests.core.simulation import Ask, Simulation

CAUSES = (
    Outcome.CLIENT_CANCELLED,
    Outcome.DEADLINE,
    Outcome.STALLED,
    Outcome.ABORTED,
    Outcome.WORKER_LOST,
    Outcome.KV_LOST,
    Outcome.UNAVAILABLE,
)

every_script = pytest.mark.parametrize("name", SCRIPTS)
at_both_depths = pytest.mark.parametrize("depth", [0, 1])


def disturbed(script: Script, depth: int, event: int, disturb: Callable[[Simulation], None]) -> Simulation:
    """Replay `script` with `disturb` called just before `event`."""
    simulation = script.simulation(depth)
    simulation.interrupt = lambda now: disturb(simulation) if now == event else None
    simulation.check_from = event
    return simulation.run(script.asks)


def undisturbed(script: Script, depth: int) -> Simulation:
    return script.simulation(depth).run(script.asks)


@at_both_depths
@every_script
def test_undisturbed_runs_give_every_item_its_whole_text(name: str, depth: int) -> None:
    simulation = undisturbed(SCRIPTS[name], depth)
    for record in simulation.records.values():
        assert record.ending is Outcome.OK
        assert len(record.finishes) == len(record.tokens)


@at_both_depths
def test_the_scripts_meet_what_they_are_for(depth: int) -> None:
    runs = {name: undisturbed(script, depth).scheduler.counts for name, script in SCRIPTS.items()}
    assert all(runs[name].preemptions for name in ("tight", "tight without cache", "one row"))
    assert all(runs[name].recomputed for name in ("tight", "tight without cache", "one row"))
    assert all(runs[name].cached for name in ("mixed", "shared", "edges"))
    assert runs["tight without cache"].cached == 0


@at_both_depths
def test_rows_that_bring_none_or_several_tokens_wait_for_each_other(depth: int) -> None:
    """That none is planned on top of another, and that texts are whole, is checked in each run."""
    simulation = undisturbed(SCRIPTS["bursts"], depth)
    assert simulation.tally["bursts"]
    assert simulation.tally["nothing drawn"]


@at_both_depths
def test_text_depends_on_neither_pool_nor_budget_nor_cache(depth: int) -> None:
    """The same requests in all settings; `check_end` compares each text with the one oracle."""
    for asks in (SCRIPTS["tight"].asks, SCRIPTS["one row"].asks):
        for name in ("mixed", "tight", "tight without cache", "one row"):
            setting = SCRIPTS[name]
            setting.simulation(depth).run(asks)


@at_both_depths
@every_script
def test_abort_at_every_event(name: str, depth: int) -> None:
    script = SCRIPTS[name]
    events = undisturbed(script, depth).events
    requests = range(1, len(script.asks) + 1)
    for event in range(events):
        for number in requests:
            abort_at(script, depth, event, number, CAUSES[(event * len(requests) + number) % len(CAUSES)])


@at_both_depths
@pytest.mark.parametrize("cause", CAUSES)
def test_abort_for_every_cause_at_every_event(cause: Outcome, depth: int) -> None:
    script = SCRIPTS["edges"]
    for event in range(undisturbed(script, depth).events):
        abort_at(script, depth, event, event % len(script.asks) + 1, cause)


def abort_at(script: Script, depth: int, event: int, number: int, cause: Outcome) -> None:
    """Replay `script` with an abort just before `event`; all others must end as if nothing had happened."""
    simulation = disturbed(script, depth, event, lambda it: it.cancel(number, cause))
    for other, record in simulation.records.items():
        assert other == number or record.ending is Outcome.OK


@at_both_depths
@every_script
def test_a_stall_at_every_event_changes_no_text(name: str, depth: int) -> None:
    """Each request in turn stops reading at one event, and reads on a few events later, or when all others are done."""
    script = SCRIPTS[name]
    plain = undisturbed(script, depth)
    for event in range(plain.events):
        number = event % len(plain.records) + 1
        simulation = script.simulation(depth)
        acts = {event: simulation.stall}
        if event // len(plain.records) % 2:
            acts[event + 7] = simulation.resume
        simulation.interrupt = lambda now, acts=acts, number=number: acts.get(now, lambda _: None)(number)
        simulation.check_from = event
        simulation.run(script.asks)
        assert all(record.ending is Outcome.OK for record in simulation.records.values())


@at_both_depths
@every_script
def test_a_stalled_request_can_be_ended_at_every_event(name: str, depth: int) -> None:
    script = SCRIPTS[name]
    plain = undisturbed(script, depth)
    for event in range(plain.events - 3):
        number = event % len(plain.records) + 1
        simulation = script.simulation(depth)
        acts = {event: simulation.stall, event + 3: lambda number, it=simulation: it.cancel(number, Outcome.STALLED)}
        simulation.interrupt = lambda now, acts=acts, number=number: acts.get(now, lambda _: None)(number)
        simulation.check_from = event
        simulation.run(script.asks)
        others = [record for other, record in simulation.records.items() if other != number]
        assert all(record.ending is Outcome.OK for record in others)


@at_both_depths
@every_script
def test_a_deadline_at_every_moment(name: str, depth: int) -> None:
    """Every request in turn is due to end, or to begin, at some moment of the run; the others end as they would."""
    script = SCRIPTS[name]
    span = undisturbed(script, depth).now
    late: Counter[str] = Counter()
    for part in range(24):
        for kind in ("begin_within", "end_within"):
            number = part % len(script.asks)
            asks = list(script.asks)
            asks[number] = replace(asks[number], **{kind: span * part / 24})
            simulation = script.simulation(depth).run(asks)
            for record in simulation.records.values():
                assert record.ending is Outcome.OK or record.ask is asks[number]
                late[kind] += record.ending is Outcome.DEADLINE
    assert late["end_within"]


@at_both_depths
@every_script
def test_finish_of_an_item_at_every_event(name: str, depth: int) -> None:
    script = SCRIPTS[name]
    plain = undisturbed(script, depth)
    items = [(number, index) for number, record in plain.records.items() for index in range(len(record.tokens))]
    stopped = 0
    for event in range(plain.events):
        for number, index in (items[event % len(items)], items[(event + len(items) // 2) % len(items)]):
            simulation = disturbed(script, depth, event, lambda it, n=number, i=index: it.finish_item(n, i))
            assert all(record.ending is Outcome.OK for record in simulation.records.values())
            stopped += bool(simulation.records[number].stopped_early)
    assert stopped or all(ask.pooling for ask in script.asks)  # what is read in one piece is not stopped midway


@at_both_depths
@every_script
def test_error_in_every_row(name: str, depth: int) -> None:
    """A row that fails ends its own request with `engine_error`, and no other."""
    script = SCRIPTS[name]
    failed = 0
    for place in undisturbed(script, depth).rows:
        simulation = script.simulation(depth, broken=(place,)).run(script.asks)
        endings = [record.ending for record in simulation.records.values()]
        assert endings.count(Outcome.ENGINE_ERROR) <= 1
        assert endings.count(Outcome.OK) >= len(endings) - 1
        failed += Outcome.ENGINE_ERROR in endings
    assert failed


def test_cancel_between_steps_frees_everything_at_once() -> None:
    script = SCRIPTS["mixed"]
    simulation = script.simulation(depth=0)
    for ask in script.asks:
        simulation.submit(ask)
    simulation.turn()
    simulation.turn()
    assert simulation.scheduler.snapshot().ledger.leased
    for number in list(simulation.records):
        simulation.cancel(number, Outcome.CLIENT_CANCELLED)
    ledger = simulation.scheduler.snapshot().ledger
    assert (ledger.leased, ledger.slots_free) == (0, ledger.slots_total)
    assert not simulation.turn()
    simulation.check_end()


def test_cancel_during_a_step_frees_everything_when_it_lands() -> None:
    script = SCRIPTS["mixed"]
    simulation = script.simulation(depth=1)
    simulation.submit(script.asks[0])
    simulation.plan()
    simulation.cancel(1, Outcome.CLIENT_CANCELLED)
    assert simulation.records[1].ending is None
    assert simulation.scheduler.snapshot().ledger.leased
    assert State.RUNNING not in simulation.scheduler.snapshot().items
    simulation.land()
    assert simulation.records[1].ending is Outcome.CLIENT_CANCELLED
    simulation.check_end()


def test_a_waiting_request_that_leaves_is_never_computed() -> None:
    script = SCRIPTS["tight"]
    simulation = script.simulation(depth=0)
    for ask in script.asks * 2:
        simulation.submit(ask)
    simulation.turn()
    simulation.cancel(5, Outcome.CLIENT_CANCELLED)
    while simulation.turn():
        pass
    assert simulation.records[5].request.computed == 0
    simulation.check_end()


@pytest.mark.parametrize("kind", [HolderKind.TICKET, HolderKind.TRANSFER])
def test_a_request_is_over_though_others_hold_blocks_of_it(kind: HolderKind) -> None:
    limits = Limits(max_model_len=64, num_blocks=16, block_size=4, num_slots=4)
    simulation = Simulation(limits, UNBOUNDED, prefix_caching=False)
    simulation.submit(Ask((text(6),), max_tokens=5, ignore_eos=True))
    simulation.turn()
    scheduler, holder = simulation.scheduler, Holder(kind, 3)
    (item,) = simulation.records[1].request.items
    run = scheduler.run_of(item)
    assert run is not None
    scheduler.ledger.hold(run.lease, holder)
    simulation.cancel(1, Outcome.CLIENT_CANCELLED)
    assert simulation.records[1].ending is Outcome.CLIENT_CANCELLED
    ledger = scheduler.snapshot().ledger
    assert (ledger.leased + ledger.quarantined, ledger.slots_free) == (2, ledger.slots_total)
    scheduler.audit()
    scheduler.ledger.release(run.lease, holder)
    simulation.check_end()
