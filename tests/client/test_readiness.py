"""Who waits for an engine to be ready is told, however often the connection is lost before that."""

import socket
from pathlib import Path

import anyio
import anyio.abc

from tenure.client import EngineClient
from tenure.wire import messages as wire
from tenure.wire.framing import Channel

CARD = wire.ModelCard(
    name="m", served_names=("m",), source="", vocabulary_size=9, max_model_len=8, block_size=4, num_blocks=2, dtype="x"
)


class _Engine:
    """Drops its first connection, and becomes ready on the second."""

    def __init__(self) -> None:
        self.connections = 0

    async def serve(self, stream: anyio.abc.ByteStream) -> None:
        async with stream:
            self.connections += 1
            if self.connections == 1:
                return
            channel: Channel[wire.ToEngine] = Channel(stream, wire.ToEngine)
            await channel.receive()
            await channel.send_frames(channel.encode(wire.Unready(reason="the model is being loaded")))
            await channel.send_frames(channel.encode(wire.Ready(card=CARD, epoch="1")))
            await anyio.sleep_forever()


def test_readiness_after_a_lost_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        path, engine = str(tmp_path / "engine.sock"), _Engine()
        async with await anyio.create_unix_listener(path) as listener, anyio.create_task_group() as group:
            client = EngineClient(path)
            group.start_soon(listener.serve, engine.serve)
            group.start_soon(client.run)
            with anyio.fail_after(30):
                await client.wait_ready()
            assert client.card == CARD
            group.cancel_scope.cancel()
        assert engine.connections == 2

    anyio.run(scenario)


def test_an_engine_that_has_yet_to_start_is_waited_for(tmp_path: Path) -> None:
    """Its socket takes the connection before it runs; that silence is no death."""

    async def scenario() -> None:
        path, engine = str(tmp_path / "engine.sock"), _Engine()
        engine.connections = 1
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path)
            bound.listen()
            async with anyio.create_task_group() as group:
                client = EngineClient(path)
                group.start_soon(client.run)
                await anyio.sleep(0.3)  # several times the limit
                bound.setblocking(False)
                async with await anyio.abc.SocketListener.from_socket(bound.dup()) as listener:
                    group.start_soon(listener.serve, engine.serve)
                    with anyio.fail_after(30):
                        await client.wait_ready()
                    group.cancel_scope.cancel()
        assert engine.connections == 2, "the first connection was kept"

    anyio.run(scenario)
