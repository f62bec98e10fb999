"""What an engine's memory must not grow with."""

import psutil

from tests.serving.conftest import Start

_MIB = 1024 * 1024


def test_prompts_of_many_lengths_leave_nothing_behind(start: Start, script: str) -> None:
    """The libraries below keep compiled products for each number of rows in a step, but not hundreds of MiB of them."""
    server = start(script, "--kv-cache-memory", "0.1", "--no-enable-prefix-caching")
    engine = psutil.Process(server.engine_pid)
    server.complete("warm", 2)
    before = engine.memory_info().rss
    for length in range(2, 600):
        server.complete("x" * length, 1)
    grown = (engine.memory_info().rss - before) // _MIB
    assert grown < 300, f"{grown} MiB"
