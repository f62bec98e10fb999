"""A minute of the soak (`python -m benchmarks.soak`): every kind of client at once, and every promise kept."""

import anyio

from benchmarks.soak import report
from benchmarks.storm.storm import Plan, Result, run

_MIB = 1024 * 1024


def test_every_promise_is_kept_under_a_storm() -> None:
    """Memory has more room than in the long run: in its first minute a server meets most of what it has to keep."""
    plan = Plan(seconds=50, seed=4, clients=24, models=("script", "minilm"), memory_margin=256 * _MIB)
    result: Result = anyio.run(run, plan, print)
    text = report(result)
    assert result.held, text
    assert "every promise was kept" in text
    assert sum(result.books.logged.values()) > 500, text
    assert result.watch.peaks.load > 8, text
