"""Tokens per second of an engine at depth 0 and depth 1, in one process, without the API: 1, 16 and 64 requests.

    GOMP_SPINCOUNT=8000 python -m benchmarks.async_scheduling [SOURCE] [--threads N] [--rounds N]

The two depths take turns, so that they are disturbed alike; the table shows the median of each, and of their ratios.
"""

import argparse
import queue
import statistics
import sys
import time
from functools import partial

import torch

from tenure.config import EngineConfig, ModelChoice
from tenure.core.report import Output
from tenure.core.request import Request, RequestSpec
from tenure.engine.assembly import assemble
from tenure.engine.loop import EngineLoop
from tenure.engine.orders import Add, Ending, EngineSnapshot, Order, Stop
from tenure.engine.step_tuner import StepTuner
from tenure.sampling import SamplingParams
from tenure.source import resolve_source

TOKENS = 24
PROMPT = 32


class Engine:
    """Loop, scheduler and model at one depth; it is its loop's port."""

    def __init__(self, source: str, depth: int) -> None:
        found = resolve_source(source)
        choice = ModelChoice(name=source, served_names=(source,), kind=found.kind, path=str(found.path))
        engine = assemble(EngineConfig(model=choice, async_scheduling=depth > 0, kv_cache_memory=0.5))
        tuner = StepTuner(engine.estimator, max_tokens=2048, step_time=0.0)
        self._orders: queue.Queue[Order] = queue.Queue()
        self._loop = EngineLoop(engine.scheduler, engine.runner, self._orders, self, tuner, depth=depth)
        self._number = self._open = 0

    def publish(self, snapshot: EngineSnapshot) -> None:
        pass

    def show(self, snapshot: EngineSnapshot) -> None:
        pass

    def emit(self, step: int, outputs: list[Output], ended: list[Ending]) -> None:
        self._open -= len(ended)
        if not self._open:
            self._orders.put(Stop())

    def speed(self, running: int) -> float:
        """Tokens per second of so many requests."""
        sampling = SamplingParams(max_tokens=TOKENS, temperature=0.8, top_p=0.95, seed=1, ignore_eos=True)
        for _ in range(running):
            self._number += 1
            self._open += 1
            spec = RequestSpec([[self._number % 1000 + 3] * PROMPT], sampling)
            self._orders.put(Add(partial(Request, self._number, spec)))
        began = time.perf_counter()
        self._loop.run()
        return running * TOKENS / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="?", default="smollm2")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--running", type=int, nargs="*", default=[1, 16, 64])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sys.setswitchinterval(0.001)  # as in an engine process
    with torch.inference_mode():
        engines = [Engine(options.source, depth) for depth in (0, 1)]
        print(f"{'running':>8} {'depth 0':>9} {'depth 1':>9} {'1 / 0':>6}   (tokens/s, median)")
        for running in options.running:
            rounds = [[engine.speed(running) for engine in engines] for _ in range(options.rounds)]
            columns = [statistics.median(column) for column in zip(*rounds, strict=True)]
            ratio = statistics.median(second / first for first, second in rounds)
            print(f"{running:8} {columns[0]:9.1f} {columns[1]:9.1f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
