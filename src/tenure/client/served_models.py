"""All models that this server serves, and the engines of each.

`ServedModel.open` asks the engines of a model one after the other until one admits the request; a request that is
refused by one is in none when the next is asked.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, TypeVar

import anyio

from tenure.client.engine import EngineClient, client_left, unavailable
from tenure.client.generation import GenerationHandle
from tenure.errors import CallerError, Refusal
from tenure.outcomes import FinishReason, Outcome
from tenure.wire.messages import CancelByName, CancelledRequest, EngineLedger, ModelCard, Submit

_ASK_ANOTHER = (Outcome.QUEUE_FULL, Outcome.UNAVAILABLE)


class ModelNotFound(CallerError):
    """No model has this name. `names` are the served ones."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        super().__init__(name)
        self.name = name
        self.names = tuple(names)


class ModelNotSupported(CallerError):
    """The model does not support the route's task. `tasks` are those that it supports."""

    def __init__(self, name: str, tasks: Sequence[str]) -> None:
        super().__init__(name)
        self.name = name
        self.tasks = tuple(tasks)


class ServedModel:
    """One model, by its served names (the first is the one in replies), and its engines.

    `first` is the engine that is asked first when all have the same load; API processes differ in it.
    """

    def __init__(
        self, names: Sequence[str], engines: Sequence[EngineClient], tasks: Sequence[str], first: int = 0
    ) -> None:
        self.names = tuple(names)
        self.engines = tuple(engines)
        self.tasks = tuple(tasks)
        self._first = first

    def __repr__(self) -> str:
        return f"<ServedModel {', '.join(self.names)}: {sum(engine.ready for engine in self.engines)} ready>"

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def ready(self) -> bool:
        """All its engines admit requests."""
        return all(engine.ready for engine in self.engines)

    @property
    def card(self) -> ModelCard | None:
        """The card of the first ready engine; None while none is ready."""
        return next((engine.card for engine in self.engines if engine.card is not None), None)

    @asynccontextmanager
    async def open(self, submit: Submit, cause: Callable[[], Outcome] = client_left) -> AsyncIterator[GenerationHandle]:
        """As `EngineClient.open`, by the engine with the fewest outstanding tokens that admits the request.

        Raises Refusal: the first that is the same for all engines, else the one with the least `retry_after`.
        """
        async with AsyncExitStack() as stack:
            yield await self._admitted(submit, cause, stack)

    async def _admitted(self, submit: Submit, cause: Callable[[], Outcome], stack: AsyncExitStack) -> GenerationHandle:
        refusals: list[Refusal] = []
        asked: set[int] = set()
        while (index := self._next_engine(asked)) is not None:
            asked.add(index)
            try:
                return await stack.enter_async_context(self.engines[index].open(submit, cause))
            except Refusal as refusal:
                if refusal.outcome not in _ASK_ANOTHER:
                    raise
                refusals.append(refusal)
        full = [refusal for refusal in refusals if refusal.outcome is Outcome.QUEUE_FULL]
        raise min(full or refusals or [unavailable()], key=lambda refusal: refusal.retry_after or 0.0)

    def _next_engine(self, asked: set[int]) -> int | None:
        """The ready engine, of those not asked yet, with the fewest outstanding tokens; None if there is none."""
        ready = [index for index, engine in enumerate(self.engines) if engine.ready and index not in asked]
        return min(ready, key=self._load, default=None)

    def _load(self, index: int) -> tuple[int, int, int]:
        engine = self.engines[index]
        return engine.outstanding_tokens, engine.open_requests, (index - self._first) % len(self.engines)


EngineTarget = EngineClient | ServedModel
"""Has requests admitted: one engine, or all engines of a model."""


class NamedModel(Protocol):
    """A model, as its callers choose it. The first name is the one in replies."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def tasks(self) -> tuple[str, ...]: ...


ModelT = TypeVar("ModelT", bound=NamedModel)


def find_model(models: Sequence[ModelT], name: str | None, *tasks: str) -> ModelT:
    """The model called `name`, or the first, that supports one of `tasks`; none are asked for when none are given.

    Raises ModelNotFound, ModelNotSupported.
    """
    candidates = [model for model in models if name in model.names] if name else models
    if not candidates:
        raise ModelNotFound(name or "", [known for model in models for known in model.names])
    for model in candidates:
        if not tasks or set(tasks) & set(model.tasks):
            return model
    raise ModelNotSupported(name or candidates[0].names[0], candidates[0].tasks)


class ServedModels:
    """The models in the order of the command line."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.models = tuple(models)
        self._engines = [engine for served in self.models for engine in served.engines]

    @property
    def ready(self) -> bool:
        return all(served.ready for served in self.models)

    def __getitem__(self, name: str) -> ServedModel:
        """The model with this name. Raises ModelNotFound."""
        return find_model(self.models, name)

    async def run(self) -> None:
        """Keep the connections to all engines up until cancelled."""
        async with anyio.create_task_group() as group:
            for engine in self._engines:
                group.start_soon(engine.run)

    async def wait_ready(self) -> None:
        """Wait until every engine has become ready."""
        for engine in self._engines:
            await engine.wait_ready()

    def release_tickets(self, tickets: Sequence[str]) -> None:
        """Tell of tickets that came with a request which does not enter. The engine whose model they name acts."""
        for engine in self._engines:
            engine.release_tickets(tickets)

    async def cancel_by_name(self, names: CancelByName) -> list[CancelledRequest] | None:
        """Have other API processes end requests, by way of one engine; returns those that are known.

        All engines are asked for requests of an API process that is gone. None when no request is known but some engine
        did not answer.
        """
        found: list[CancelledRequest] = []
        sure = True
        for engine in self._engines:
            answer = await engine.cancel_by_name(names)
            if answer is None:
                sure = False
                continue
            found += answer.requests
            if not answer.unreached:
                return found
            names = CancelByName(sequence=0, ids=answer.unreached)
        return found if found or sure else None

    async def ledgers(self, timeout: float = 1.0, *, holders: bool = False) -> list[EngineLedger]:
        """The ledger of every engine, asked at the same time; one that does not answer is marked so."""
        found: dict[tuple[int, int], EngineLedger] = {}

        async def ask(position: tuple[int, int], name: str, engine: EngineClient) -> None:
            found[position] = await engine.ledger(timeout, holders=holders) or _silent(name, position[1])

        async with anyio.create_task_group() as group:
            for number, served in enumerate(self.models):
                for index, engine in enumerate(served.engines):
                    group.start_soon(ask, (number, index), served.name, engine)
        return [found[position] for position in sorted(found)]


def _silent(name: str, index: int) -> EngineLedger:
    reasons = {reason.value: 0 for reason in FinishReason}
    return EngineLedger(model=name, index=index, answering=False, conserved=False, finish_reasons=reasons)
