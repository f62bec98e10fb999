"""Which deaths are followed by a new start, and which by the end of the server."""

import time
from contextlib import ExitStack
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tenure.process.reports import Alive, Failed, Loaded, Serving
from tenure.server import children, watchdog
from tenure.server.child_monitor import ChildMonitor, ServerEnded
from tests.server.programs import Programs, descriptors_left, nothing_left
from tests.tasks import run, until

CARD = """{"name": "tiny", "served_names": ["tiny"], "source": "", "vocabulary_size": 9, "max_model_len": 8,
    "block_size": 4, "num_blocks": 2, "dtype": "float32"}"""
LOADED = "report('Loaded', card=" + CARD.replace("\n", "") + ")"
SERVES = "report('Serving')\nmark('started')\nwait_end_of_file()\nmark('ended')\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.chdir(tmp_path)
    return Programs(tmp_path)


class Watch:
    """A monitor that runs, and how it ended."""

    def __init__(self, monitor: ChildMonitor) -> None:
        self.monitor = monitor
        self.ended: ServerEnded | None = None

    async def run(self) -> None:
        try:
            await self.monitor.keep()
        except* ServerEnded as group:
            [self.ended] = group.exceptions  # type: ignore[assignment]
        assert self.monitor.ended.is_set()


class Lives:
    """Counts the ends of a child's lives."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def test_a_child_that_died_is_started_again_after_a_pause(programs: Programs) -> None:
    lives, starts = Lives(), []
    dies_once = "mark('start')\nif not os.path.exists('again'):\n    open('again', 'w')\n    os._exit(3)\n"
    spec = programs.spec(dies_once + SERVES)

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True, after_death=lives))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            await programs.wait_marks(1)
            starts.append(time.monotonic())
            await until(lambda: lives.count == 1)
            await until(lambda: programs.reports == [Serving()])
            starts.append(time.monotonic())
            assert not watch.monitor.ended.is_set()
            watch.monitor.stop()
        assert watch.ended is None
        assert lives.count == 2
        assert programs.marks == ["start", "start", "started", "ended"]
        assert 0.45 < starts[1] - starts[0] < 5

    with nothing_left():
        run(scenario)


@pytest.mark.parametrize(
    ("dies", "description"), [("os._exit(3)", "exit code 3"), ("os.kill(os.getpid(), 9)", "signal SIGKILL")]
)
def test_three_deaths_in_five_minutes_end_the_server(programs: Programs, dies: str, description: str) -> None:
    lives = Lives()
    spec = programs.spec(dies)

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True, after_death=lives))
        began = time.monotonic()
        await watch.run()
        assert watch.ended is not None
        assert str(watch.ended) == f"the program died ({description}); the server ends"
        assert lives.count == 3
        assert time.monotonic() - began > 1.4  # each pause is longer than the one before

    with nothing_left():
        run(scenario)


def test_deaths_that_are_far_apart_do_not_end_the_server(programs: Programs) -> None:
    times = iter((0.0, 200.0, 301.0))
    asked = []

    def clock() -> float:
        asked.append(next(times))
        return asked[-1]

    spec = programs.spec("os._exit(3)")

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True, clock=clock))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            await until(lambda: len(asked) == 3)
            watch.monitor.stop()
        assert watch.ended is None

    with nothing_left():
        run(scenario)


def test_a_child_that_may_not_be_started_again(programs: Programs) -> None:
    spec = programs.spec("report('Serving')")

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=False))
        await watch.run()
        assert watch.ended is not None
        assert str(watch.ended) == "the program died (exit code 0); the server ends"
        assert programs.reports == [Serving()]

    with nothing_left():
        run(scenario)


@pytest.mark.parametrize("restart", [True, False])
def test_a_child_that_cannot_be_started_ends_the_server_as_one_that_died(programs: Programs, restart: bool) -> None:
    """After as many tries, in words, and not by an error that takes everything else down."""
    lives = Lives()
    spec = programs.spec("mark('started')")

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=restart, after_death=lives))
        with descriptors_left(0):
            await watch.run()
        assert watch.ended is not None
        assert str(watch.ended) == ("the program could not be started: Too many open files; the server ends")
        assert lives.count == (3 if restart else 1)

    with nothing_left():
        run(scenario)
    assert programs.marks == []


def test_a_child_that_cannot_be_started_again_at_first(programs: Programs, caplog: pytest.LogCaptureFixture) -> None:
    """It died, its next start failed, and the one after that did not."""
    dies_once = "mark('start')\nif not os.path.exists('again'):\n    open('again', 'w')\n    os._exit(3)\n"
    spec = programs.spec(dies_once + SERVES)
    lives, shortage = Lives(), ExitStack()

    def after_death() -> None:
        lives()
        if lives.count == 1:
            shortage.enter_context(descriptors_left(0))
        else:
            shortage.close()

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True, after_death=after_death))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            await until(lambda: programs.reports == [Serving()])
            watch.monitor.stop()
        assert watch.ended is None

    with nothing_left():
        run(scenario)
    assert programs.marks == ["start", "start", "started", "ended"]
    assert [line for line in caplog.messages if line.endswith("it is started again")] == [
        "the program died (exit code 3); it is started again",
        "the program could not be started: Too many open files; it is started again",
    ]


def test_a_child_that_cannot_work_ends_the_server_with_its_own_words(programs: Programs) -> None:
    """At once: starting it again would not help."""
    lives = Lives()
    spec = programs.spec("report('Failed', message='no such model')\nsys.exit(1)")

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True, after_death=lives))
        await watch.run()
        assert watch.ended is not None
        assert str(watch.ended) == "no such model"
        assert programs.reports == [Failed(message="no such model")]
        assert lives.count == 1

    with nothing_left():
        run(scenario)


_DRAINS = """
def drain(number, frame):
    mark("finished")
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
mark("started")
while True:
    signal.pause()
"""


def test_draining_lets_the_child_finish_its_work(programs: Programs) -> None:
    spec = programs.spec(_DRAINS)

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            await programs.wait_marks(1)
            watch.monitor.drain()
            await watch.monitor.ended.wait()
        assert programs.marks == ["started", "finished"]
        assert watch.ended is None

    with nothing_left():
        run(scenario)


def test_stopping_does_not_wait_for_work(programs: Programs) -> None:
    """The child's control pipe ends; nobody sends it a signal that it could misread as drain."""
    spec = programs.spec(_DRAINS.replace("    signal.pause()", "    wait_end_of_file()\n    os._exit(0)"))

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            await programs.wait_marks(1)
            watch.monitor.stop()
        assert programs.marks == ["started"]
        assert watch.ended is None

    with nothing_left():
        run(scenario)


@pytest.mark.parametrize("how", ["drain", "stop"])
def test_a_child_that_is_dead_is_not_started_again_by_then(programs: Programs, how: str) -> None:
    lives = Lives()
    spec = programs.spec("mark('started')\nos._exit(1)")

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True, after_death=lives))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            await until(lambda: lives.count == 1)
            watch.monitor.drain() if how == "drain" else watch.monitor.stop()
        assert programs.marks == ["started"]
        assert watch.ended is None

    with nothing_left():
        run(scenario)


@pytest.mark.parametrize("how", ["drain", "stop"])
def test_a_keeper_that_is_ended_before_it_begins(programs: Programs, how: str) -> None:
    spec = programs.spec("mark('started')")

    async def scenario() -> None:
        monitor = ChildMonitor(spec, restart=True)
        monitor.drain() if how == "drain" else monitor.stop()
        await monitor.keep()
        assert monitor.ended.is_set()
        assert programs.marks == []

    with nothing_left():
        run(scenario)


def test_a_child_that_is_being_started_hears_of_the_drain(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nothing to finish, so it may die of it; but it is not waited for until some time-out."""
    monkeypatch.setattr(children, "END_TIMEOUT", 90)
    spec = programs.spec("wait_end_of_file()")

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            await anyio.lowlevel.checkpoint()
            watch.monitor.drain()
            with anyio.fail_after(30):
                await watch.monitor.ended.wait()
        assert watch.ended is None

    with nothing_left():
        run(scenario)


def test_reports_are_passed_on(programs: Programs) -> None:
    spec = programs.spec(LOADED + "\n" + SERVES)

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            await until(lambda: len(programs.reports) == 2)
            watch.monitor.stop()
        loaded, serving = programs.reports
        assert isinstance(loaded, Loaded)
        assert loaded.card.num_blocks == 2
        assert serving == Serving()

    with nothing_left():
        run(scenario)


@pytest.mark.parametrize(
    ("goes_on", "words"),
    [
        ("signal.pause()", "no sign of life for 0.3 s"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "no sign of life for 0.3 s"),
        ("while True: report('Alive', step=7, busy=True)", "it has not gone on for 0.5 s"),
    ],
)
def test_a_child_that_does_not_go_on_is_killed_and_started_again(
    programs: Programs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, goes_on: str, words: str
) -> None:
    monkeypatch.setattr(watchdog, "CHECK_INTERVAL", 0.05)
    begins = f"{LOADED}; report('Alive')"
    hangs_once = f"if not os.path.exists('again'):\n    open('again', 'w')\n    {begins}\n    exec({goes_on!r})\n"
    spec = programs.spec(hangs_once + SERVES)

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True, silence=0.3, work=0.5))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            await programs.wait_marks(1)
            watch.monitor.stop()
        assert watch.ended is None
        assert [line for line in caplog.messages if line.startswith("the program is killed: ") and words in line]
        assert "the program died (signal SIGKILL); it is started again" in caplog.messages
        assert not [report for report in programs.reports if isinstance(report, Alive)]

    with nothing_left():
        run(scenario)


def test_killing_does_not_wait(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a child that is frozen."""
    monkeypatch.setattr(children, "END_TIMEOUT", 90)
    spec = programs.spec("report('Serving')\nos.kill(os.getpid(), signal.SIGSTOP)")

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            await until(lambda: programs.reports == [Serving()])
            with anyio.fail_after(30):
                watch.monitor.kill()
                await watch.monitor.ended.wait()
        assert watch.ended is None

    with nothing_left():
        run(scenario)


def test_a_supervisor_that_stood_still_kills_nobody(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its child said meanwhile is yet to be read."""
    monkeypatch.setattr(watchdog, "CHECK_INTERVAL", 0.05)
    beats = "import time\nwhile True:\n    report('Alive', step=1)\n    time.sleep(0.05)"
    spec = programs.spec(f"{LOADED}\nmark('started')\nexec({beats!r})\n")
    lives = Lives()

    async def scenario() -> None:
        watch = Watch(ChildMonitor(spec, restart=True, silence=0.3, work=0.3, after_death=lives))
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run)
            await programs.wait_marks(1)
            for _ in range(3):
                time.sleep(0.6)  # noqa: ASYNC251 -- the whole process stands still: that is what is tested
                await anyio.sleep(0.1)
            assert lives.count == 0
            watch.monitor.kill()
        assert programs.marks == ["started"]

    with nothing_left():
        run(scenario)
