"""What a step costs outside the model: plan, batch building, sampling, landing.

The engine's own parts run on a model that returns fixed hidden states and logits at once, with SmolLM2's vocabulary:

    GOMP_SPINCOUNT=8000 python -m benchmarks.step_overhead

(the setting with which the supervisor starts engines). The logits follow Zipf's law.
"""

import argparse
import statistics
import time

import torch

from tenure.core.budget import StepBudget
from tenure.core.limits import Limits
from tenure.core.request import Request
from tenure.core.scheduler import Scheduler
from tenure.kv.cache import CacheShape, KVCache
from tenure.layers.batch import PackedBatch
from tenure.model_runner.decoder_runner import DecoderRunner
from tenure.model_runner.sampler import Sampler
from tenure.model_runner.sampling_head import SamplingHead
from tenure.sampling import SamplingParams

VOCABULARY = 49152
CONTEXT = 200
GREEDY = SamplingParams(max_tokens=4000, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=4000, temperature=0.8, top_p=0.95, seed=1)


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


def measure(running: int, sampling: SamplingParams, steps: int) -> dict[str, float]:
    """Median milliseconds of each part of a decode step with `running` requests."""
    limits = Limits(max_model_len=8192, num_blocks=running * 64, block_size=16, num_slots=running)
    scheduler = Scheduler(limits)
    cache = KVCache(CacheShape(1, 1, 1, torch.float32), limits.num_blocks, limits.block_size)
    model = InstantModel(running)
    runner = DecoderRunner(model, cache, SamplingHead(model, Sampler()), running, limits.max_model_len)
    for number in range(running):
        scheduler.add(Request(number, [[(number * 7 + p) % 1000 for p in range(CONTEXT)]], sampling))
    budget = StepBudget(tokens=1 << 20)
    times: dict[str, list[float]] = {"plan": [], "build and sample": [], "land": [], "all": []}
    for step in range(steps + 2):
        began = time.perf_counter()
        plan = scheduler.plan(budget)
        assert plan is not None
        planned = time.perf_counter()
        runner.launch(plan)
        result = runner.land()
        executed = time.perf_counter()
        scheduler.land(result)
        landed = time.perf_counter()
        if step >= 2:
            times["plan"].append(planned - began)
            times["build and sample"].append(executed - planned)
            times["land"].append(landed - executed)
            times["all"].append(landed - began)
    return {part: statistics.median(values) * 1000 for part, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(2)
    print(f"{'':10} {'running':>8} {'plan':>8} {'build and sample':>17} {'land':>8} {'all':>8}   (ms, median)")
    with torch.inference_mode():
        for name, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
            for running in (1, 16, 64, 256):
                part = measure(running, sampling, options.steps)
                print(
                    f"{name:10} {running:8} {part['plan']:8.3f} {part['build and sample']:17.3f} "
                    f"{part['land']:8.3f} {part['all']:8.3f}"
                )


if __name__ == "__main__":
    main()
