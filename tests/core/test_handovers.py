"""Prompts that are computed for another engine: a ticket holds their blocks when the item has finished."""

import pytest

from tenure.core.handovers import Handovers
from tenure.core.limits import Limits
from tenure.core.report import Effects
from tenure.outcomes import Outcome
from tests.core.scripts import CHUNKED, text
from tests.core.simulation import Ask, Simulation

LIMITS = Limits(max_model_len=40, num_blocks=24, block_size=4, num_slots=3, set_aside=12)
PROMPTS = (text(17), text(9, 1), text(17))
ASK = Ask(PROMPTS, max_tokens=1, ignore_eos=True, handover=True)


class HandingOver(Simulation):
    """Each ticket is let go of by the test."""

    def __init__(self, depth: int) -> None:
        super().__init__(LIMITS, CHUNKED, depth=depth)
        self.handovers = Handovers(self.scheduler.ledger)
        self.tickets: dict[int, int] = {}
        """The tickets of items, by index."""

    def _receive(self, effects: Effects) -> None:
        for output in effects.outputs:
            if (number := self.handovers.take(output)) is not None:
                self.tickets[output.index] = number
        super()._receive(effects)

    def check(self) -> None:
        super().check()
        self.handovers.audit()


def run_out(simulation: HandingOver) -> None:
    while simulation.turn():
        pass


@pytest.mark.parametrize("depth", [0, 1])
def test_a_ticket_holds_the_prompt_when_its_request_is_over(depth: int) -> None:
    simulation = HandingOver(depth)
    simulation.submit(ASK)
    run_out(simulation)
    assert simulation.records[1].ending is Outcome.OK
    assert sorted(simulation.tickets) == [0, 1, 2]
    ledger = simulation.scheduler.snapshot().ledger
    assert ledger.slots_free == ledger.slots_total
    assert simulation.handovers.blocks == 5 + 3 + 5
    assert 8 < ledger.leased <= 13
    for number in simulation.tickets.values():
        assert simulation.handovers.release(number)
        simulation.check()
        assert not simulation.handovers.release(number)
    simulation.check_end()


def test_what_a_ticket_holds_is_what_was_computed_and_stays_so() -> None:
    """Others fill the rest of the pool several times over, and the blocks still hold the prompt."""
    simulation = HandingOver(0)
    simulation.submit(ASK)
    run_out(simulation)
    lease = next(lease for lease in simulation.scheduler.ledger.leases() if lease.number)
    before = [simulation.runner.read(block) for block in lease.blocks]
    for variant in range(5):
        simulation.submit(Ask((text(30, 5 + variant),), max_tokens=9, ignore_eos=True))
        run_out(simulation)
    assert [simulation.runner.read(block) for block in lease.blocks] == before
    for number in simulation.tickets.values():
        simulation.handovers.release(number)
    simulation.check_end()


@pytest.mark.parametrize("depth", [0, 1])
def test_what_ends_otherwise_gets_no_ticket(depth: int) -> None:
    plain = HandingOver(depth)
    plain.submit(ASK)
    run_out(plain)
    for event in range(plain.events):
        simulation = HandingOver(depth)

        def abort(now: int, simulation: HandingOver = simulation, event: int = event) -> None:
            if now == event:
                simulation.cancel(1, Outcome.CLIENT_CANCELLED)

        simulation.interrupt = abort
        simulation.submit(ASK)
        run_out(simulation)
        assert set(simulation.tickets) == set(simulation.records[1].finishes)
        for number in simulation.tickets.values():
            simulation.handovers.release(number)
        simulation.check_end()
