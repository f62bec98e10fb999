"""Requests by name: whoever asks for an end is told of it when it has come, and told the same again later."""

from tenure.engine.register import PATIENCE, Name, Register
from tenure.outcomes import Outcome
from tenure.process.ended import REMEMBERED
from tenure.wire.messages import CancelByName, CancelledRequest

CONNECTION = 5


def by_id(*ids: str, sequence: int = 1) -> CancelByName:
    return CancelByName(sequence=sequence, ids=list(ids))


def by_label(label: str, owner: str = "", sequence: int = 1) -> CancelByName:
    return CancelByName(sequence=sequence, ids=[], labels=[label], owner=owner)


def told(register: Register) -> list[tuple[int, list[CancelledRequest]]]:
    return [(question.message.sequence, list(requests)) for question, requests in register.answers()]


def ask(register: Register, message: CancelByName, now: float, *processes: int, asker: int = CONNECTION) -> set[int]:
    """The numbers of the requests that are to be ended."""
    return register.ask(asker, message, processes, now)[1]


def test_the_answer_comes_when_the_request_has_left_and_says_how_long_it_took() -> None:
    register = Register()
    register.enter(1, Name("cmpl-1", "", ""))
    assert ask(register, by_id("cmpl-1"), 10.0) == {1}
    assert told(register) == []
    register.leave(1, Outcome.ABORTED, now=10.25)
    assert told(register) == [(1, [CancelledRequest("cmpl-1", Outcome.ABORTED, 0.25)])]
    assert told(register) == []


def test_a_repeat_gets_the_same_answer() -> None:
    register = Register()
    register.enter(1, Name("cmpl-1", "", ""))
    ask(register, by_id("cmpl-1"), 1.0)
    register.leave(1, Outcome.ABORTED, now=2.0)
    [(_, first)] = told(register)
    assert ask(register, by_id("cmpl-1", sequence=2), 99.0) == set()
    assert told(register) == [(2, first)]


def test_a_request_that_ended_of_itself_says_how_and_took_no_time() -> None:
    register = Register()
    register.enter(1, Name("cmpl-1", "", ""))
    register.leave(1, Outcome.OK, now=2.0)
    ask(register, by_id("cmpl-1"), 3.0)
    assert told(register) == [(1, [CancelledRequest("cmpl-1", Outcome.OK, 0.0)])]


def test_an_outcome_is_what_the_api_process_says_and_the_time_what_the_engine_has_measured() -> None:
    """Of the last one the engine knows nothing: another had it, or its own predecessor."""
    register = Register()
    for number in (1, 2):
        register.enter(number, Name(f"cmpl-{number}", "", ""))
    register.leave(1, Outcome.OK, now=2.0)
    question, chosen = register.ask(CONNECTION, by_id("cmpl-1", "cmpl-2", "cmpl-3"), [CONNECTION], 3.0)
    assert chosen == {2}
    said = [CancelledRequest(f"cmpl-{number}", Outcome.ABORTED, 0.0) for number in (1, 2, 3)]
    assert register.hear(CONNECTION, question, said, 3.0) == set()
    register.leave(2, Outcome.OK, now=3.5)
    expected = [
        CancelledRequest("cmpl-1", Outcome.ABORTED, 0.0),
        CancelledRequest("cmpl-2", Outcome.ABORTED, 0.5),
        CancelledRequest("cmpl-3", Outcome.ABORTED, 0.0, heard=True),
    ]
    assert told(register) == [(1, expected)]


def test_ids_match_exactly() -> None:
    register = Register()
    register.enter(1, Name("cmpl-1", "", ""))
    assert ask(register, by_id("cmpl-", "CMPL-1", "cmpl-11", ""), 1.0) == set()
    assert told(register) == [(1, [])]


def test_a_label_ends_all_that_carry_it_under_the_same_owner_and_none_under_another() -> None:
    register = Register()
    register.enter(1, Name("a", "job", "alice"))
    register.enter(2, Name("b", "job", "bob"))
    register.enter(3, Name("c", "job", "alice"))
    register.enter(4, Name("d", "", "alice"))
    assert ask(register, by_label("job", "alice"), 1.0) == {1, 3}
    register.leave(1, Outcome.ABORTED, now=2.0)
    assert told(register) == []
    register.leave(3, Outcome.ABORTED, now=3.0)
    assert told(register) == [
        (1, [CancelledRequest("a", Outcome.ABORTED, 1.0), CancelledRequest("c", Outcome.ABORTED, 2.0)])
    ]
    assert ask(register, by_label("job", "carol"), 4.0) == set()
    assert ask(register, by_label("", "alice"), 4.0) == set()


def test_two_askers_are_both_answered() -> None:
    register = Register()
    register.enter(1, Name("a", "", ""))
    assert ask(register, by_id("a", sequence=1), 1.0) == {1}
    assert ask(register, by_id("a", sequence=2), 2.0, asker=CONNECTION + 1) == {1}
    register.leave(1, Outcome.ABORTED, now=3.0)
    answer = [CancelledRequest("a", Outcome.ABORTED, 2.0)]
    assert told(register) == [(1, answer), (2, answer)]


def test_an_asker_that_is_gone_is_not_answered() -> None:
    register = Register()
    register.enter(1, Name("a", "", ""))
    ask(register, by_id("a"), 1.0)
    register.forget(CONNECTION)
    register.leave(1, Outcome.ABORTED, now=3.0)
    assert told(register) == []


def test_memory_of_the_ended_is_bounded() -> None:
    register = Register()
    for number in range(REMEMBERED + 5):
        register.enter(number, Name(f"cmpl-{number}", "job", ""))
        register.leave(number, Outcome.OK, now=0.0)
    ask(register, by_id("cmpl-4", "cmpl-5"), 1.0)
    assert told(register) == [(1, [CancelledRequest("cmpl-5", Outcome.OK, 0.0)])]
    assert ask(register, by_label("job"), 1.0) == set()


def test_every_process_is_heard_before_the_answer() -> None:
    """What it has ended itself is told with the rest, and what it had submitted before is ended as well."""
    register = Register()
    number, chosen = register.ask(CONNECTION, by_label("job", "alice"), [1, 2], now=1.0)
    assert chosen == set()
    register.enter(7, Name("late", "job", "alice"))
    register.enter(8, Name("other", "job", "bob"))
    assert register.hear(1, number, [CancelledRequest("early", Outcome.ABORTED, 0.0)], now=1.5) == {7}
    assert told(register) == []
    assert register.hear(2, number, [], now=1.5) == set()
    assert told(register) == [], "the late one has not ended"
    register.leave(7, Outcome.ABORTED, now=2.0)
    early = CancelledRequest("early", Outcome.ABORTED, 0.0, heard=True)
    late = CancelledRequest("late", Outcome.ABORTED, 0.5)
    assert told(register) == [(1, [early, late])]
    assert ask(register, by_id("early"), 9.0) == set()
    assert told(register) == [(1, [early])], "remembered like all others"


def test_a_process_that_is_gone_or_does_not_answer_is_not_waited_for() -> None:
    register = Register()
    ask(register, by_id("a"), 1.0, 1, 2)
    register.forget(1)
    assert told(register) == []
    register.give_up(1.0 + PATIENCE)
    assert told(register) == []
    register.give_up(1.1 + PATIENCE)
    assert told(register) == [(1, [])]
    assert register.hear(2, 1, [], now=9.0) == set(), "too late to matter"
