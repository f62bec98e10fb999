"""The scheduler of an engine whose prompts others compute, with a connector that does what its script says."""

from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial

from tenure.core.budget import StepBudget
from tenure.core.fetches import Fetch, Fetches
from tenure.core.lifecycle import State
from tenure.core.limits import Limits
from tenure.core.request import Request
from tenure.outcomes import Outcome
from tests.core.model_runner import EMPTY, follow
from tests.core.simulation import Ask, Simulation


class Course(StrEnum):
    """What becomes of a claim and of its transfer."""

    WELL = "well"
    REFUSED = "refused"
    NOT_CONFIRMED = "not confirmed"
    """Other blocks were read, and the other engine says so."""
    GIVEN_UP = "given up"
    """It is settled long before the transport has come to an end, and writes until then."""
    CONFIRMED_EARLY = "confirmed early"
    """It is confirmed while it still writes, against all rules."""


class FetchingSimulation(Simulation):
    """Each claim takes the course with its number in `courses`; what a course has to do is one event for each turn."""

    def __init__(
        self, limits: Limits, budget: StepBudget, courses: Sequence[Course], *, depth: int = 0, recompute: bool = True
    ) -> None:
        super().__init__(limits, budget, depth=depth)
        self.fetches = Fetches(self.scheduler, limits.set_aside, recompute=recompute)
        self.fetched: set[int] = set()
        """The transfers that were confirmed as they may be."""
        self._courses = courses
        self._actions: deque[Callable[[], None]] = deque()
        self._asks: dict[int, tuple[int, ...]] = {}  # the prompts of claims
        self.lost: set[int] = set()
        """The requests of which something could not be fetched."""
        self._numbers: dict[int, int] = {}

    def add(self, request: Request) -> None:
        super().add(request)
        self.fetches.add(request)

    def submit(self, ask: Ask) -> int:
        number = super().submit(ask)
        for claim, prompt in zip(ask.claims, ask.prompts, strict=bool(ask.claims)):
            self._asks[claim], self._numbers[claim] = prompt, number
            refused = self._courses[claim - 1] is Course.REFUSED
            self._actions.append(lambda claim=claim, refused=refused: self._answer(claim, refused=refused))
        return number

    def turn(self) -> bool:
        self._event()
        begun = self.fetches.begin()
        for fetch in begun:
            self._begin(fetch)
        self._event()
        acted = bool(self._actions)
        if acted:
            self._actions.popleft()()
            self.check()
        return super().turn() or acted or bool(begun)

    def _answer(self, claim: int, *, refused: bool) -> None:
        if refused:
            self._note_loss(claim)
            self._end(self.fetches.refuse(claim))
        else:
            self.fetches.grant(claim)

    def _begin(self, fetch: Fetch) -> None:
        if not fetch.blocks:
            return
        right = partial(self._write, fetch, 0)
        wrong = partial(self._write, fetch, 1)
        end = partial(self.fetches.end_transfer, fetch.transfer)
        confirm = partial(self._settle, fetch, confirmed=True)
        lose = partial(self._settle, fetch, confirmed=False)
        match self._courses[fetch.claim - 1]:
            case Course.WELL:
                steps = [right, end, confirm]
            case Course.NOT_CONFIRMED:
                steps = [wrong, end, lose]
            case Course.GIVEN_UP:
                steps = [right, lose, wrong, wrong, end, end]
            case _:
                steps = [confirm, wrong, end, confirm]
        self._actions.extend(steps)

    def _settle(self, fetch: Fetch, *, confirmed: bool) -> None:
        well = self._courses[fetch.claim - 1] is Course.WELL
        item = next(
            item for item in self.records[self._numbers[fetch.claim]].request.items if item.claim == fetch.claim
        )
        if item.state is State.FETCHING_KV:
            if well:
                self.fetched.add(fetch.transfer)
            else:
                self._note_loss(fetch.claim)
        self._end(self.fetches.settle(fetch.transfer, confirmed=confirmed))

    def _note_loss(self, claim: int) -> None:
        record = self.records[self._numbers[claim]]
        if record.request.outcome is None:
            self.lost.add(self._numbers[claim])
            if not self.fetches.recompute:
                record.cancelled = Outcome.KV_LOST
                record.computed_at_cancel = record.request.computed
                record.due = self.runner.in_flight[-1].number if self.runner.in_flight else None

    def _write(self, fetch: Fetch, error: int) -> None:
        """Write what the other engine's blocks hold, off by `error`."""
        size, text, texts = self.limits.block_size, EMPTY, []
        for token in self._asks[fetch.claim]:
            text = follow(text, token)
            texts.append(text + error)
        for index, block in enumerate(fetch.blocks, fetch.first):
            self.runner.write(block, texts[index * size : (index + 1) * size])

    def awaits_others(self) -> bool:
        return bool(self._actions) or State.AWAITING_PREFILL in self.scheduler.snapshot().items

    def _end(self, ended: Sequence[Request]) -> None:
        super()._end(ended)
        for request in ended:
            self.fetches.close(request)

    def check(self) -> None:
        super().check()
        if self.events >= self.check_from:
            self.fetches.audit()
