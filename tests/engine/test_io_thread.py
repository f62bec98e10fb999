"""The I/O thread answers beside the loop's thread, hands over in order, and ends when it should: with its engine."""

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure.core.admission import GateLimits
from tenure.core.limits import Limits
from tenure.core.plan import StepResult
from tenure.core.scheduler import Scheduler
from tenure.engine import io_thread
from tenure.engine.engine_server import EngineServer
from tenure.engine.estimator import StepCostEstimator
from tenure.engine.io_thread import IOThread
from tenure.engine.loop import EngineLoop
from tenure.engine.orders import Add, Cancel, Ending, EngineSnapshot, Order, Progress, ShowHolders, Stop
from tenure.engine.step_tuner import StepTuner
from tenure.outcomes import Outcome
from tenure.process.reports import Alive
from tenure.wire import messages as wire
from tests.core.model_runner import ScriptedRunner
from tests.engine.engine_servers import ROOMY, output, submit
from tests.wire.samples import CARD

_HEADER_BYTES = 4


class Peer:
    """An API process, without an event loop."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(5)
        self._socket.connect(str(path))
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(wire.FromEngine)

    def say(self, *messages: msgspec.Struct) -> None:
        for message in messages:
            payload = msgspec.msgpack.encode(message)
            self._socket.sendall(len(payload).to_bytes(_HEADER_BYTES, "big") + payload)

    def hear(self) -> Any:
        """The next message that is no heartbeat; None when the engine has closed the connection."""
        while True:
            header = self._read(_HEADER_BYTES)
            if not header:
                return None
            message = self._decoder.decode(self._read(int.from_bytes(header, "big")))
            if not isinstance(message, wire.Heartbeat):
                return message

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                return b""
            data += more
        return data

    def close(self) -> None:
        self._socket.close()


class Rig:
    """A thread that runs, seen from the engine's main thread."""

    def __init__(self, path: Path, control_pipe: int) -> None:
        self.path = path
        self.orders: queue.Queue[Order] = queue.Queue(1000)
        self.peers: list[Peer] = []
        self.reports: queue.Queue[Alive] = queue.Queue()
        self.progress = Progress(1, runs=False)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        self.thread = IOThread(EngineServer("epoch", 0), listener, control_pipe, self.reports.put)

    def open(self) -> None:
        self.thread.start_serving(CARD, ROOMY, self.orders, lambda: self.progress)
        scheduler = Scheduler(Limits(max_model_len=64, num_blocks=16, block_size=4, num_slots=4))
        self.thread.publish(EngineSnapshot(scheduler.snapshot(), True))

    def connect(self) -> Peer:
        peer = Peer(self.path)
        self.peers.append(peer)
        peer.say(wire.Hello(worker=0))
        return peer


@contextmanager
def running(folder: Path) -> Iterator[Rig]:
    reading, writing = os.pipe()
    rig = Rig(folder / "engine.sock", reading)
    rig.thread.start()
    try:
        yield rig
    finally:
        rig.thread.stop()
        for peer in rig.peers:
            peer.close()
        os.close(writing)
        os.close(reading)


def test_requests_go_to_the_loop_and_endings_come_back(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        peer = rig.connect()
        assert isinstance(peer.hear(), wire.Unready)  # it answers while the model is being loaded
        rig.open()
        assert peer.hear() == wire.Ready(card=CARD, epoch="epoch")
        peer.say(submit(1), wire.Cancel(request=1, outcome=Outcome.ABORTED))
        assert peer.hear() == wire.Admitted(request=1)
        add = rig.orders.get(timeout=30)
        assert isinstance(add, Add)
        assert rig.orders.get(timeout=30) == Cancel(add.make().number, Outcome.ABORTED)
        ending = Ending(add.make().number, Outcome.ABORTED, "", 0.5)
        rig.thread.emit(1, [output(add.make(), 0, 9)], [ending])
        assert peer.hear().outputs[0].tokens == [9]
        assert peer.hear() == wire.Ended(request=1, outcome=Outcome.ABORTED, queue_seconds=0.5)


def test_what_the_loop_tells_arrives_whole_and_in_order(tmp_path: Path) -> None:
    """Also when it tells faster than the thread can deliver."""
    with running(tmp_path) as rig:
        rig.open()
        peer = rig.connect()
        peer.say(submit(1))
        assert isinstance(peer.hear(), wire.Ready)
        assert isinstance(peer.hear(), wire.Admitted)
        add = rig.orders.get(timeout=30)
        assert isinstance(add, Add)
        for step in range(5000):
            rig.thread.emit(step, [output(add.make(), 0, step)], [])
        rig.thread.emit(5000, [], [Ending(add.make().number, Outcome.OK, "", None)])
        heard = [peer.hear() for _ in range(5001)]
        assert [message.outputs[0].tokens for message in heard[:-1]] == [[step] for step in range(5000)]
        assert isinstance(heard[-1], wire.Ended)


def test_holders_are_shown_after_all_that_was_told_before(tmp_path: Path) -> None:
    """Who has seen a request end does not find it among them."""
    scheduler = Scheduler(Limits(max_model_len=64, num_blocks=16, block_size=4, num_slots=4))
    with running(tmp_path) as rig:
        rig.open()
        peer = rig.connect()
        peer.say(submit(1), wire.AskLedger(sequence=5, holders=True))
        assert isinstance(peer.hear(), wire.Ready)
        assert isinstance(peer.hear(), wire.Admitted)
        add = rig.orders.get(timeout=30)
        assert isinstance(add, Add)
        assert rig.orders.get(timeout=30) == ShowHolders()
        for step in range(100):
            rig.thread.emit(step, [output(add.make(), 0, step)], [])
        rig.thread.emit(100, [], [Ending(add.make().number, Outcome.OK, "", None)])
        rig.thread.show(EngineSnapshot(scheduler.snapshot(), True))
        heard = [peer.hear() for _ in range(102)]
        assert isinstance(heard[100], wire.Ended)
        assert heard[101].sequence == 5


class HeldExecutor(ScriptedRunner):
    """Stands still in every step until it is told to go on."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.computing = threading.Event()
        self.go_on = threading.Event()

    def land(self) -> StepResult:
        self.computing.set()
        assert self.go_on.wait(60)
        return super().land()


def test_admission_answers_while_a_step_is_being_computed(tmp_path: Path) -> None:
    """Questions, cancels and the ledger are dealt with at once; what they order is done when the step has landed."""
    limits = Limits(max_model_len=64, num_blocks=64, block_size=4, num_slots=8)
    runner = HeldExecutor(limits)
    with running(tmp_path) as rig:
        tuner = StepTuner(StepCostEstimator(), max_tokens=64, step_time=0.0)
        loop = EngineLoop(Scheduler(limits), runner, rig.orders, rig.thread, tuner)
        gate = GateLimits(items=3, tokens=100, capacity=60, vocabulary_size=32)
        rig.thread.start_serving(CARD, gate, rig.orders, lambda: loop.progress)
        computing = threading.Thread(target=loop.run)
        computing.start()
        try:
            peer = rig.connect()
            assert isinstance(peer.hear(), wire.Ready)
            peer.say(submit(1))
            assert peer.hear() == wire.Admitted(request=1)
            assert runner.computing.wait(60)
            peer.say(submit(2), submit(3), submit(4), wire.AskLedger(sequence=1))
            assert [peer.hear(), peer.hear()] == [wire.Admitted(request=2), wire.Admitted(request=3)]
            refused = peer.hear()
            assert (refused.request, refused.outcome, refused.code) == (4, Outcome.QUEUE_FULL, "queue_full")
            assert refused.retry_after >= 1
            assert peer.hear().ledger.permits.items.held == 3
            left = wire.Cancel(request=1, outcome=Outcome.CLIENT_CANCELLED)
            peer.say(left, wire.Cancel(request=2, outcome=Outcome.ABORTED), wire.AskLedger(sequence=2))
            assert peer.hear().sequence == 2, "both have been taken in"
            runner.go_on.set()
            ended = {}
            while len(ended) < 3:
                heard = peer.hear()
                if isinstance(heard, wire.Ended):
                    ended[heard.request] = heard.outcome
            assert ended == {1: Outcome.CLIENT_CANCELLED, 2: Outcome.ABORTED, 3: Outcome.OK}
        finally:
            runner.go_on.set()
            rig.orders.put(Stop())
            computing.join(60)


def test_reports_tell_whether_the_loop_has_something_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that runs, or orders that it does not take: it may hang between two steps."""
    monkeypatch.setattr(io_thread, "HEARTBEAT_INTERVAL", 0.01)
    with running(tmp_path) as rig:

        def reported(report: Alive) -> None:
            while rig.reports.get(timeout=30) != report:
                pass

        reported(Alive(step=0, busy=False))
        rig.open()
        reported(Alive(step=1, busy=False))
        rig.progress = Progress(2, runs=True)
        reported(Alive(step=2, busy=True))
        rig.progress = Progress(2, runs=False)
        reported(Alive(step=2, busy=False))
        rig.orders.put(Cancel(1, Outcome.ABORTED))
        reported(Alive(step=2, busy=True))
        rig.orders.get()
        reported(Alive(step=2, busy=False))


def test_stopping_ends_the_thread_and_its_connections(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        rig.open()
        peer = rig.connect()
        peer.say(submit(1))
        assert isinstance(peer.hear(), wire.Ready)
        assert isinstance(peer.hear(), wire.Admitted)
        rig.thread.stop()
        assert peer.hear() is None
        assert [type(rig.orders.get(timeout=30)) for _ in range(3)] == [Add, Cancel, Stop]
        rig.thread.emit(1, [], [])  # nobody is there to hear it, which is no error
        rig.thread.stop()
        with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
            late.connect(str(rig.path))


@pytest.mark.parametrize("when", ["before the loop runs", "while the loop runs"])
def test_a_thread_that_fails_stops_the_loop(tmp_path: Path, when: str) -> None:
    """An engine that nobody can reach must end, also if its model was still being loaded."""
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "engine.sock"))  # and does not listen: accepting fails
        thread = IOThread(EngineServer("epoch", 0), deaf, reading, lambda report: None)
        orders: queue.Queue[Order] = queue.Queue()
        if when == "while the loop runs":
            thread._orders = orders
        thread.start()
        if when == "before the loop runs":
            thread._thread.join(timeout=30)
            thread.start_serving(CARD, ROOMY, orders, lambda: Progress(0, runs=False))
        assert orders.get(timeout=30) == Stop()
        thread.stop()
    os.close(writing)
    os.close(reading)


_ENGINE = """
import socket, sys, threading
from tenure.engine.io_thread import IOThread
from tenure.engine.engine_server import EngineServer
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
IOThread(EngineServer("epoch", 0), listener, 0, lambda report: None).start()
print("started", flush=True)
threading.Event().wait()  # as an engine in an endless step
"""


def test_the_engine_ends_when_its_control_pipe_is_closed(tmp_path: Path) -> None:
    """Whatever its main thread does; what was written to the control pipe meanwhile is no end."""
    process = subprocess.Popen(
        [sys.executable, "-c", _ENGINE, str(tmp_path / "engine.sock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"started\n"
        process.stdin.write(b"something\n")
        process.stdin.flush()
        peer = Peer(tmp_path / "engine.sock")
        peer.say(wire.Hello(worker=0))
        assert isinstance(peer.hear(), wire.Unready)
        process.stdin.close()
        assert process.wait(timeout=30) == 0
        peer.close()
