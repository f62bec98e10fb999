"""What a step costs outside the model: plan, batch building, sampling, landing.

The engine's own parts run on a model that returns fixed hidden states and logits at once, with SmolLM2's vocabulary:

    GOMP_SPINCOUNT=8000 python -m benchmarks.step_overhead

(the setting with which the supervisor starts engines). The logits follow Zipf's law.
"""

import argparse
import statistics
import time
from typing import Any

import torch

from tenure.core.budget import StepBudget
from tenure.core.limits import Limits
from tenure.core.request import Request, RequestSpec
from tenure.core.scheduler import Scheduler
from tenure.kv.cache import CacheShape, KVCache
from tenure.layers.batch import PackedBatch
from tenure.model_runner.decoder_runner import DecoderRunner
from tenure.model_runner.sampler import Sampler
from tenure.model_runner.sampling_head import SamplingHead
from tenure.sampling import SamplingParams

VOCABULARY = 49152
CONTEXT = 200
GREEDY = {"temperature": 0.0}
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2}
MASKS = {"logit_bias": tuple((7 * i, 1.0) for i in range(20)), "min_tokens": 4000, "eos_token_ids": (2, 3)}
SAMPLED: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top-k 40": {"top_k": 40},
    "top-p 0.95": {"top_p": 0.95},
    "top-p 0.95 at 1.5": {"top_p": 0.95, "temperature": 1.5},
    "min-p 0.05": {"min_p": 0.05},
    "penalties": PENALTIES,
    "bias, min_tokens": MASKS,
    "k, p, min-p": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "penalties, top-p": {**PENALTIES, "top_p": 0.95},
    "all": {**PENALTIES, **MASKS, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
}
"""What each request asks for beside a temperature of 0.8."""


class InstantModel:
    """Answers at once, so that what is left is everybody else's time."""

    def __init__(self, rows: int) -> None:
        # Zipf's law, so that 0.95 of the probability lies on some hundreds of tokens.
        ranks = torch.stack([torch.randperm(VOCABULARY) for _ in range(rows)])
        self._logits = -1.5 * torch.log1p(ranks)

    def forward(self, batch: PackedBatch, cache: KVCache) -> torch.Tensor:
        return torch.zeros(len(batch.token_ids_T), 1)

    def logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        return self._logits[: len(hidden_RD)]


class Engine:
    """Scheduler and runner with `running` requests that decode, each with a seed of its own."""

    def __init__(self, model: InstantModel, running: int, fields: dict[str, Any]) -> None:
        limits = Limits(max_model_len=8192, num_blocks=running * 64, block_size=16, num_slots=running)
        cache = KVCache(CacheShape((None,), 1, 1, torch.float32), limits.num_blocks, limits.block_size)
        self._scheduler = Scheduler(limits)
        self._runner = DecoderRunner(model, cache, SamplingHead(model, Sampler()), running, limits.max_model_len)
        self.times: dict[str, list[float]] = {"plan": [], "build and sample": [], "land": [], "all": []}
        for number in range(running):
            sampling = SamplingParams(**{"max_tokens": 4000, "temperature": 0.8, "seed": number, **fields})
            prompt = [(number * 7 + position) % 1000 for position in range(CONTEXT)]
            self._scheduler.add(Request(number, RequestSpec([prompt], sampling)))

    def step(self) -> None:
        began = time.perf_counter()
        plan = self._scheduler.plan(StepBudget(tokens=1 << 20))
        assert plan is not None
        planned = time.perf_counter()
        self._runner.launch(plan)
        result = self._runner.land()
        executed = time.perf_counter()
        self._scheduler.land(result)
        landed = time.perf_counter()
        for part, seconds in zip(
            self.times, (planned - began, executed - planned, landed - executed, landed - began), strict=True
        ):
            self.times[part].append(seconds)


def measure(running: int, asked: dict[str, dict[str, Any]], steps: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of each part of a decode step, by name; all take turns, so that they are disturbed alike."""
    model = InstantModel(running)
    engines = {name: Engine(model, running, fields) for name, fields in asked.items()}
    for _ in range(steps + 2):
        for engine in engines.values():
            engine.step()
    return {
        name: {part: statistics.median(values[2:]) * 1000 for part, values in engine.times.items()}
        for name, engine in engines.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--running", type=int, nargs="*", default=[1, 16, 64, 256])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    columns = f"{'plan':>8} {'build and sample':>17} {'land':>8} {'all':>8} {'/ greedy':>9}"
    print(f"{'median ms':18} {'running':>8} {columns}")
    with torch.inference_mode():
        for running in options.running:
            measured = measure(running, {"greedy": GREEDY, **SAMPLED}, options.steps)
            for name, part in measured.items():
                print(
                    f"{name:18} {running:8} {part['plan']:8.3f} {part['build and sample']:17.3f} {part['land']:8.3f} "
                    f"{part['all']:8.3f} {part['all'] / measured['greedy']['all']:9.2f}"
                )


if __name__ == "__main__":
    main()
