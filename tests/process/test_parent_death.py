"""No child outlives its parent, whatever the way its parent went."""

import os
import signal
import subprocess
import sys

import anyio
import pytest

from tenure.process.system import end_of_file
from tests.tasks import run, settle

_CHILD = """
import os, signal, sys
from tenure.process.system import die_with_parent
die_with_parent(int(sys.argv[1]))
print("alive", os.getpid(), flush=True)
while True:
    signal.pause()
"""
_PARENT = f"""
import os, signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", {_CHILD!r}, str(os.getpid())])
while True:
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_is_killed_when_its_parent_is(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith(b"alive")
        parent.send_signal(number)
        # Both have this pipe as their output: it ends when the last of them has.
        assert parent.communicate(timeout=30)[0] == b""


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    """It was started by a process that died before it could ask the kernel for the signal."""
    done = subprocess.run([sys.executable, "-c", _CHILD, "1"], capture_output=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stdout == b""


def test_the_control_pipe_ends_when_its_other_end_is_closed() -> None:
    """Not before, and not by what is written to it."""
    reading, writing = os.pipe()

    async def scenario() -> None:
        over = anyio.Event()

        async def watch() -> None:
            await end_of_file(reading)
            over.set()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await settle()
            os.write(writing, b"x" * 10_000)
            await anyio.sleep(0.02)  # that nothing happens is what is tested
            assert not over.is_set()
            os.close(writing)

    run(scenario)
    os.close(reading)
