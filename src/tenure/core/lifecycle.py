"""The life of an item as one table: state x event -> state.

An item is one sequence of a request (one of `n`, one prompt of a list). `step` looks the transition up before
anything else changes; an event that the table does not know in a state raises `IllegalTransition` and leaves all
as it was. The scheduler is the only caller that changes an item's state, and does so through this table alone.

An item exists from `admitted` on. `received` and `refused` show what comes before, the gate's answer to its request;
nothing is ever in them. `awaiting_prefill` and `fetching_kv` are for items whose prompt another engine computes.

How each state is left, so that none can last for ever:

- `admitted`: the scheduler takes it in at its next `receive`, or, for the further choices of a prompt, when the
  first choice has computed that prompt.
- `awaiting_prefill`: the other engine has computed the prompt and there is room for its blocks, or its claim ends.
- `waiting`, `preempted`: the oldest item that runs is never evicted and always advances, so slots and blocks come back.
- `fetching_kv`: the blocks were read and confirmed, or the claim ends otherwise, by its deadline at the latest.
- `running`: every step advances the items in it; their tokens are bounded.
- `stalled`: the reader comes back, what the item has is needed by one that can run, or the time that the request may
  be stalled is over.

An abort (client gone, deadline, lost connection, operator, sibling failed) is an event like any other, and is legal
in every state that is not final.
"""

from enum import StrEnum

from tenure.errors import InternalError


class State(StrEnum):
    RECEIVED = "received"
    REFUSED = "refused"
    ADMITTED = "admitted"
    AWAITING_PREFILL = "awaiting_prefill"
    WAITING = "waiting"
    FETCHING_KV = "fetching_kv"
    RUNNING = "running"
    PREEMPTED = "preempted"
    STALLED = "stalled"
    ENDED = "ended"


class Event(StrEnum):
    REFUSE = "refuse"
    ADMIT = "admit"
    AWAIT_PREFILL = "await_prefill"
    ENQUEUE = "enqueue"
    FETCH = "fetch"
    FETCHED = "fetched"
    FETCH_FAILED = "fetch_failed"
    START = "start"
    PREEMPT = "preempt"
    STALL = "stall"
    RESUME = "resume"
    FINISH = "finish"
    ABORT = "abort"


FINAL = frozenset({State.REFUSED, State.ENDED})

TRANSITIONS: dict[State, dict[Event, State]] = {
    State.RECEIVED: {Event.REFUSE: State.REFUSED, Event.ADMIT: State.ADMITTED, Event.ABORT: State.ENDED},
    State.ADMITTED: {
        Event.ENQUEUE: State.WAITING,
        Event.AWAIT_PREFILL: State.AWAITING_PREFILL,
        Event.ABORT: State.ENDED,
    },
    State.AWAITING_PREFILL: {Event.ENQUEUE: State.WAITING, Event.FETCH: State.FETCHING_KV, Event.ABORT: State.ENDED},
    State.WAITING: {Event.START: State.RUNNING, Event.ABORT: State.ENDED},
    State.FETCHING_KV: {Event.FETCHED: State.WAITING, Event.FETCH_FAILED: State.WAITING, Event.ABORT: State.ENDED},
    State.RUNNING: {
        Event.PREEMPT: State.PREEMPTED,
        Event.STALL: State.STALLED,
        Event.FINISH: State.ENDED,
        Event.ABORT: State.ENDED,
    },
    State.PREEMPTED: {Event.START: State.RUNNING, Event.FINISH: State.ENDED, Event.ABORT: State.ENDED},
    State.STALLED: {
        Event.RESUME: State.RUNNING,
        Event.PREEMPT: State.PREEMPTED,
        Event.FINISH: State.ENDED,
        Event.ABORT: State.ENDED,
    },
    State.REFUSED: {},
    State.ENDED: {},
}


class IllegalTransition(InternalError):
    """An event that has no meaning in this state."""


def step(state: State, event: Event) -> State:
    """The state that follows; raises `IllegalTransition` when the table has none."""
    following = TRANSITIONS[state].get(event)
    if following is None:
        raise IllegalTransition(f"{event} is not possible when {state}")
    return following
