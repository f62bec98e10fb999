"""A process raises its own limit of open files as far as the system lets it, and no further."""

import subprocess
import sys

import pytest

_RAISE = "import sys; from tenure.process.system import allow_descriptors as allow; print(allow(int(sys.argv[1])))"


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "allowed"),
    [(256, 2000, 1000, 1000), (256, 600, 1000, 600), (900, 2000, 500, 900), (600, 600, 600, 600)],
)
def test_as_far_as_the_system_lets_it(soft: int, hard: int, wanted: int, allowed: int) -> None:
    script = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$0" -c "$1" {wanted}'
    ended = subprocess.run(["bash", "-c", script, sys.executable, _RAISE], capture_output=True, text=True, check=False)
    assert (ended.stdout.strip(), ended.stderr) == (str(allowed), "")
