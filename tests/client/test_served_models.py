"""Which model and which engine a request goes to."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from tenure.client import EndOfGeneration, ModelNotFound, ModelNotSupported, ServedModel, ServedModels
from tenure.client.served_models import find_model
from tenure.errors import Refusal
from tenure.outcomes import Outcome
from tenure.token_lists import TokenLists
from tenure.wire import messages as wire
from tests.client.engines import SUBMIT, Bench, Conversation, Stream, bench, output, run_within
from tests.tasks import run, until
from tests.wire.samples import CARD, LEDGER


def served(*names: str, tasks: Sequence[str] = ("generate",)) -> ServedModel:
    return ServedModel(names, (), tasks)


MODELS = ServedModels(
    [
        served("embedder", tasks=("embed",)),
        served("chat", "gpt-4", "org/chat"),
        served("other-chat"),
        served("ranker", tasks=("embed", "score")),
    ]
)


@pytest.mark.parametrize(
    ("name", "task", "found"),
    [
        ("chat", "generate", "chat"),
        ("gpt-4", "generate", "chat"),
        ("org/chat", "generate", "chat"),
        ("other-chat", "generate", "other-chat"),
        (None, "generate", "chat"),
        ("", "generate", "chat"),
        (None, "embed", "embedder"),
        (None, "score", "ranker"),
    ],
)
def test_the_model_of_a_request(name: str | None, task: str, found: str) -> None:
    """Any of its names will do; without a name it is the first that can do the task."""
    assert find_model(MODELS.models, name, task).name == found


@pytest.mark.parametrize("name", ["Chat", "chat ", "chat-2", "tiny"])
def test_an_unknown_model_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        find_model(MODELS.models, name, "generate")
    assert caught.value.name == name
    assert caught.value.names == ("embedder", "chat", "gpt-4", "org/chat", "other-chat", "ranker")


@pytest.mark.parametrize(
    ("name", "task", "tasks"),
    [("embedder", "generate", ("embed",)), ("chat", "embed", ("generate",)), (None, "transcribe", ("embed",))],
)
def test_a_model_that_cannot_do_it(name: str | None, task: str, tasks: tuple[str, ...]) -> None:
    """Another model is never taken in its place."""
    with pytest.raises(ModelNotSupported) as caught:
        find_model(MODELS.models, name, task)
    assert caught.value.name == (name or "embedder")
    assert caught.value.tasks == tasks


class Rigs:
    """Some engines of one model, and a task for each request of it."""

    def __init__(self, rigs: Sequence[Bench]) -> None:
        self.rigs = rigs
        self.model = ServedModel(["tiny"], [rig.client for rig in rigs], ["generate"])
        self.engines: list[Conversation] = []

    async def ready(self) -> None:
        self.engines = [await rig.accept_ready() for rig in self.rigs]

    async def beat(self, *tokens: int) -> None:
        for rig, engine, count in zip(self.rigs, self.engines, tokens, strict=True):
            await engine.say(wire.Heartbeat(outstanding_tokens=count))
            await until(lambda rig=rig, count=count: rig.client.outstanding_tokens == count)  # type: ignore[misc]

    async def taken_by(self, index: int) -> int:
        """The number of the request that this engine has been asked for."""
        return (await self.engines[index].hear(wire.Submit)).request

    async def refuse(self, index: int, outcome: Outcome, code: str, retry_after: float | None = None) -> None:
        number = await self.taken_by(index)
        await self.engines[index].say(
            wire.Refused(request=number, outcome=outcome, code=code, message=f"by {index}", retry_after=retry_after)
        )

    @property
    def open_requests(self) -> list[int]:
        return [rig.client.open_requests for rig in self.rigs]


@asynccontextmanager
async def three() -> AsyncIterator[Rigs]:
    async with bench() as first, bench() as second, bench() as third:
        yield Rigs((first, second, third))


def test_the_engine_with_the_least_outstanding_is_taken() -> None:
    """By their last words and by what was sent since; the number of open requests decides between equals."""

    async def scenario() -> None:
        async with three() as rigs:
            await rigs.ready()
            await rigs.beat(50, 40, 45)
            prompt = msgspec.structs.replace(SUBMIT, prompts=TokenLists.of([[1] * 4, [2] * 3]))
            async with anyio.create_task_group() as group:
                for index in (1, 2, 1, 0):  # 40, then 47 beside 45, then 47 beside 52, then 50 beside 54 and 52
                    group.start_soon(Stream(rigs.model, prompt).run)
                    await rigs.taken_by(index)
                await rigs.beat(0, 0, 0)
                group.start_soon(Stream(rigs.model, prompt).run)
                await rigs.taken_by(0)  # each has one or two open: the first of those with one
                for engine in rigs.engines:
                    await engine.hang_up()

    run(scenario)


def test_api_processes_begin_with_different_engines() -> None:
    """They do not know of each other's requests at once."""

    async def scenario() -> None:
        async with three() as rigs:
            await rigs.ready()
            model = ServedModel(["tiny"], rigs.model.engines, ["generate"], first=4)
            async with anyio.create_task_group() as group:
                for index in (1, 2, 0, 1):
                    group.start_soon(Stream(model).run)
                    await rigs.taken_by(index)
                for engine in rigs.engines:
                    await engine.hang_up()

    run(scenario)


def test_what_has_ended_is_no_load() -> None:
    async def scenario() -> None:
        async with three() as rigs:
            await rigs.ready()
            await rigs.beat(0, 1, 2)
            for _ in range(3):
                async with anyio.create_task_group() as group:
                    group.start_soon(Stream(rigs.model).run)
                    number = await rigs.taken_by(0)
                    ended = wire.Ended(request=number, outcome=Outcome.OK)
                    await rigs.engines[0].say(wire.Admitted(request=number), ended)

    run(scenario)


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.QUEUE_FULL, "queue_full"), (Outcome.UNAVAILABLE, "x")])
def test_the_others_are_asked_before_a_refusal_is_given(outcome: Outcome, code: str) -> None:
    """In the order of their load, and one at a time: whoever has refused holds nothing of it."""

    async def scenario() -> None:
        async with three() as rigs:
            await rigs.ready()
            await rigs.beat(30, 10, 20)
            stream = Stream(rigs.model)
            async with anyio.create_task_group() as group:
                group.start_soon(stream.run)
                await rigs.refuse(1, outcome, code)
                await rigs.refuse(2, outcome, code)
                number = await rigs.taken_by(0)
                assert rigs.open_requests == [1, 0, 0]
                assert not stream.admitted.is_set()
                await rigs.engines[0].say(wire.Admitted(request=number), output(number, 7))
                await stream.admitted.wait()
                await rigs.engines[0].say(wire.Ended(request=number, outcome=Outcome.OK))
            assert stream.tokens == [7]
            assert isinstance(stream.ended, EndOfGeneration)

    run(scenario)


def test_when_all_refuse_the_one_that_promises_room_soonest_is_heard() -> None:
    """A full engine is an answer; one that is not there says nothing of the model."""

    async def scenario() -> None:
        async with three() as rigs:
            await rigs.ready()
            await rigs.beat(1, 2, 3)
            stream = Stream(rigs.model)
            async with anyio.create_task_group() as group:
                group.start_soon(stream.run)
                await rigs.refuse(0, Outcome.QUEUE_FULL, "queue_full", 9.0)
                await rigs.refuse(1, Outcome.UNAVAILABLE, "engine_unavailable")
                await rigs.refuse(2, Outcome.QUEUE_FULL, "queue_full", 4.0)
            assert isinstance(stream.ended, Refusal)
            assert (stream.ended.code, stream.ended.retry_after) == ("queue_full", 4.0)
            assert rigs.open_requests == [0, 0, 0]

    run(scenario)


def test_what_no_engine_could_take_is_refused_by_the_first() -> None:
    async def scenario() -> None:
        async with three() as rigs:
            await rigs.ready()
            await rigs.beat(5, 5, 4)
            stream = Stream(rigs.model)
            async with anyio.create_task_group() as group:
                group.start_soon(stream.run)
                await rigs.refuse(2, Outcome.INVALID, "invalid_request")
            assert isinstance(stream.ended, Refusal)
            assert stream.ended.code == "invalid_request"

    run(scenario)


def test_an_engine_that_dies_before_it_answers_is_passed_over() -> None:
    """So are those that are not ready; without any the refusal says so."""

    async def scenario() -> None:
        async with three() as rigs:
            model = rigs.model
            stream = Stream(model)
            await stream.run()
            assert isinstance(stream.ended, Refusal)
            assert (stream.ended.outcome, stream.ended.code) == (Outcome.UNAVAILABLE, "engine_unavailable")
            assert not model.ready
            assert model.card is None
            await rigs.ready()
            assert model.ready
            await rigs.engines[0].hang_up()
            await until(lambda: not model.ready)
            assert model.card == CARD
            stream = Stream(model)
            async with anyio.create_task_group() as group:
                group.start_soon(stream.run)
                await rigs.taken_by(1)
                await rigs.engines[1].hang_up()
                number = await rigs.taken_by(2)
                await rigs.engines[2].say(wire.Admitted(request=number), output(number, 3))
                await rigs.engines[2].say(wire.Ended(request=number, outcome=Outcome.OK))
            assert stream.tokens == [3]

    run(scenario)


def test_a_caller_that_leaves_while_the_second_engine_is_asked() -> None:
    """The one that holds the request is told, and nobody else."""

    async def scenario() -> None:
        async with three() as rigs:
            await rigs.ready()
            await rigs.beat(1, 2, 3)
            scope = anyio.CancelScope()
            async with anyio.create_task_group() as group:
                group.start_soon(run_within, scope, Stream(rigs.model))
                await rigs.refuse(0, Outcome.QUEUE_FULL, "queue_full", 1.0)
                number = await rigs.taken_by(1)
                scope.cancel()
                cancel = await rigs.engines[1].hear(wire.Cancel)
                assert (cancel.request, cancel.outcome) == (number, Outcome.CLIENT_CANCELLED)
                ended = wire.Ended(request=number, outcome=Outcome.CLIENT_CANCELLED)
                await rigs.engines[1].say(wire.Admitted(request=number), ended)
            assert rigs.open_requests == [0, 0, 0]
            await rigs.model.engines[2].ledger(timeout=0)
            await rigs.engines[2].hear(wire.AskLedger)  # and nothing before it

    run(scenario)


Known = list[wire.CancelledRequest] | None
OVER = [wire.CancelledRequest(f"cmpl-{number}", Outcome.ABORTED, 0.5) for number in range(3)]


async def named(models: ServedModels, answers: list[Known], *ids: str) -> None:
    answers.append(
        await models.cancel_by_name(wire.CancelByName(sequence=0, ids=list(ids), labels=["job"], owner="me"))
    )


async def tell(engine: Conversation, *requests: wire.CancelledRequest, unreached: Sequence[str] = ()) -> list[str]:
    """Answer a cancel by name; returns the ids that were asked for."""
    asked = await engine.hear(wire.CancelByName)
    answer = wire.CancelledByName(sequence=asked.sequence, requests=list(requests), unreached=list(unreached))
    await engine.say(answer)
    return asked.ids


def test_a_cancel_by_name_goes_through_one_engine() -> None:
    answers: list[Known] = []

    async def scenario() -> None:
        async with three() as rigs:
            await rigs.ready()
            async with anyio.create_task_group() as group:
                group.start_soon(named, ServedModels([rigs.model]), answers, "cmpl-0", "cmpl-1")
                assert await tell(rigs.engines[0], *OVER[:1]) == ["cmpl-0", "cmpl-1"]
            assert answers == [OVER[:1]]
            for engine, rig in zip(rigs.engines[1:], rigs.rigs[1:], strict=True):
                await rig.client.ledger(timeout=0)
                await engine.hear(wire.AskLedger)  # and nothing before it

    run(scenario)


def test_ids_that_one_engine_reaches_nobody_for_are_put_to_the_next() -> None:
    answers: list[Known] = []

    async def scenario() -> None:
        async with three() as rigs:
            await rigs.ready()
            async with anyio.create_task_group() as group:
                group.start_soon(named, ServedModels([rigs.model]), answers, "cmpl-0", "cmpl-1", "cmpl-2")
                await tell(rigs.engines[0], OVER[0], unreached=["cmpl-1", "cmpl-2"])
                assert await tell(rigs.engines[1], OVER[1], unreached=["cmpl-2"]) == ["cmpl-1", "cmpl-2"]
                assert await tell(rigs.engines[2], unreached=["cmpl-2"]) == ["cmpl-2"]
            assert answers == [OVER[:2]]

    run(scenario)


@pytest.mark.parametrize("known", [True, False])
def test_a_cancel_by_name_says_when_somebody_did_not_answer(known: bool) -> None:
    """What is found is told; that nothing is found can only be said for the engines that have answered."""
    answers: list[Known] = []

    async def scenario() -> None:
        async with three() as rigs:
            await rigs.ready()
            async with anyio.create_task_group() as group:
                group.start_soon(named, ServedModels([rigs.model]), answers, "cmpl-0")
                await tell(rigs.engines[0], unreached=["cmpl-0"])
                await rigs.engines[1].hear(wire.CancelByName)
                await rigs.engines[1].hang_up()
                await tell(rigs.engines[2], *OVER[:known], unreached=["cmpl-0"])
            assert answers == ([OVER[:1]] if known else [None])

    run(scenario)


def test_ledgers_of_all_engines_and_a_mark_for_the_silent_one() -> None:
    """In the order of the command line, in the time of one."""

    async def scenario() -> None:
        async with bench() as first, bench() as second, bench() as third:
            pair = ServedModel(["a"], [first.client, second.client], ["generate"])
            models = ServedModels([pair, ServedModel(["b"], [third.client], ["generate"])])
            assert not models.ready
            spoken = [await rig.accept_ready() for rig in (first, second, third)]
            assert models.ready
            found: list[wire.EngineLedger] = []

            async def ask() -> None:
                found.extend(await models.ledgers(timeout=0.2))

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                for number in (2, 0):
                    question = await spoken[number].hear(wire.AskLedger)
                    ledger = msgspec.structs.replace(LEDGER, model="ab"[number // 2], index=0)
                    await spoken[number].say(wire.LedgerReply(sequence=question.sequence, ledger=ledger))
            assert [(ledger.model, ledger.index, ledger.answering) for ledger in found] == [
                ("a", 0, True),
                ("a", 1, False),
                ("b", 0, True),
            ]
            assert not found[1].conserved

    run(scenario)


def test_the_fleet_keeps_all_its_engines_connected() -> None:
    async def scenario() -> None:
        async with bench() as first, bench() as second:
            models = ServedModels(
                [ServedModel(["a"], [first.client], ["generate"]), ServedModel(["b"], [second.client], ["generate"])]
            )
            async with anyio.create_task_group() as group:
                group.start_soon(models.wait_ready)
                await second.accept_ready()
                await first.accept_ready()
            assert models.ready

    run(scenario)
