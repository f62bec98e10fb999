import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core.admission import Gate, GateLimits, Permit
from tenure.core.ledger import LedgerError
from tenure.errors import Refusal
from tenure.outcomes import Outcome
from tenure.token_lists import TokenLists

LIMITS = GateLimits(items=4, tokens=20, capacity=12, vocabulary_size=100)


@pytest.fixture
def gate() -> Gate:
    return Gate(LIMITS)


def held(gate: Gate) -> tuple[int, int, int]:
    gate.audit()
    snapshot = gate.snapshot()
    return snapshot.requests, snapshot.items, snapshot.tokens


def admit(gate: Gate, prompts: list[list[int]], n: int = 1) -> Permit:
    answer = gate.ask(TokenLists.of(prompts), n)
    assert isinstance(answer, Permit)
    return answer


def refuse(gate: Gate, prompts: list[list[int]], n: int = 1) -> Refusal:
    """The answer is no, and nothing is held for it."""
    before = held(gate)
    answer = gate.ask(TokenLists.of(prompts), n)
    assert isinstance(answer, Refusal)
    assert held(gate) == before
    return answer


def test_a_request_holds_one_permit_per_item_and_prompt_token_until_it_is_released(gate: Gate) -> None:
    permit = admit(gate, [[1, 2, 3], [4, 5]], n=2)
    assert held(gate) == (1, 4, 5)
    gate.release(permit)
    assert held(gate) == (0, 0, 0)


def test_a_second_release_raises_and_changes_nothing(gate: Gate) -> None:
    first, second = admit(gate, [[1, 2]]), admit(gate, [[3]])
    gate.release(first)
    with pytest.raises(LedgerError, match="is not held"):
        gate.release(first)
    assert held(gate) == (1, 1, 1)
    gate.release(second)


def test_a_permit_of_another_gate_releases_nothing(gate: Gate) -> None:
    admit(gate, [[1]])
    stranger = admit(Gate(LIMITS), [[1]])
    with pytest.raises(LedgerError, match="is not held"):
        gate.release(stranger)
    assert held(gate) == (1, 1, 1)


def test_all_items_get_in_or_none_does(gate: Gate) -> None:
    permit = admit(gate, [[1]])
    refusal = refuse(gate, [[1]], n=4)
    assert (refusal.outcome, refusal.code) == (Outcome.QUEUE_FULL, "queue_full")
    gate.release(permit)
    admit(gate, [[1]], n=4)


def test_prompt_tokens_are_limited_like_items(gate: Gate) -> None:
    admit(gate, [[1] * 11])
    assert refuse(gate, [[1] * 10]).outcome is Outcome.QUEUE_FULL
    admit(gate, [[1] * 9])
    assert held(gate) == (2, 2, 20)


@pytest.mark.parametrize(
    ("prompts", "n", "code", "says"),
    [
        ([], 1, "invalid_request", "at least one prompt"),
        ([[1]], 0, "invalid_request", "at least one prompt"),
        ([[1], []], 1, "invalid_request", "prompt 1 is empty"),
        ([[1, -1]], 1, "invalid_request", "outside the vocabulary"),
        ([[1, 100]], 1, "invalid_request", "outside the vocabulary"),
        ([[1] * 12], 1, "context_length_exceeded", "at most 11 fit"),
        ([[1]], 5, "invalid_request", "5 items; this server takes at most 4"),
        ([[1] * 11, [1] * 10], 1, "invalid_request", "21 prompt tokens; this server takes at most 20"),
    ],
)
def test_what_could_never_be_admitted_is_the_callers_fault(
    gate: Gate, prompts: list[list[int]], n: int, code: str, says: str
) -> None:
    for _ in range(2):  # the same answer whether or not there is room
        refusal = refuse(gate, prompts, n)
        assert (refusal.outcome, refusal.code) == (Outcome.INVALID, code)
        assert says in refusal.message
        if not gate.snapshot().items:
            admit(gate, [[1]], n=4)


def test_an_audit_finds_a_permit_that_was_tampered_with(gate: Gate) -> None:
    permit = admit(gate, [[1, 2]])
    permit.tokens = 1
    with pytest.raises(LedgerError, match="differs from its permits"):
        gate.audit()


@settings(deadline=None, database=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 13), st.integers(1, 5)) | st.integers(0, 5), max_size=40))
def test_any_order_of_asking_and_releasing_ends_at_zero(steps: list[tuple[int, int] | int]) -> None:
    gate, permits = Gate(LIMITS), []
    for step in steps:
        if isinstance(step, tuple):
            answer = gate.ask(TokenLists.of([[1] * step[0]]), step[1])
            permits += [answer] if isinstance(answer, Permit) else []
        elif step < len(permits):
            gate.release(permits.pop(step))
        assert held(gate) == (len(permits), sum(p.items for p in permits), sum(p.tokens for p in permits))
    for permit in permits:
        gate.release(permit)
    assert held(gate) == (0, 0, 0)


def test_what_is_read_and_not_continued_may_fill_the_window(gate: Gate) -> None:
    text = [1] * LIMITS.capacity
    assert refuse(gate, [text]).code == "context_length_exceeded"
    assert isinstance(gate.ask(TokenLists.of([text]), 1, pooled=True), Permit)
    assert isinstance(Gate(LIMITS).ask(TokenLists.of([[1] * (LIMITS.capacity + 1)]), 1, pooled=True), Refusal)


def full_gate(items: int, tokens: int) -> Gate:
    """One that has just been filled."""
    gate = Gate(GateLimits(items=items, tokens=tokens, capacity=1000, vocabulary_size=10))
    gate.ask(TokenLists.of([[1] * (tokens // items)] * items), 1)
    return gate


def retry_after(gate: Gate, prompts: list[list[int]], now: float) -> float:
    answer = gate.ask(TokenLists.of(prompts), 1, now=now)
    assert isinstance(answer, Refusal)
    assert (answer.outcome, answer.code) == (Outcome.QUEUE_FULL, "queue_full")
    assert answer.retry_after is not None
    return answer.retry_after


def test_retry_after_follows_the_rate_at_which_work_is_done() -> None:
    """A hundred tokens a second for a while: 300 that are missing take about 3 s; at half the speed twice as long."""
    waits = []
    for pause in (1.0, 2.0):
        gate, now = Gate(GateLimits(items=1000, tokens=1000, capacity=1000, vocabulary_size=10)), 0.0
        for _ in range(100):
            permit = gate.ask(TokenLists.of([[1] * 100]), 1, now=now)
            assert isinstance(permit, Permit)
            now += pause
            gate.release(permit, now)
        gate.ask(TokenLists.of([[1] * 900]), 1, now=now)
        waits.append(retry_after(gate, [[1] * 400], now))
    assert waits[0] == pytest.approx(3.0, rel=0.1)
    assert waits[1] == pytest.approx(6.0, rel=0.15)


def test_retry_after_is_bounded_both_ways() -> None:
    assert retry_after(full_gate(10, 100), [[1]], now=5.0) == 60.0, "nothing was ever done"
    quick = Gate(GateLimits(items=2, tokens=1000, capacity=1000, vocabulary_size=10))
    for _ in range(1000):
        permit = quick.ask(TokenLists.of([[1]]), 1, now=1.0)
        assert isinstance(permit, Permit)
        quick.release(permit, 1.0)
    quick.ask(TokenLists.of([[1], [1]]), 1, now=1.0)
    assert retry_after(quick, [[1]], now=1.0) == 1.0


def test_a_refusal_that_waiting_does_not_help_says_nothing_of_waiting(gate: Gate) -> None:
    assert refuse(gate, [[1]] * 5).retry_after is None
