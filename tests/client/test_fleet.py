"""Which model and which engine a request goes to."""

from collections.abc import Sequence

import anyio
import msgspec
import pytest

from tenure.client import Fleet, ModelNotFound, ModelNotSupported, Served
from tenure.wire import messages as wire
from tests.client.engines import bench
from tests.tasks import run, until
from tests.wire.samples import CARD, LEDGER


def served(*names: str, tasks: Sequence[str] = ("generate",)) -> Served:
    return Served(names, (), tasks)


FLEET = Fleet(
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
    assert FLEET.resolve(name, task).name == found


@pytest.mark.parametrize("name", ["Chat", "chat ", "chat-2", "tiny"])
def test_an_unknown_model_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        FLEET.resolve(name, "generate")
    assert repr(name) in str(caught.value)
    assert caught.value.names == ("embedder", "chat", "gpt-4", "org/chat", "other-chat", "ranker")


@pytest.mark.parametrize(("name", "task"), [("embedder", "generate"), ("chat", "embed"), (None, "transcribe")])
def test_a_model_that_cannot_do_it(name: str | None, task: str) -> None:
    """Another model is never taken in its place."""
    with pytest.raises(ModelNotSupported) as caught:
        FLEET.resolve(name, task)
    assert caught.value.task == task
    assert caught.value.name == (name or "embedder")


def test_the_engine_with_the_least_outstanding_is_taken() -> None:
    """Of those that are ready; the number of open requests decides between equals."""

    async def scenario() -> None:
        async with bench() as first, bench() as second, bench() as third:
            model = Served(["tiny"], [first.client, second.client, third.client], ["generate"])
            assert model.engine in model.engines  # none is ready: whichever it is refuses
            assert not model.ready
            assert model.card is None
            spoken = [await rig.accept_ready() for rig in (second, third)]
            for engine, tokens in zip(spoken, (50, 40), strict=True):
                await engine.say(wire.Heartbeat(step=1, outstanding_tokens=tokens))
            await until(lambda: second.client.outstanding_tokens == 50)
            await until(lambda: third.client.outstanding_tokens == 40)
            assert model.engine is third.client
            assert model.card == CARD
            await spoken[1].say(wire.Heartbeat(step=2, outstanding_tokens=60))
            await until(lambda: third.client.outstanding_tokens == 60)
            assert model.engine is second.client
            await spoken[0].hang_up()
            await until(lambda: not second.client.ready)
            assert model.engine is third.client
            await first.accept_ready()
            await second.accept_ready("again")
            assert model.ready
            assert model.engine is first.client

    run(scenario)


def test_ledgers_of_all_engines_and_a_mark_for_the_silent_one() -> None:
    """In the order of the command line, in the time of one."""

    async def scenario() -> None:
        async with bench() as first, bench() as second, bench() as third:
            pair = Served(["a"], [first.client, second.client], ["generate"])
            fleet = Fleet([pair, Served(["b"], [third.client], ["generate"])])
            assert not fleet.ready
            spoken = [await rig.accept_ready() for rig in (first, second, third)]
            assert fleet.ready
            found: list[wire.EngineLedger] = []

            async def ask() -> None:
                found.extend(await fleet.ledgers(timeout=0.2))

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
            fleet = Fleet([Served(["a"], [first.client], ["generate"]), Served(["b"], [second.client], ["generate"])])
            async with anyio.create_task_group() as group:
                group.start_soon(fleet.wait_ready)
                await second.accept_ready()
                await first.accept_ready()
            assert fleet.names == ("a", "b")

    run(scenario)
