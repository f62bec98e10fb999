import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core.request import Item
from tenure.core.waiting import WaitingQueue
from tests.core.simulation import Ask


def make(arrival: int, priority: int = 0) -> Item:
    request = Ask(((1,),), priority=priority).request(arrival)
    request.arrival = arrival
    return request.items[0]


def test_the_oldest_of_the_smallest_priority_is_the_head() -> None:
    queue = WaitingQueue()
    last, first, second = make(1, 1), make(2, -1), make(3)
    for item in (last, first, second):
        queue.push(item)
    for expected in (first, second, last):
        assert queue.head() is expected
        queue.remove(expected)
    assert queue.head() is None


def test_taking_out_what_is_not_there_raises() -> None:
    queue = WaitingQueue()
    item = make(1)
    with pytest.raises(KeyError):
        queue.remove(item)
    queue.push(item)
    queue.remove(item)
    with pytest.raises(KeyError):
        queue.remove(item)
    assert (len(queue), item in queue) == (0, False)


def test_an_item_can_come_back() -> None:
    queue = WaitingQueue()
    old, young = make(1), make(2)
    queue.push(old)
    queue.push(young)
    queue.remove(old)
    assert queue.head() is young
    queue.push(old)
    assert queue.head() is old
    queue.remove(old)
    assert queue.head() is young


STEPS = st.lists(
    st.tuples(st.integers(0, 99), st.sampled_from(["push", "push", "remove", "stall", "resume"])), max_size=300
)


@settings(deadline=None, database=None, derandomize=True, max_examples=100)
@given(STEPS)
def test_it_behaves_like_a_sorted_list(steps: list[tuple[int, str]]) -> None:
    """A hundred items of twenty requests; what is stalled is in it, but not its head."""
    requests = [Ask(((1,),) * 5, priority=number % 3).request(number) for number in range(20)]
    for number, request in enumerate(requests):
        request.arrival = number
        for item in request.items:
            item.virtual_start = 3 * item.index
    queue, items = WaitingQueue(), [item for request in requests for item in request.items]
    model: set[Item] = set()
    for number, act in steps:
        item, request = items[number], items[number].request
        if act == "push" and item not in model:
            queue.push(item)
            model.add(item)
        elif act == "remove" and item in model:
            queue.remove(item)
            model.remove(item)
        elif act == "stall":
            request.stalled = True
        elif act == "resume" and request.stalled:
            request.stalled = False
            queue.offer(request)
        assert len(queue) == len(model)
        assert (item in queue) == (item in model)
        ready = [candidate for candidate in model if not candidate.request.stalled]
        assert queue.head() is min(ready, key=lambda candidate: candidate.age, default=None)
