"""A hand-written engine at the other end of a real Unix socket, which says what the test has it say."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
from anyio.abc import ByteStream, SocketListener

from tenure.client import EngineClient, EngineTarget
from tenure.client.generation import GenerationHandle
from tenure.outcomes import Outcome
from tenure.sampling import SamplingParams
from tenure.token_lists import TokenLists
from tenure.wire import messages as wire
from tenure.wire.framing import PeerGone
from tests.tasks import until
from tests.wire.peer import Peer
from tests.wire.samples import CARD

SUBMIT = wire.Submit(
    request=0, public_id="cmpl-1", prompts=TokenLists.of([[1, 2]]), sampling=SamplingParams(max_tokens=9), n=2
)


class Conversation(Peer):
    """One connection, from the engine's side."""

    def __init__(self, stream: ByteStream, marks: Iterator[int]) -> None:
        super().__init__(stream, wire.ToEngine)
        self._marks = marks

    async def admit(self) -> int:
        """Admit what is asked for next; returns the number of the request."""
        number = (await self.hear(wire.Submit)).request
        await self.say(wire.Admitted(request=number))
        return number

    async def say_and_be_heard(self, client: EngineClient, *messages: msgspec.Struct) -> None:
        """Also wait until the client has read it all."""
        mark = next(self._marks)
        await self.say(*messages, wire.Heartbeat(outstanding_tokens=mark))
        await until(lambda: client.outstanding_tokens == mark)


class Bench:
    """A client that runs, and where its engine listens."""

    def __init__(self, client: EngineClient, listener: SocketListener) -> None:
        self.client = client
        self.conversations: list[Conversation] = []
        self._listener = listener
        self._marks = count(1)

    async def accept(self) -> Conversation:
        """The client's next connection, after it has introduced itself."""
        conversation = Conversation(await self._listener.accept(), self._marks)
        self.conversations.append(conversation)
        await conversation.hear(wire.Hello)
        return conversation

    async def accept_ready(self, epoch: str = "first") -> Conversation:
        conversation = await self.accept()
        await conversation.say(wire.Ready(card=CARD, epoch=epoch))
        await self.client.wait_ready()
        return conversation


@asynccontextmanager
async def bench(**options: Any) -> AsyncIterator[Bench]:
    """A client that runs; at the end it must hold nothing."""
    with TemporaryDirectory(prefix="tenure-") as directory:
        path = str(Path(directory) / "engine.sock")
        client = EngineClient(path, **options)
        async with await anyio.create_unix_listener(path) as listener, anyio.create_task_group() as group:
            group.start_soon(client.run)
            rig = Bench(client, listener)
            try:
                yield rig
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    for conversation in rig.conversations:
                        await conversation.hang_up()
        assert client.open_requests == 0


class Stream:
    """A task that receives until its request ends, and how that was."""

    def __init__(self, client: EngineTarget, submit: wire.Submit = SUBMIT) -> None:
        self.ended: Exception | None = None
        self.admitted = anyio.Event()
        self.handle: GenerationHandle | None = None
        self.tokens: list[int] = []
        self._client = client
        self._submit = submit

    async def run(self) -> None:
        try:
            async with self._client.open(self._submit) as self.handle:
                self.admitted.set()
                while True:
                    self.tokens += [token for item in await self.handle.receive() for token in item.tokens]
        except Exception as error:
            self.ended = error


async def run_within(scope: anyio.CancelScope, stream: Stream) -> None:
    with scope:
        await stream.run()


class ObedientEngine:
    """Admits what it is asked for, and ends what it is told to; `held` are the requests that it holds.

    With `endless`, a request ends by a cancel alone; else after two outputs.
    """

    def __init__(self, conversation: Conversation, *, endless: bool) -> None:
        self.held: set[int] = set()
        self.admitted = 0
        self.cancels: list[wire.Cancel] = []
        self._conversation = conversation
        self.endless = endless

    async def run(self) -> None:
        try:
            while True:
                await self._answer(await self._conversation.hear_any())
        except PeerGone:
            return

    async def _answer(self, message: wire.ToEngine) -> None:
        match message:
            case wire.Submit(request=number):
                self.held.add(number)
                self.admitted += 1
                await self._conversation.say(wire.Admitted(request=number))
                for token in (5, 6):
                    await self._conversation.say(output(number, token))
                if not self.endless:
                    await self._end(number, Outcome.OK)
            case wire.Cancel(request=number, outcome=outcome):
                self.cancels.append(message)
                if number in self.held:
                    await self._end(number, outcome)

    async def _end(self, number: int, outcome: Outcome) -> None:
        self.held.remove(number)
        await self._conversation.say(wire.Ended(request=number, outcome=outcome))


def output(request: int, *tokens: int) -> wire.StepOutput:
    return wire.StepOutput(step=1, outputs=[wire.ItemOutput(request, 0, list(tokens))])
