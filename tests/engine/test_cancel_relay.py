"""Cancels by name: who is asked, who answers for an API process that is gone, and when the asker is told."""

import msgspec

from tenure.engine.cancel_relay import CancelRelay
from tenure.outcomes import Outcome
from tenure.process.ended_requests import REMEMBERED
from tenure.wire import messages as wire
from tenure.wire.messages import CancelByName, CancelledByName, CancelledRequest
from tests.engine.engine_servers import Board, Worker, board, process_name, public_id, submit
from tests.tasks import run


async def crew(rig: Board, count: int) -> list[Worker]:
    rig.open()
    return [await rig.connect_ready() for _ in range(count)]


def by_id(*ids: str, sequence: int = 1) -> CancelByName:
    return CancelByName(sequence=sequence, ids=list(ids))


def aborted(request_id: str) -> CancelledRequest:
    return CancelledRequest(request_id, Outcome.ABORTED, 0.25)


async def passed_on(worker: Worker, *requests: CancelledRequest) -> CancelByName:
    """What an API process is asked, which answers that these have ended."""
    asked = await worker.hear(CancelByName)
    await worker.say(CancelledByName(sequence=asked.sequence, requests=list(requests)))
    return asked


def test_one_api_process_is_asked_for_an_id() -> None:
    """The one that has made it; the others hear nothing of it. Its answer is the answer."""

    async def scenario() -> None:
        async with board() as rig:
            first, second, third = await crew(rig, 3)
            ids = [public_id(2, 7), public_id(2, 8)]
            await first.say(by_id(*ids, sequence=5))
            asked = await passed_on(second, aborted(ids[1]))
            assert (asked.ids, asked.labels) == (ids, [])
            assert await first.hear(CancelledByName) == CancelledByName(sequence=5, requests=[aborted(ids[1])])
            await third.ledger()  # and nothing before it
            assert rig.take_orders() == [], "it is for the API process to end them"

    run(scenario)


def test_ids_of_several_and_of_nobody() -> None:
    """Those of an API process that is not there are named in the answer: another engine may know more of them."""

    async def scenario() -> None:
        async with board() as rig:
            first, second, third = await crew(rig, 3)
            ids = [public_id(3, 1), public_id(2, 1), public_id(9, 1), "cmpl-forged", ""]
            await first.say(by_id(*ids))
            assert (await passed_on(third, aborted(ids[0]))).ids == [ids[0]]
            assert (await passed_on(second, aborted(ids[1]))).ids == [ids[1]]
            answer = await first.hear(CancelledByName)
            assert sorted(request.id for request in answer.requests) == sorted(ids[:2])
            assert answer.unreached == ids[2:]

    run(scenario)


def test_labels_are_for_all_others() -> None:
    async def scenario() -> None:
        async with board() as rig:
            first, *others = await crew(rig, 3)
            await first.say(CancelByName(sequence=1, ids=[], labels=["job"], owner="alice"))
            for number, worker in enumerate(others):
                asked = await passed_on(worker, aborted(f"cmpl-{number}"))
                assert (asked.ids, asked.labels, asked.owner) == ([], ["job"], "alice")
            answer = await first.hear(CancelledByName)
            assert {request.id for request in answer.requests} == {"cmpl-0", "cmpl-1"}
            assert answer.unreached == []

    run(scenario)


def test_of_an_api_process_that_is_gone_the_engine_knows_how_its_requests_have_ended() -> None:
    """Those that end because of that are waited for."""

    async def scenario() -> None:
        async with board() as rig:
            first, second = await crew(rig, 2)
            ids = [public_id(2, number) for number in (1, 2)]
            await second.say(*(msgspec.structs.replace(submit(n), public_id=ids[n - 1]) for n in (1, 2)))
            await second.answers(2)
            assert len(rig.take_orders()) == 2
            over, under_way = rig.requests[ids[0]], rig.requests[ids[1]]
            rig.end(over, Outcome.OK)
            await second.hang_up()
            await rig.wait_order()
            await first.say(by_id(*ids))
            await first.ledger()  # and no answer before it
            rig.end(under_way, Outcome.WORKER_LOST)
            outcomes = [CancelledRequest(ids[0], Outcome.OK, 0.0), CancelledRequest(ids[1], Outcome.WORKER_LOST, 0.0)]
            assert await first.hear(CancelledByName) == CancelledByName(sequence=1, requests=outcomes, unreached=ids)

    run(scenario)


def test_an_api_process_that_dies_before_it_answers() -> None:
    async def scenario() -> None:
        async with board() as rig:
            first, second, third = await crew(rig, 3)
            ids = [public_id(2, 1), public_id(3, 1)]
            await first.say(by_id(*ids))
            await second.hear(CancelByName)
            await second.hang_up()
            await passed_on(third, aborted(ids[1]))
            answer = await first.hear(CancelledByName)
            assert answer == CancelledByName(sequence=1, requests=[aborted(ids[1])], unreached=ids[:1])

    run(scenario)


def test_an_asker_that_is_gone_and_answers_that_nobody_waits_for() -> None:
    async def scenario() -> None:
        async with board() as rig:
            first, second, third = await crew(rig, 3)
            await first.say(by_id(public_id(2, 1)))
            asked = await second.hear(CancelByName)
            await third.say(CancelledByName(sequence=asked.sequence, requests=[aborted("cmpl-forged")]))
            await third.ledger()
            await first.hang_up()
            answer = CancelledByName(sequence=asked.sequence, requests=[])
            await second.say(answer, answer, CancelledByName(sequence=99, requests=[]))
            await second.ledger()

    run(scenario)


def test_two_askers_are_both_answered() -> None:
    async def scenario() -> None:
        async with board() as rig:
            first, second, third = await crew(rig, 3)
            request_id = public_id(3, 1)
            for worker in (first, second):
                await worker.say(by_id(request_id, sequence=8))
            questions = [await third.hear(CancelByName) for _ in range(2)]
            for asked in reversed(questions):
                await third.say(CancelledByName(sequence=asked.sequence, requests=[aborted(request_id)]))
            for worker in (first, second):
                assert await worker.hear(CancelledByName) == CancelledByName(sequence=8, requests=[aborted(request_id)])

    run(scenario)


def test_memory_of_the_ended_is_bounded() -> None:
    relay = CancelRelay()
    for number in range(REMEMBERED + 5):
        relay.end(f"cmpl-{number}", Outcome.OK)
    assert relay.ask(1, 7, by_id("cmpl-4", "cmpl-5"), {process_name(1): 8}) == {}
    [(asker, answer)] = relay.answers()
    assert (asker, answer.requests) == (7, [CancelledRequest("cmpl-5", Outcome.OK, 0.0)])
    assert list(relay.answers()) == []


def test_a_worker_of_another_version_is_not_asked() -> None:
    async def scenario() -> None:
        async with board() as rig:
            [first] = await crew(rig, 1)
            other = await rig.connect(version=999)
            await other.hear(wire.Unready)
            await first.say(by_id(public_id(2, 1)))
            assert (await first.hear(CancelledByName)).unreached == [public_id(2, 1)]

    run(scenario)
