"""Who may have work in the engine, whose it is, and what becomes of it when its connection is lost."""

import queue
import random
import select
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from tenure.core.admission import GateLimits
from tenure.core.ledger import LedgerError
from tenure.core.request import Request
from tenure.engine.orders import Add, Cancel, Finish, ShowHolders
from tenure.engine.translation import PART_BYTES
from tenure.outcomes import FinishReason, Outcome
from tenure.pooling import Pooled
from tenure.sampling import TokenLogprobs
from tenure.wire import messages as wire
from tenure.wire.framing import PeerGone
from tests.engine.engine_servers import ROOMY, Board, Worker, admitted, board, output, submit
from tests.tasks import run
from tests.wire.samples import CARD


async def held(worker: Worker) -> tuple[int, int, int]:
    """Requests, items and tokens that have permits."""
    permits = (await worker.ledger()).permits
    return permits.requests.held, permits.items.held, permits.tokens.held


def test_admission_is_whole_and_exact_whoever_asks() -> None:
    """Two API processes ask at once for more than there is room for; what is admitted fills it to the last item."""

    async def scenario() -> None:
        async with board() as rig:
            rig.open(GateLimits(items=11, tokens=1000, capacity=100, vocabulary_size=32))
            workers = [await rig.connect_ready() for _ in range(2)]
            async with anyio.create_task_group() as group:
                for worker in workers:
                    group.start_soon(worker.say, *(submit(number, n=3) for number in range(10)))
            answers = [await worker.answers(10) for worker in workers]
            admitted = [sum(isinstance(answer, wire.Admitted) for answer in each) for each in answers]
            refused = [answer for each in answers for answer in each if isinstance(answer, wire.Refused)]
            assert sum(admitted) == 3
            assert {(answer.outcome, answer.code) for answer in refused} == {(Outcome.QUEUE_FULL, "queue_full")}
            assert all(answer.retry_after for answer in refused)
            assert await held(workers[0]) == (3, 9, 9)
            await workers[1].say(submit(20, n=2), submit(21))
            assert [type(answer) for answer in await workers[1].answers(2)] == [wire.Admitted, wire.Refused]
            assert await held(workers[0]) == (4, 11, 12)
            for order in rig.take_orders():
                assert isinstance(order, Add)
                rig.end(order.make())
            for worker, count in zip(workers, (admitted[0], admitted[1] + 1), strict=True):
                for _ in range(count):
                    await worker.hear(wire.Ended)
                assert await held(worker) == (0, 0, 0)

    run(scenario)


def test_a_request_is_measured_by_its_prompts_and_choices() -> None:
    """In all, not one by one; what could never fit is the caller's fault, and waiting would not help."""

    async def scenario() -> None:
        async with board() as rig:
            rig.open(GateLimits(items=8, tokens=20, capacity=10, vocabulary_size=32))
            worker = await rig.connect_ready()
            await worker.say(
                submit(1, [1] * 9, [1] * 9, n=2),
                submit(2, [1] * 3),
                submit(3, [1], [1, 2], n=2),
                submit(4, [1], n=9),
                submit(5, [1] * 10),
                submit(6, [32]),
                submit(7, []),
                submit(8, n=0),
                submit(9, *[[1] * 7] * 3),
            )
            answers = await worker.answers(9)
            assert isinstance(answers[0], wire.Admitted)
            refused = [answer for answer in answers if isinstance(answer, wire.Refused)]
            assert [answer.outcome for answer in refused] == [Outcome.QUEUE_FULL] * 2 + [Outcome.INVALID] * 6
            assert [answer.retry_after is None for answer in refused] == [False] * 2 + [True] * 6
            assert refused[3].code == "context_length_exceeded"
            assert await held(worker) == (1, 4, 18)

    run(scenario)


def test_a_connection_that_stalls_and_resumes_without_an_end_is_cut_off() -> None:
    """Before the loop's orders are full, so that what the others want, and the end of what it held, have room."""

    async def scenario() -> None:
        async with board() as rig:
            rig.orders = queue.Queue(100)
            rig.open()
            wild, other = [await rig.connect_ready() for _ in range(2)]
            await wild.say(submit(1, label="w"))
            await wild.hear(wire.Admitted)
            await wild.say(*[kind(request=1) for _ in range(100) for kind in (wire.Stall, wire.Resume)])
            with pytest.raises(PeerGone):
                await wild.hear(wire.Message)
            await other.say(submit(1, label="o"))
            assert await other.hear(wire.Admitted) == wire.Admitted(request=1)
            orders = rig.take_orders()
            assert orders.count(Cancel(rig.requests["w"].number, Outcome.WORKER_LOST)) == 1
            assert len(orders) < 60

    run(scenario)


def test_equal_numbers_of_two_connections_are_two_requests() -> None:
    async def scenario() -> None:
        async with board() as rig:
            rig.open()
            workers = [await rig.connect_ready() for _ in range(2)]
            for worker, label in zip(workers, "ab", strict=True):
                await worker.say(submit(1, label=label))
                assert await worker.hear(wire.Admitted) == wire.Admitted(request=1)
            rig.take_orders()
            a, b = rig.requests["a"], rig.requests["b"]
            rig.engine_server.deliver(5, [output(b, 0, 11), output(a, 0, 22)], [])
            assert await workers[0].hear(wire.StepOutput) == wire.StepOutput(
                step=5, outputs=[wire.ItemOutput(1, 0, [22])]
            )
            assert (await workers[1].hear(wire.StepOutput)).outputs[0].tokens == [11]
            await workers[1].say(wire.Cancel(request=1, outcome=Outcome.CLIENT_CANCELLED))
            assert await rig.wait_order() == Cancel(b.number, Outcome.CLIENT_CANCELLED)
            rig.end(b, Outcome.CLIENT_CANCELLED)
            rig.end(a, Outcome.ENGINE_ERROR, "broken")
            assert await workers[0].hear(wire.Ended) == wire.Ended(
                request=1, outcome=Outcome.ENGINE_ERROR, message="broken"
            )
            assert (await workers[1].hear(wire.Ended)).outcome is Outcome.CLIENT_CANCELLED
            # An ended request's number may be used again.
            await workers[1].say(submit(1, label="c"))
            await workers[1].hear(wire.Admitted)
            assert await held(workers[1]) == (1, 1, 3)

    run(scenario)


def test_everything_of_an_output_arrives() -> None:
    async def scenario() -> None:
        async with admitted(submit(1, n=2)) as (rig, worker):
            request = rig.requests["cmpl-1"]
            logprobs = TokenLogprobs.of(-0.5, 1, [4], [-0.5])
            full = msgspec.structs.replace(
                output(request, 1, 4, FinishReason.STOP),
                logprobs=[logprobs],
                stop_token=4,
                prompt_logprobs=[None, logprobs],
                cached_tokens=2,
            )
            empty = msgspec.structs.replace(output(request, 0, 0, FinishReason.LENGTH), tokens=[])
            rig.engine_server.deliver(5, [full, empty], [])
            assert (await worker.hear(wire.StepOutput)).outputs == [
                wire.ItemOutput(1, 1, [4], [logprobs], FinishReason.STOP, 4, [None, logprobs], 2),
                wire.ItemOutput(1, 0, [], None, FinishReason.LENGTH),
            ]

    run(scenario)


def test_an_output_of_many_bytes_comes_in_several_messages() -> None:
    async def scenario() -> None:
        async with board() as rig:
            rig.open()
            worker = await rig.connect_ready()
            await worker.say(submit(1))
            await worker.answers(1)
            rig.take_orders()
            rows = Pooled(400, bytes(range(250)) * 4 * 400)
            rig.engine_server.deliver(
                5, [msgspec.structs.replace(output(rig.requests["cmpl-1"], 0, 4), pooled=rows)], []
            )
            heard = b""
            while len(heard) < len(rows.data):
                outputs = (await worker.hear(wire.StepOutput)).outputs
                assert sum(item.size for item in outputs) < 2 * PART_BYTES
                heard += b"".join(item.pooled.data for item in outputs if item.pooled is not None)
            assert heard == rows.data

    run(scenario)


def test_what_the_loop_is_asked_to_compute() -> None:
    async def scenario() -> None:
        async with board() as rig:
            rig.open()
            worker = await rig.connect_ready()
            asked = msgspec.structs.replace(submit(1, [1, 2], [3], n=2, label="l"), priority=-3, cache_salt="s")
            await worker.say(asked)
            await worker.hear(wire.Admitted)
            rig.take_orders()
            request = rig.requests["l"]
            assert [item.prompt for item in request.items] == [[1, 2], [1, 2], [3], [3]]
            assert (request.spec.public_id, request.spec.label, request.spec.priority, request.spec.cache_salt) == (
                "cmpl-1",
                "l",
                -3,
                "s",
            )
            assert request.spec.sampling == asked.sampling

    run(scenario)


def test_submitting_twice_ends_the_connection_and_what_it_held() -> None:
    async def scenario() -> None:
        async with board() as rig:
            rig.open()
            other, worker = [await rig.connect_ready() for _ in range(2)]
            await worker.say(submit(1, label="first"))
            await worker.hear(wire.Admitted)
            await worker.say(submit(1, label="again"))
            await worker.wait_gone()
            add, cancel = rig.take_orders()
            assert isinstance(add, Add)
            assert cancel == Cancel(add.make().number, Outcome.WORKER_LOST)
            assert await held(other) == (1, 1, 3)
            rig.end(add.make(), Outcome.WORKER_LOST)
            assert await held(other) == (0, 0, 0)

    run(scenario)


@pytest.mark.parametrize("how", ["hangs up", "says garbage"])
def test_a_lost_connection_gives_back_its_permits_when_the_loop_has_let_go(how: str) -> None:
    """Not sooner: the requests still run. Their outputs go nowhere, and nobody else notices."""

    async def scenario() -> None:
        async with board() as rig:
            rig.open()
            other, worker = [await rig.connect_ready() for _ in range(2)]
            await other.say(submit(1, label="other"))
            await other.hear(wire.Admitted)
            await worker.say(*(submit(number, n=2) for number in range(3)))
            await worker.answers(3)
            await worker.say(wire.Cancel(request=1, outcome=Outcome.CLIENT_CANCELLED))
            await worker.ledger()
            rig.take_orders()
            requests = [rig.requests[f"cmpl-{number}"] for number in range(3)]
            if how == "hangs up":
                await worker.hang_up()
            else:
                await worker.say_raw(b"\0\0\0\1\xc1")
                await worker.wait_gone()
            while rig.orders.qsize() < 2:
                await anyio.lowlevel.checkpoint()
            expected = {Cancel(requests[number].number, Outcome.WORKER_LOST) for number in (0, 2)}
            assert set(rig.take_orders()) == expected  # the other one has been cancelled already
            assert await held(other) == (4, 7, 12)
            rig.engine_server.deliver(8, [output(requests[0], 0, 5), output(rig.requests["other"], 0, 6)], [])
            assert (await other.hear(wire.StepOutput)).outputs == [wire.ItemOutput(1, 0, [6])]
            for number, request in enumerate(requests):
                rig.end(request, Outcome.WORKER_LOST)
                assert await held(other) == (3 - number, 5 - 2 * number, 9 - 3 * number)
            ledger = await other.ledger()
            assert ledger.unmatched_messages == 0

    run(scenario)


def test_permits_come_back_once() -> None:
    async def scenario() -> None:
        async with admitted(submit(1)) as (rig, worker):
            request = rig.requests["cmpl-1"]
            rig.end(request)
            with pytest.raises((KeyError, LedgerError)):
                rig.end(request)
            await worker.hear(wire.Ended)
            assert await held(worker) == (0, 0, 0)

    run(scenario)


def test_words_about_unknown_requests_are_counted_and_leave_nothing() -> None:
    """A thousand cancels that come too early revive nothing and stop nothing (F10)."""

    async def scenario() -> None:
        async with board() as rig:
            rig.open()
            worker = await rig.connect_ready()
            cancels = [wire.Cancel(request=number, outcome=Outcome.CLIENT_CANCELLED) for number in range(1000)]
            await worker.say(*cancels, wire.FinishItem(request=1, index=0))
            ledger = await worker.ledger()
            assert ledger.unmatched_messages == 1001
            assert ledger.permits.requests.held == 0
            assert rig.take_orders() == []
            await worker.say(submit(5))
            assert (await worker.hear(wire.Admitted)).request == 5
            assert [type(order) for order in rig.take_orders()] == [Add]

    run(scenario)


def test_a_message_that_comes_twice_is_one_order() -> None:
    """So that no peer can fill the queue to the loop; nor with items that there are none of."""

    async def scenario() -> None:
        async with admitted(submit(1, n=2)) as (rig, worker):
            number = rig.requests["cmpl-1"].number
            finishes = [wire.FinishItem(request=1, index=index) for index in (0, 1, 0, 2, -1, 1)]
            cancels = [wire.Cancel(request=1, outcome=outcome) for outcome in (Outcome.ABORTED, Outcome.DEADLINE)]
            await worker.say(*finishes, *cancels, finishes[0])
            assert (await worker.ledger()).unmatched_messages == 6
            assert rig.take_orders() == [Finish(number, 0), Finish(number, 1), Cancel(number, Outcome.ABORTED)]

    run(scenario)


def test_a_cancel_that_comes_after_the_end() -> None:
    async def scenario() -> None:
        async with admitted(submit(1)) as (rig, worker):
            rig.end(rig.requests["cmpl-1"])
            await worker.say(wire.Cancel(request=1, outcome=Outcome.CLIENT_CANCELLED))
            assert (await worker.hear(wire.Ended)).outcome is Outcome.OK
            assert (await worker.ledger()).unmatched_messages == 1
            assert rig.take_orders() == []

    run(scenario)


def test_before_the_model_is_loaded_everything_is_refused() -> None:
    async def scenario() -> None:
        async with board() as rig:
            worker = await rig.connect()
            assert "loaded" in (await worker.hear(wire.Unready)).reason
            await worker.say(submit(1), wire.AskLedger(sequence=1), submit(2))
            for answer in await worker.answers(2):
                assert isinstance(answer, wire.Refused)
                assert (answer.outcome, answer.code) == (Outcome.UNAVAILABLE, "engine_unavailable")
            rig.open()
            assert await worker.hear(wire.Ready) == wire.Ready(card=CARD, epoch="epoch")
            await worker.say(submit(1))
            await worker.hear(wire.Admitted)
            assert await held(worker) == (1, 1, 3)

    run(scenario)


def test_a_question_before_the_first_snapshot_takes_no_readiness_back() -> None:
    """The card is out before the loop has published anything; a worker that was told otherwise would wait for ever."""

    async def scenario() -> None:
        async with board() as rig:
            rig.engine_server.start_serving(CARD, ROOMY, rig.orders)
            worker = await rig.connect_ready()
            await worker.say(wire.AskLedger(sequence=99), submit(1))
            await worker.hear(wire.Admitted)
            rig.publish()
            assert await held(worker) == (1, 1, 3)

    run(scenario)


def test_who_asks_for_holders_is_answered_when_the_loop_shows_them() -> None:
    """The loop is asked once for all who wait; a plain question is answered at once."""
    rows = [wire.HolderRow("item 1", "cmpl-1", "", "running", 1, 0.5)]

    async def scenario() -> None:
        async with board() as rig:
            early = await rig.connect()
            await early.hear(wire.Unready)
            await early.say(wire.AskLedger(sequence=1, holders=True), submit(1))
            await early.hear(wire.Refused)  # and no ledger: there is none yet
            rig.open()
            await early.hear(wire.Ready)
            workers = [await rig.connect_ready() for _ in range(3)]
            for worker in workers:
                await worker.say(wire.AskLedger(sequence=7, holders=True), wire.AskLedger(sequence=8))
                assert (await worker.hear(wire.LedgerReply)).sequence == 8
            assert rig.take_orders() == [ShowHolders()]
            await workers[2].hang_up()
            rig.show(rows)
            for worker in workers[:2]:
                reply = await worker.hear(wire.LedgerReply)
                assert (reply.sequence, reply.ledger.holders) == (7, rows)
            await workers[0].say(wire.AskLedger(sequence=9, holders=True))
            assert await rig.wait_order() == ShowHolders()
            assert (await early.ledger()).holders == []

    run(scenario)


@pytest.mark.parametrize("version", [0, wire.PROTOCOL_VERSION + 1, None])
def test_a_peer_that_speaks_another_version_is_not_served(version: int | None) -> None:
    """Nor one that does not introduce itself; not even when the model becomes ready."""

    async def scenario() -> None:
        async with board() as rig:
            worker = await rig.connect(version)
            if version is not None:
                assert str(wire.PROTOCOL_VERSION) in (await worker.hear(wire.Unready)).reason
            rig.open()
            await worker.say(submit(1))
            refused = await worker.hear(wire.Refused)
            assert refused.outcome is Outcome.UNAVAILABLE
            assert "version" in refused.message
            assert rig.take_orders() == []

    run(scenario)


class _WatchedOrders(queue.Queue[Any]):
    """Notes with each order whether the worker has its answer already."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.answered: list[bool] = []
        self._worker = worker

    def put_nowait(self, item: Any) -> None:
        readable, _, _ = select.select([self._worker.socket], [], [], 0)
        self.answered.append(bool(readable))
        super().put_nowait(item)


def test_whoever_asks_has_the_answer_before_the_loop_has_the_request() -> None:
    """From then on the loop may occupy all cores."""

    async def scenario() -> None:
        async with board() as rig:
            worker = await rig.connect()
            await worker.hear(wire.Unready)
            rig.orders = orders = _WatchedOrders(worker)
            rig.open()
            await worker.hear(wire.Ready)
            await worker.say(submit(1))
            add = await rig.wait_order()
            assert isinstance(add, Add)
            assert orders.answered == [True]
            await worker.hear(wire.Admitted)
            rig.end(add.make())
            await worker.hear(wire.Ended)

    run(scenario)


def test_a_worker_that_does_not_read_is_taken_for_dead() -> None:
    """Its requests are cancelled; the engine lives, and so do the others."""

    async def scenario() -> None:
        async with board(outbox_bytes=20_000) as rig:
            rig.open()
            other = await rig.connect_ready()
            deaf = await rig.connect(buffer_bytes=4096)
            await deaf.hear(wire.Ready)
            await deaf.say(submit(1, label="deaf"))
            add = await rig.wait_order()
            assert isinstance(add, Add)
            while rig.orders.empty():
                rig.engine_server.deliver(1, [output(add.make(), 0, 5)] * 50, [])
                await anyio.lowlevel.checkpoint()
            assert rig.take_orders() == [Cancel(add.make().number, Outcome.WORKER_LOST)]
            rig.end(add.make(), Outcome.WORKER_LOST)
            assert await held(other) == (0, 0, 0)

    run(scenario)


def test_a_worker_that_asks_and_does_not_read_is_taken_for_dead() -> None:
    """The answer that does not fit into its outbox ends its connection, not the engine."""

    async def scenario() -> None:
        async with board(outbox_bytes=20_000) as rig:
            rig.open()
            other = await rig.connect_ready()
            deaf = await rig.connect(buffer_bytes=4096)
            await deaf.hear(wire.Ready)
            async with anyio.create_task_group() as group:
                group.start_soon(_ask_on, deaf)
                while not _cancels(rig):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            for request in rig.requests.values():
                rig.end(request, Outcome.WORKER_LOST)
            assert await held(other) == (0, 0, 0)

    run(scenario)


async def _ask_on(worker: Worker) -> None:
    with suppress(PeerGone):
        for number in range(1000):
            await worker.say(submit(number), *[wire.AskLedger(sequence=number)] * 20)


def _cancels(rig: Board) -> list[object]:
    return [order for order in rig.take_orders() if isinstance(order, Cancel)]


def test_heartbeats_tell_how_much_is_open() -> None:
    async def scenario() -> None:
        async with board() as rig, anyio.create_task_group() as group:
            rig.open()
            worker = await rig.connect_ready()
            await worker.say(submit(1, [1, 2], [3, 4, 5], n=2))
            await worker.hear(wire.Admitted)
            group.start_soon(rig.engine_server.heartbeat)
            assert await worker.hear(wire.Heartbeat) == wire.Heartbeat(outstanding_tokens=5)
            group.cancel_scope.cancel()

    run(scenario)


def test_heartbeats_of_an_engine_that_loads_or_idles() -> None:
    """They go to everyone, ready or not, again and again."""

    async def scenario() -> None:
        async with board() as rig, anyio.create_task_group() as group:
            worker = await rig.connect()
            await worker.hear(wire.Unready)
            group.start_soon(rig.engine_server.heartbeat)
            began = anyio.current_time()
            assert await worker.hear(wire.Heartbeat) == wire.Heartbeat()
            assert await worker.hear(wire.Heartbeat) == wire.Heartbeat()
            assert 0.9 < anyio.current_time() - began < 3
            group.cancel_scope.cancel()

    run(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_left_after_a_storm(seed: int) -> None:
    """Requests, cancels, finishes, duplicates, strangers' numbers and lost connections in any order."""
    dice = random.Random(seed)

    async def scenario() -> None:
        async with board() as rig:
            rig.open(GateLimits(items=40, tokens=200, capacity=100, vocabulary_size=32))
            watcher = await rig.connect_ready()
            workers = [await rig.connect_ready() for _ in range(3)]
            running: list[Request] = []
            for _ in range(300):
                position = dice.randrange(3)
                if dice.random() < 0.02:
                    await workers[position].hang_up()
                    workers[position] = await rig.connect_ready()
                number = dice.randrange(1, 10**6)
                await workers[position].say(
                    dice.choice(
                        (
                            submit(number, [1] * dice.randint(1, 20), n=dice.randint(1, 5)),
                            wire.Cancel(request=dice.randrange(9), outcome=Outcome.CLIENT_CANCELLED),
                            wire.FinishItem(request=dice.randrange(9), index=0),
                        )
                    )
                )
                await anyio.lowlevel.checkpoint()
                running += [order.make() for order in rig.take_orders() if isinstance(order, Add)]
                if running and dice.random() < 0.4:
                    request = running.pop(dice.randrange(len(running)))
                    rig.engine_server.deliver(1, [output(request, 0, 3)], [])
                    rig.end(request, dice.choice(list(Outcome)))
                rig.engine_server._gate.audit()  # type: ignore[union-attr]
            for worker in workers:
                await worker.hang_up()
            await watcher.ledger()
            running += [order.make() for order in rig.take_orders() if isinstance(order, Add)]
            for request in running:
                rig.end(request, Outcome.WORKER_LOST)
            assert await held(watcher) == (0, 0, 0)

    run(scenario)
