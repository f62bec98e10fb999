"""A child gets its configuration, is heard to its last word, and leaves nothing, whatever its end."""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest

from tenure.errors import ResourceError
from tenure.process.reports import AnyReport, Failed, Serving
from tenure.server import children
from tenure.server.children import reap_adopted, running, signal_child
from tests.server.programs import Programs, Settings, descriptors_left, nothing_left
from tests.tasks import run, until


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.chdir(tmp_path)
    return Programs(tmp_path)


def test_configuration_descriptors_and_environment_reach_the_child(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own environment has the last word."""
    monkeypatch.setenv("TENURE_TEST_OURS", "user")
    reading, writing = os.pipe()
    spec = programs.spec(
        """
os.write(descriptors[0], b"here")
report("Failed", message=config["text"] + os.environ["TENURE_TEST_OURS"] + os.environ["TENURE_TEST_EXTRA"])
report("Failed", message=str(parent == os.getppid()))
""",
        descriptors=(writing,),
        environment={"TENURE_TEST_OURS": "server", "TENURE_TEST_EXTRA": "extra"},
    )

    async def scenario() -> None:
        async with running(spec) as process:
            assert await process.wait() == 0
        assert programs.reports == [Failed(message=Settings().text + "userextra"), Failed(message="True")]

    with nothing_left():
        run(scenario)
    assert os.read(reading, 100) == b"here"
    os.close(reading)
    os.close(writing)


def test_a_child_is_heard_to_its_last_word(programs: Programs) -> None:
    """Though it ends right after it, and its supervisor has other things to do meanwhile."""
    spec = programs.spec(
        """
import fcntl
fcntl.fcntl(reports, 1031, 1 << 20)  # F_SETPIPE_SZ: all of it fits into the pipe
report("Serving")
for number in range(8000):
    report("Failed", message=f"{number} " + 60 * "x")
os.write(reports, b"half a line")
os._exit(7)
"""
    )

    def listen(report: AnyReport) -> None:
        programs.reports.append(report)
        if report == Serving():
            time.sleep(0.15)

    async def scenario() -> None:
        async with running(replace(spec, on_report=listen)) as process:
            assert await process.wait() == 7
        assert len(programs.reports) == 8001
        assert programs.reports[-1] == Failed(message="7999 " + 60 * "x")

    with nothing_left():
        run(scenario)


def test_reports_come_while_the_child_runs(programs: Programs) -> None:
    """One at a time, in halves, or several at once."""
    spec = programs.spec(
        """
report("Serving")
os.write(reports, b'{"type": "Ser')
os.write(reports, b'ving"}\\n{"type": "Serving"}\\n')
wait_end_of_file()
mark("ended")
"""
    )

    async def scenario() -> None:
        async with running(spec):
            await until(lambda: len(programs.reports) == 3)
        assert programs.marks == ["ended"]  # by the end of its control pipe, in its own way

    with nothing_left():
        run(scenario)


def test_a_child_that_clings_to_life_is_killed(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "END_TIMEOUT", 0.1)
    spec = programs.spec("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport('Serving')\nsignal.pause()\n")

    async def scenario() -> None:
        async with running(spec) as process:
            await until(lambda: programs.reports == [Serving()])
            signal_child(process, signal.SIGTERM)
        assert process.returncode == -signal.SIGKILL
        signal_child(process, signal.SIGTERM)  # no error, and nobody else's process is hit

    with nothing_left():
        run(scenario)


@pytest.mark.parametrize("config", [Settings(), Settings("x" * 4_000_000)], ids=["small", "larger than a pipe"])
def test_a_child_that_ends_before_it_has_read_its_configuration(programs: Programs, config: Settings) -> None:
    """Its exit code tells, as of any other."""
    spec = programs.spec("sys.exit(3)", config=config, reads_config=False)

    async def scenario() -> None:
        async with running(spec) as process:
            assert await process.wait() == 3

    with nothing_left():
        run(scenario)


def test_a_program_that_is_not_there(programs: Programs, capfd: pytest.CaptureFixture[str]) -> None:
    spec = programs.spec("")
    os.remove("program.py")

    async def scenario() -> None:
        async with running(spec) as process:
            assert await process.wait() == 1

    with nothing_left():
        run(scenario)
    assert "No module named program" in capfd.readouterr().err


@pytest.mark.parametrize("left", range(6))
def test_a_child_for_which_there_are_no_descriptors(programs: Programs, left: int) -> None:
    """Whichever of those that a start takes is the first that is not to be had, the others are given back."""
    spec = programs.spec("mark('started')")

    async def scenario() -> None:
        with descriptors_left(left), pytest.raises(ResourceError, match="the program could not be started: Too many"):
            async with running(spec):
                pytest.fail("started")

    with nothing_left():
        run(scenario)
    assert programs.marks == []


def test_a_child_for_which_there_is_no_thread(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has one for each child, which waits for its end."""

    async def no_thread(command: object, **options: object) -> None:
        del command, options
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(anyio, "open_process", no_thread)
    spec = programs.spec("")

    async def scenario() -> None:
        with pytest.raises(ResourceError, match="could not be started: can't start new thread"):
            async with running(spec):
                pytest.fail("started")

    with nothing_left():
        run(scenario)


def test_leaving_by_an_error_ends_the_child(programs: Programs) -> None:
    spec = programs.spec("report('Serving')\nwait_end_of_file()\n")

    async def scenario() -> None:
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
            async with running(spec):
                await until(lambda: programs.reports == [Serving()])
                raise ZeroDivisionError
        assert caught.group_contains(ZeroDivisionError)

    with nothing_left():
        run(scenario)


@pytest.mark.parametrize("after", [0, 0.001, 0.02, 0.06])
def test_cancelling_ends_the_child_whenever_it_comes(programs: Programs, after: float) -> None:
    """While it is started, while it starts up, and while it runs."""
    spec = programs.spec("report('Serving')\nwait_end_of_file()\n")

    async def scenario() -> None:
        with anyio.move_on_after(after) as scope:
            async with running(spec):
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    with nothing_left():
        run(scenario)


def test_a_report_that_is_refused_ends_the_child(programs: Programs) -> None:
    """What the supervisor does with a report may fail; the child is not left behind."""
    spec = programs.spec("os.write(reports, b'{}\\n')\nwait_end_of_file()\n")

    async def scenario() -> None:
        with pytest.raises(ExceptionGroup):
            async with running(spec):
                await anyio.sleep_forever()

    with nothing_left():
        run(scenario)


@pytest.fixture
def adopting() -> Iterator[None]:
    """This process adopts orphans, as the first one of a container does."""
    prctl, subreaper = ctypes.CDLL(None).prctl, 36
    prctl(subreaper, 1, 0, 0, 0)
    yield
    prctl(subreaper, 0, 0, 0, 0)


@pytest.mark.usefixtures("adopting")
def test_adopted_processes_are_waited_for(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that lead a session too; the ends of our own children are not taken from those who wait for them."""
    monkeypatch.setattr(children, "_WAITED_FOR_WITHIN", 0.1)
    orphans = ["sleep 0.01", "sleep 0.02", "setsid sleep 0.01", "setsid sleep 0.2", "sleep 0.2"]
    spec = programs.spec("; ".join(f'os.system("{orphan} &")' for orphan in orphans) + "\nos._exit(7)")

    async def scenario() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(reap_adopted)
            for _ in range(3):
                async with running(spec) as process:
                    assert await process.wait() == 7
            await until(lambda: psutil.Process().children() == [])
            group.cancel_scope.cancel()

    with nothing_left():
        run(scenario)
