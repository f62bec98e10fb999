"""A request is open for as long as its scope lasts; whatever the way out, the engine holds nothing of it afterwards."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import msgspec
import pytest

from tenure.client import EndOfGeneration, EngineClient, GenerationFailed, GenerationHandle
from tenure.client.generation import OUTPUT_BYTES, STALL_ABOVE
from tenure.core.admission import Gate, GateLimits
from tenure.errors import EndingError, Refusal
from tenure.outcomes import Outcome
from tenure.pooling import Pooled, PoolingParams, PoolingTask
from tenure.sampling import TokenLogprobs
from tenure.token_lists import TokenLists
from tenure.wire import messages as wire
from tests.client.engines import SUBMIT, Bench, Conversation, ObedientEngine, bench, output
from tests.tasks import Interrupted, run
from tests.wire.samples import CARD

FITTING = STALL_ABOVE // OUTPUT_BYTES
"""How many outputs may wait."""


class Handler:
    """A task that has a request open, as the API's handlers do."""

    def __init__(self, client: EngineClient) -> None:
        self.scope = anyio.CancelScope()
        self.admitted = anyio.Event()
        self.leave = anyio.Event()
        self.handle: GenerationHandle
        self.refusal: Refusal | None = None
        self.failed_by: Exception | None = None
        self.left = anyio.Event()
        self._client = client

    async def run(self) -> None:
        with self.scope:
            try:
                async with self._client.open(SUBMIT) as self.handle:
                    self.admitted.set()
                    await self.leave.wait()
                    if self.failed_by is not None:
                        raise self.failed_by
            except Refusal as refusal:
                self.refusal = refusal
            except ZeroDivisionError:
                pass
        self.left.set()


@asynccontextmanager
async def handling(rig: Bench) -> AsyncIterator[tuple[Conversation, Handler]]:
    """An engine that is ready, and a handler that asks it for a request, which is over at the end."""
    engine, handler = await rig.accept_ready(), Handler(rig.client)
    async with anyio.create_task_group() as group:
        group.start_soon(handler.run)
        yield engine, handler


def test_an_admitted_request_gives_its_outputs_and_its_end() -> None:
    async def scenario() -> None:
        async with bench() as rig:
            async with handling(rig) as (engine, handler):
                submit = await engine.hear(wire.Submit)
                assert (submit.prompts, submit.n, submit.public_id) == (SUBMIT.prompts, SUBMIT.n, SUBMIT.public_id)
                assert not handler.admitted.is_set()
                await engine.say(wire.Admitted(request=submit.request))
                await handler.admitted.wait()
                await engine.say_and_be_heard(
                    rig.client,
                    output(submit.request, 1),
                    wire.StepOutput(step=2, outputs=[]),
                    output(submit.request, 2),
                )
                assert [item.tokens for item in await handler.handle.receive()] == [[1], [2]]
                await engine.say(
                    output(submit.request, 3), wire.Ended(request=submit.request, outcome=Outcome.OK), output(77, 4)
                )
                assert [item.tokens for item in await handler.handle.receive()] == [[3]]
                for _ in range(2):
                    with pytest.raises(EndOfGeneration):
                        await handler.handle.receive()
                handler.handle.finish_item(0)  # too late to be worth a message
                handler.leave.set()
            await rig.client.ledger(timeout=0)
            await engine.hear(wire.AskLedger)  # the next thing after the Submit: nothing was cancelled

    run(scenario)


def test_a_stop_string_is_passed_on() -> None:
    async def scenario() -> None:
        async with bench() as rig, handling(rig) as (engine, handler):
            number = await engine.admit()
            await handler.admitted.wait()
            handler.handle.finish_item(1)
            assert await engine.hear(wire.FinishItem) == wire.FinishItem(request=number, index=1)
            await engine.say(wire.Ended(request=number, outcome=Outcome.OK))
            handler.leave.set()

    run(scenario)


def test_a_refusal_is_raised_before_the_scope_is_entered() -> None:
    async def scenario() -> None:
        async with bench() as rig:
            async with handling(rig) as (engine, handler):
                number = (await engine.hear(wire.Submit)).request
                refused = wire.Refused(
                    request=number, outcome=Outcome.QUEUE_FULL, code="queue_full", message="full", retry_after=2.0
                )
                await engine.say(refused)
            assert not handler.admitted.is_set()
            assert handler.refusal is not None
            assert (handler.refusal.outcome, handler.refusal.code) == (Outcome.QUEUE_FULL, "queue_full")
            assert (handler.refusal.message, handler.refusal.retry_after) == ("full", 2.0)

    run(scenario)


async def refused_at_once(client: EngineClient) -> None:
    with pytest.raises(Refusal) as caught:
        async with client.open(SUBMIT):
            pytest.fail("admitted by an engine that is not there")
    assert (caught.value.outcome, caught.value.code) == (Outcome.UNAVAILABLE, "engine_unavailable")


def test_nothing_is_asked_of_an_engine_that_is_not_ready() -> None:
    """Before the connection, before the model is loaded, after it took its word back."""

    async def scenario() -> None:
        async with bench() as rig:
            await refused_at_once(rig.client)
            engine = await rig.accept()
            await engine.say_and_be_heard(rig.client, wire.Unready(reason="the model is being loaded"))
            await refused_at_once(rig.client)
            await engine.say(wire.Ready(card=CARD, epoch="e"))
            await rig.client.wait_ready()
            await engine.say_and_be_heard(rig.client, wire.Unready(reason="another version"))
            assert rig.client.card is None
            await refused_at_once(rig.client)

    run(scenario)


def test_no_engine_at_all() -> None:
    """The client goes on trying, and refuses meanwhile."""

    async def scenario() -> None:
        client = EngineClient("/nowhere/engine.sock")
        async with anyio.create_task_group() as group:
            group.start_soon(client.run)
            await anyio.lowlevel.checkpoint()
            await refused_at_once(client)
            assert await client.ledger(timeout=0) is None
            group.cancel_scope.cancel()

    run(scenario)


class Cancelled:
    """Collects what `on_cancelled` is told."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize(
    ("way_out", "outcome"),
    [("cancel", Outcome.CLIENT_CANCELLED), ("raise", Outcome.ENGINE_ERROR), ("leave", Outcome.ABORTED)],
)
def test_leaving_early_cancels_and_waits_for_the_end(way_out: str, outcome: Outcome) -> None:
    """However often the surrounding scope is cancelled meanwhile."""

    async def scenario() -> None:
        cancelled = Cancelled()
        async with bench(on_cancelled=cancelled) as rig:
            async with handling(rig) as (engine, handler):
                number = await engine.admit()
                await handler.admitted.wait()
                if way_out == "cancel":
                    handler.scope.cancel()
                else:
                    handler.failed_by = ZeroDivisionError() if way_out == "raise" else None
                    handler.leave.set()
                assert await engine.hear(wire.Cancel) == wire.Cancel(request=number, outcome=outcome)
                handler.scope.cancel()
                await engine.say_and_be_heard(rig.client, output(number, 1))
                assert not handler.left.is_set()
                assert rig.client.open_requests == 1
                assert cancelled.seconds == []
                await engine.say(wire.Ended(request=number, outcome=outcome))
                await handler.left.wait()
            assert rig.client.open_requests == 0
            [seconds] = cancelled.seconds
            assert 0 < seconds < 5

    run(scenario)


@pytest.mark.parametrize("answer", ["admitted", "refused"])
def test_a_request_is_cancelled_while_it_is_asked_for(answer: str) -> None:
    """The engine's answer is on its way; the scope is left when nothing can be held any more."""

    async def scenario() -> None:
        async with bench() as rig:
            async with handling(rig) as (engine, handler):
                number = (await engine.hear(wire.Submit)).request
                handler.scope.cancel()
                assert await engine.hear(wire.Cancel) == wire.Cancel(request=number, outcome=Outcome.CLIENT_CANCELLED)
                assert not handler.left.is_set()
                if answer == "admitted":
                    await engine.say_and_be_heard(rig.client, wire.Admitted(request=number))
                    assert not handler.left.is_set()
                    await engine.say(wire.Ended(request=number, outcome=Outcome.CLIENT_CANCELLED))
                else:
                    await engine.say(
                        wire.Refused(request=number, outcome=Outcome.QUEUE_FULL, code="queue_full", message="full")
                    )
                await handler.left.wait()
            assert not handler.admitted.is_set()

    run(scenario)


def test_an_end_that_crosses_the_cancel_on_the_wire() -> None:
    """The engine ended the request as ok before the Cancel reached it: that is the acknowledgement too."""

    async def scenario() -> None:
        cancelled = Cancelled()
        async with bench(on_cancelled=cancelled) as rig:
            async with handling(rig) as (engine, handler):
                number = await engine.admit()
                await handler.admitted.wait()
                handler.scope.cancel()
                await engine.say(wire.Ended(request=number, outcome=Outcome.OK))
                await handler.left.wait()
                await engine.hear(wire.Cancel)
            assert len(cancelled.seconds) == 1
            # Once more, with the end read before the cancel is even written: then there is nothing to cancel.
            other = Handler(rig.client)
            async with anyio.create_task_group() as group:
                group.start_soon(other.run)
                number = await engine.admit()
                await other.admitted.wait()
                await engine.say_and_be_heard(rig.client, wire.Ended(request=number, outcome=Outcome.OK))
                other.scope.cancel()
                await other.left.wait()
            assert len(cancelled.seconds) == 1

    run(scenario)


@pytest.mark.parametrize("endless", [False, True])
def test_whatever_await_a_cancel_hits_the_engine_holds_nothing_when_the_scope_is_left(endless: bool) -> None:
    async def scenario() -> None:
        async with bench() as rig, anyio.create_task_group() as group:
            engine = ObedientEngine(await rig.accept_ready(), endless=endless)
            group.start_soon(engine.run)
            steps = 1
            while await _cancelled_at(steps, rig, engine):
                steps += 1
            assert steps > 3
            assert engine.admitted == steps
            assert {cancel.outcome for cancel in engine.cancels} == {Outcome.CLIENT_CANCELLED}
            if endless:
                assert len(engine.cancels) == steps
            group.cancel_scope.cancel()

    run(scenario)


async def _cancelled_at(step: int, rig: Bench, engine: ObedientEngine) -> bool:
    """Whether the request was still under way at its `step`-th suspension, where it was cancelled."""
    scope = anyio.CancelScope()

    async def request() -> None:
        with scope:
            async with rig.client.open(SUBMIT) as handle:
                tokens: list[int] = []
                while len(tokens) < 2:
                    tokens += [token for item in await handle.receive() for token in item.tokens]
                assert tokens == [5, 6]
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                if engine.endless:
                    scope.cancel()
                with pytest.raises(EndOfGeneration):
                    await handle.receive()

    work = Interrupted(request(), step, scope.cancel)
    await work
    assert engine.held == set()
    assert rig.client.open_requests == 0
    return work.reached


def test_a_request_that_cannot_be_sent_leaves_nothing() -> None:
    async def scenario() -> None:
        async with bench() as rig:
            await rig.accept_ready()
            unsendable = msgspec.structs.replace(SUBMIT, priority=2**64)
            with pytest.raises(OverflowError):
                async with rig.client.open(unsendable):
                    pytest.fail("sent")
            assert rig.client.open_requests == 0
            assert rig.client.ready

    run(scenario)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_any_other_ending_is_raised(outcome: Outcome) -> None:
    """After everything that came before it."""

    async def scenario() -> None:
        async with bench() as rig, handling(rig) as (engine, handler):
            number = (await engine.hear(wire.Submit)).request
            ended = wire.Ended(request=number, outcome=outcome, message="why")
            await engine.say(wire.Admitted(request=number), output(number, 1), ended)
            await handler.admitted.wait()
            await handler.handle.wait_over()
            assert [item.tokens for item in await handler.handle.receive()] == [[1]]
            for _ in range(2):
                with pytest.raises(GenerationFailed, match="why") as caught:
                    await handler.handle.receive()
                assert caught.value.outcome is outcome
            handler.leave.set()

    run(scenario)


def test_a_reader_that_does_not_keep_up_stalls_its_request_and_goes_on_with_everything() -> None:
    async def scenario() -> None:
        async with bench() as rig, handling(rig) as (engine, handler):
            number = await engine.admit()
            await handler.admitted.wait()
            for _ in range(2):  # it may fall behind again
                await engine.say(*(output(number, token) for token in range(FITTING)))
                await engine.say_and_be_heard(rig.client, output(number, FITTING), output(number, -1))
                assert await engine.hear(wire.Stall) == wire.Stall(request=number), "told once"
                received = await handler.handle.receive()
                assert [item.tokens[0] for item in received] == [*range(FITTING + 1), -1]
                assert await engine.hear(wire.Resume) == wire.Resume(request=number)
            await engine.say(wire.Ended(request=number, outcome=Outcome.OK))
            handler.leave.set()

    run(scenario)


@pytest.mark.parametrize("size", [4, 4096, 512 * 1024], ids=["scores", "vectors", "vectors of tokens"])
def test_what_waits_of_many_texts_is_bounded_in_bytes(size: int) -> None:
    """Nobody takes the answers: after about a mebibyte, however many these are, no more is to be computed."""

    async def scenario() -> None:
        orders: list[wire.ToEngine] = []
        handle = GenerationHandle(1, orders.append)
        handle.admit()
        texts = 0
        while not orders:
            handle.deliver(wire.ItemOutput(1, texts, [], pooled=Pooled(1, bytes(size))))
            texts += 1
        assert orders == [wire.Stall(request=1)]
        assert (texts - 1) * size <= 1024 * 1024 < texts * (size + 4096)
        assert len(await handle.receive()) == texts
        assert orders[1:] == [wire.Resume(request=1)]

    run(scenario)


def test_logprobs_that_wait_count_too() -> None:
    async def scenario() -> None:
        orders: list[wire.ToEngine] = []
        handle = GenerationHandle(1, orders.append)
        handle.admit()
        reported = TokenLogprobs.of(0.0, 1, list(range(20)), [0.0] * 20)
        handle.deliver(wire.ItemOutput(1, 0, [5], prompt_logprobs=[None, *[reported] * 1000]))
        assert orders == [wire.Stall(request=1)]

    run(scenario)


@pytest.mark.parametrize("pooling", [None, PoolingParams(task=PoolingTask.EMBED)], ids=["generation", "pooling"])
def test_a_reader_that_reads_a_little_now_and_then_is_not_waited_for_for_ever(pooling: PoolingParams | None) -> None:
    """What counts is for how long the request was stalled in all. What is pooled does not wait for its caller."""
    rounds, patience = 20, 0.05
    submit = msgspec.structs.replace(SUBMIT, pooling=pooling)
    taken = 0

    async def trickle(client: EngineClient) -> None:
        nonlocal taken
        async with client.open(submit) as handle:
            for _ in range(rounds):
                await anyio.sleep(patience * 0.6)  # its pace
                taken += bool(await handle.receive())

    async def scenario() -> None:
        async with bench(stall_timeout=patience) as rig:
            engine = await rig.accept_ready()
            async with anyio.create_task_group() as group:

                async def feed() -> None:
                    number = await engine.admit()
                    heard: wire.ToEngine = wire.Resume(request=number)
                    while not isinstance(heard, wire.Cancel):
                        if isinstance(heard, wire.Resume):
                            await engine.say(*(output(number, token) for token in range(FITTING + 1)))
                        heard = await engine.hear_any()
                    causes.append(heard.outcome)
                    await engine.say(wire.Ended(request=number, outcome=heard.outcome))

                group.start_soon(feed)
                if pooling is None:
                    with pytest.raises(GenerationFailed):
                        await trickle(rig.client)
                else:
                    await trickle(rig.client)

    causes: list[Outcome] = []
    run(scenario)
    assert (taken < rounds) is (pooling is None)
    assert causes == [Outcome.STALLED if pooling is None else Outcome.ABORTED]


def test_what_the_engine_is_through_with_is_stalled_no_longer() -> None:
    """Who reads the rest slowly is in nobody's way."""

    async def scenario() -> None:
        async with bench(stall_timeout=0.02) as rig:
            engine = await rig.accept_ready()
            async with anyio.create_task_group() as group:

                async def feed() -> None:
                    number = (await engine.hear(wire.Submit)).request
                    outputs = [output(number, token) for token in range(FITTING + 1)]
                    await engine.say(
                        wire.Admitted(request=number), *outputs, wire.Ended(request=number, outcome=Outcome.OK)
                    )

                group.start_soon(feed)
                async with rig.client.open(SUBMIT) as handle:
                    await handle.wait_over()
                    await anyio.sleep(0.1)
                    assert len(await handle.receive()) == FITTING + 1

    run(scenario)


def test_a_request_that_fails_with_an_outcome_of_its_own_is_cancelled_with_it() -> None:
    async def scenario() -> None:
        async with bench() as rig:
            engine = await rig.accept_ready()

            async def fail() -> None:
                with pytest.raises(EndingError):
                    async with rig.client.open(SUBMIT):
                        raise EndingError(Outcome.STALLED, "the client stopped reading")

            async with anyio.create_task_group() as group:
                group.start_soon(fail)
                number = await engine.admit()
                assert (await engine.hear(wire.Cancel)).outcome is Outcome.STALLED
                await engine.say(wire.Ended(request=number, outcome=Outcome.STALLED))

    run(scenario)


def test_requests_are_ended_by_name() -> None:
    answers: list[wire.CancelledByName | None] = []

    async def scenario() -> None:
        async with bench() as rig:

            async def ask(*ids: str) -> None:
                names = wire.CancelByName(sequence=0, ids=list(ids), labels=["job"], owner="alice")
                answers.append(await rig.client.cancel_by_name(names))

            await ask("cmpl-1")  # nobody is there
            engine = await rig.accept_ready()
            async with anyio.create_task_group() as group:
                group.start_soon(ask, "cmpl-1", "cmpl-2")
                asked = await engine.hear(wire.CancelByName)
                assert (asked.ids, asked.labels, asked.owner) == (["cmpl-1", "cmpl-2"], ["job"], "alice")
                ended = [wire.CancelledRequest("cmpl-2", Outcome.ABORTED, 0.5)]
                found = wire.CancelledByName(sequence=asked.sequence, requests=ended, unreached=["cmpl-1"])
                await engine.say(wire.CancelledByName(sequence=asked.sequence + 100, requests=[]), found)
            async with anyio.create_task_group() as group:
                group.start_soon(ask, "cmpl-1")
                await engine.hear(wire.CancelByName)
                await engine.hang_up()  # what was asked is answered by nobody
            assert answers == [None, found, None]

    run(scenario)


def test_others_have_requests_ended_by_name() -> None:
    """Each is answered when its requests have ended; meanwhile the engine is heard."""
    ended = {"cmpl-1": anyio.Event(), "cmpl-2": anyio.Event()}

    async def end_named(names: wire.CancelByName) -> list[wire.CancelledRequest]:
        [request_id] = names.ids
        await ended[request_id].wait()
        return [wire.CancelledRequest(request_id, Outcome.ABORTED, 0.5)]

    async def scenario() -> None:
        async with bench(process="0123abcd", end_named=end_named) as rig:
            engine = await rig.accept_ready()
            for number, request_id in enumerate(ended):
                names = wire.CancelByName(sequence=number, ids=[request_id], labels=["job"], owner="alice")
                await engine.say_and_be_heard(rig.client, names)
            for number, (request_id, event) in reversed([*enumerate(ended.items())]):
                event.set()
                answer = wire.CancelledByName(
                    sequence=number, requests=[wire.CancelledRequest(request_id, Outcome.ABORTED, 0.5)]
                )
                assert await engine.hear(wire.CancelledByName) == answer

    run(scenario)


@pytest.mark.parametrize(
    "submit",
    [
        msgspec.structs.replace(SUBMIT, prompts=TokenLists.of([[1]] * 5), n=1),
        msgspec.structs.replace(SUBMIT, prompts=TokenLists.of([[1]]), n=5),
        msgspec.structs.replace(SUBMIT, prompts=TokenLists.of([[1] * 11, [1] * 10]), n=1),
    ],
)
def test_what_can_never_be_admitted_is_not_sent(submit: wire.Submit) -> None:
    """Its message alone may be larger than all that may wait for an engine, which would cost others the connection."""
    limits = GateLimits(items=4, tokens=20, capacity=64, vocabulary_size=32)
    card = msgspec.structs.replace(CARD, most_items=limits.items, most_prompt_tokens=limits.tokens)

    async def scenario() -> None:
        async with bench() as rig:
            engine = await rig.accept()
            await engine.say(wire.Ready(card=card, epoch="first"))
            await rig.client.wait_ready()
            with pytest.raises(Refusal) as refused:
                async with rig.client.open(submit):
                    pass
            answer = Gate(limits).ask(submit.prompts, submit.n)
            assert isinstance(answer, Refusal)
            told = refused.value
            assert (told.outcome, told.code, told.message) == (answer.outcome, answer.code, answer.message)
            async with anyio.create_task_group() as group:
                group.start_soon(Handler(rig.client).run)
                assert (await engine.hear(wire.Submit)).prompts == SUBMIT.prompts  # nothing came before it
                group.cancel_scope.cancel()
                await engine.hang_up()

    run(scenario)
