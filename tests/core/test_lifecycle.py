from pathlib import Path

import pytest

from tenure.core.lifecycle import FINAL, TRANSITIONS, Event, IllegalTransition, State, step
from tests.core.scripts import text
from tests.core.simulation import Ask

DOCUMENT = Path(__file__).parents[2] / "docs" / "lifecycle.md"
EVERY_PAIR = [(state, event) for state in State for event in Event]


@pytest.mark.parametrize(("state", "event"), EVERY_PAIR)
def test_an_event_that_the_table_does_not_know_raises_and_changes_nothing(state: State, event: Event) -> None:
    item = Ask((text(3),)).request(1).items[0]
    item.state = state
    before = {name: getattr(item, name) for name in item.__slots__}
    if event in TRANSITIONS[state]:
        item.apply(event)
        assert item.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(IllegalTransition, match=f"{event} is not possible when {state}"):
            item.apply(event)
        assert {name: getattr(item, name) for name in item.__slots__} == before


def test_the_table_has_a_row_for_every_state() -> None:
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize("state", [state for state in State if state not in FINAL])
def test_an_abort_ends_every_state_that_is_not_final(state: State) -> None:
    assert step(state, Event.ABORT) is State.ENDED


@pytest.mark.parametrize("state", FINAL)
def test_nothing_follows_a_final_state(state: State) -> None:
    assert TRANSITIONS[state] == {}


def test_every_state_is_reachable() -> None:
    reached = {State.RECEIVED}
    for _ in State:
        reached |= {following for state in reached for following in TRANSITIONS[state].values()}
    assert reached == set(State)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.RECEIVED}"]
    lines += [
        f"    {state} --> {following}: {event}"
        for state, events in TRANSITIONS.items()
        for event, following in events.items()
    ]
    lines += [f"    {state} --> [*]" for state in State if state in FINAL]
    return "\n".join(lines) + "\n"


def test_the_documented_diagram_is_that_of_the_table() -> None:
    """After a change of the table: replace the diagram in the document by what `diagram()` returns."""
    assert f"```mermaid\n{diagram()}```\n" in DOCUMENT.read_text(encoding="utf-8")
