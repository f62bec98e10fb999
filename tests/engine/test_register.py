"""Requests by name: whoever asks for an end is told of it when it has come, and told the same again later."""

from tenure.engine.register import REMEMBERED, Name, Register
from tenure.outcomes import Outcome
from tenure.wire.messages import CancelByName, CancelledRequest

CONNECTION = 5


def by_id(*ids: str, sequence: int = 1) -> CancelByName:
    return CancelByName(sequence=sequence, ids=list(ids))


def by_label(label: str, owner: str = "", sequence: int = 1) -> CancelByName:
    return CancelByName(sequence=sequence, ids=[], labels=[label], owner=owner)


def told(register: Register) -> list[tuple[int, list[CancelledRequest]]]:
    return [(question.sequence, list(requests)) for question, requests in register.answers()]


def test_the_answer_comes_when_the_request_has_left_and_says_how_long_it_took() -> None:
    register = Register()
    register.enter(1, Name("cmpl-1", "", ""))
    assert register.ask(CONNECTION, by_id("cmpl-1"), now=10.0) == {1}
    assert told(register) == []
    register.leave(1, Outcome.ABORTED, now=10.25)
    assert told(register) == [(1, [CancelledRequest("cmpl-1", Outcome.ABORTED, 0.25)])]
    assert told(register) == []


def test_a_repeat_gets_the_same_answer() -> None:
    register = Register()
    register.enter(1, Name("cmpl-1", "", ""))
    register.ask(CONNECTION, by_id("cmpl-1"), now=1.0)
    register.leave(1, Outcome.ABORTED, now=2.0)
    [(_, first)] = told(register)
    assert register.ask(CONNECTION, by_id("cmpl-1", sequence=2), now=99.0) == set()
    assert told(register) == [(2, first)]


def test_a_request_that_ended_of_itself_says_how_and_took_no_time() -> None:
    register = Register()
    register.enter(1, Name("cmpl-1", "", ""))
    register.leave(1, Outcome.OK, now=2.0)
    register.ask(CONNECTION, by_id("cmpl-1"), now=3.0)
    assert told(register) == [(1, [CancelledRequest("cmpl-1", Outcome.OK, 0.0)])]


def test_ids_match_exactly() -> None:
    register = Register()
    register.enter(1, Name("cmpl-1", "", ""))
    assert register.ask(CONNECTION, by_id("cmpl-", "CMPL-1", "cmpl-11", ""), now=1.0) == set()
    assert told(register) == [(1, [])]


def test_a_label_ends_all_that_carry_it_under_the_same_owner_and_none_under_another() -> None:
    register = Register()
    register.enter(1, Name("a", "job", "alice"))
    register.enter(2, Name("b", "job", "bob"))
    register.enter(3, Name("c", "job", "alice"))
    register.enter(4, Name("d", "", "alice"))
    assert register.ask(CONNECTION, by_label("job", "alice"), now=1.0) == {1, 3}
    register.leave(1, Outcome.ABORTED, now=2.0)
    assert told(register) == []
    register.leave(3, Outcome.ABORTED, now=3.0)
    assert told(register) == [
        (1, [CancelledRequest("a", Outcome.ABORTED, 1.0), CancelledRequest("c", Outcome.ABORTED, 2.0)])
    ]
    assert register.ask(CONNECTION, by_label("job", "carol"), now=4.0) == set()
    assert register.ask(CONNECTION, by_label("", "alice"), now=4.0) == set()


def test_two_askers_are_both_answered() -> None:
    register = Register()
    register.enter(1, Name("a", "", ""))
    assert register.ask(CONNECTION, by_id("a", sequence=1), now=1.0) == {1}
    assert register.ask(CONNECTION + 1, by_id("a", sequence=2), now=2.0) == {1}
    register.leave(1, Outcome.ABORTED, now=3.0)
    answer = [CancelledRequest("a", Outcome.ABORTED, 2.0)]
    assert told(register) == [(1, answer), (2, answer)]


def test_an_asker_that_is_gone_is_not_answered() -> None:
    register = Register()
    register.enter(1, Name("a", "", ""))
    register.ask(CONNECTION, by_id("a"), now=1.0)
    register.forget_asker(CONNECTION)
    register.leave(1, Outcome.ABORTED, now=3.0)
    assert told(register) == []


def test_memory_of_the_ended_is_bounded() -> None:
    register = Register()
    for number in range(REMEMBERED + 5):
        register.enter(number, Name(f"cmpl-{number}", "job", ""))
        register.leave(number, Outcome.OK, now=0.0)
    register.ask(CONNECTION, by_id("cmpl-4", "cmpl-5"), now=1.0)
    assert told(register) == [(1, [CancelledRequest("cmpl-5", Outcome.OK, 0.0)])]
    assert register.ask(CONNECTION, by_label("job"), now=1.0) == set()
