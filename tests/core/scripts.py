"""Scripted runs that together meet every path of the scheduler."""

from dataclasses import dataclass

from tenure.core.budget import StepBudget
from tenure.core.limits import Limits
from tenure.pooling import PoolingTask
from tenure.sampling import RepetitionDetection
from tests.core.simulation import Ask, Simulation

UNBOUNDED = StepBudget(tokens=64)
CHUNKED = StepBudget(tokens=12)
ONE_ROW = StepBudget(tokens=64, seconds=0.0, per_token=0.01, per_context=0.0001)
"""A budget that pays for nothing: each step runs the least it may."""


@dataclass(frozen=True)
class Script:
    limits: Limits
    budget: StepBudget
    asks: tuple[Ask, ...]
    prefix_caching: bool = True

    def simulation(self, depth: int, broken: tuple[tuple[int, int], ...] = ()) -> Simulation:
        return Simulation(self.limits, self.budget, depth=depth, prefix_caching=self.prefix_caching, broken=broken)


def text(length: int, variant: int = 0) -> tuple[int, ...]:
    return tuple((position * 7 + variant) % 23 + 1 for position in range(length))


_ROOMY = Limits(max_model_len=64, num_blocks=48, block_size=4, num_slots=6)
_TIGHT = Limits(max_model_len=20, num_blocks=7, block_size=2, num_slots=4)

_WHOLE = Limits(max_model_len=32, num_slots=4)

SCRIPTS = {
    "whole texts": Script(
        _WHOLE,
        CHUNKED,
        (
            Ask(tuple(text(length, length) for length in (3, 9, 1, 30, 12, 5)), pooling=PoolingTask.EMBED),
            Ask((text(4, 1),), pooling=PoolingTask.TOKEN_EMBED, at=1.0),
            Ask((text(32, 2), text(2, 3)), pooling=PoolingTask.CLASSIFY, at=2.0, priority=-1),
        ),
    ),
    "pooled decoder": Script(
        _ROOMY,
        CHUNKED,
        (
            Ask((text(17), text(17) + text(5, 2), text(30, 4)), pooling=PoolingTask.EMBED),
            Ask((text(17) + text(9, 3),), pooling=PoolingTask.TOKEN_EMBED, at=20.0),
            Ask((text(17) + text(9, 4),), pooling=PoolingTask.CLASSIFY, at=21.0),
            Ask((text(11, 5),), max_tokens=4, at=1.0),
        ),
    ),
    "mixed": Script(
        _ROOMY,
        CHUNKED,
        (
            Ask((text(17),), n=3, max_tokens=6, seed=3, ignore_eos=True),
            Ask((text(5, 1), text(2, 2), text(9, 3)), max_tokens=5, seed=4),
            Ask((text(30, 4),), max_tokens=4, at=2.0, priority=-1),
            Ask((text(1, 5),), max_tokens=9, at=3.0, n=2, stop_token_ids=(2, 5, 8), min_tokens=3),
        ),
    ),
    "tight": Script(
        _TIGHT,
        UNBOUNDED,
        (
            Ask((text(5),), max_tokens=7, ignore_eos=True, n=2),
            Ask((text(3, 1), text(4, 2)), max_tokens=6, ignore_eos=True),
            Ask((text(6, 3),), max_tokens=5, ignore_eos=True, at=3.0, priority=-1),
        ),
    ),
    "tight without cache": Script(
        _TIGHT,
        CHUNKED,
        (
            Ask((text(4), text(4)), max_tokens=7, ignore_eos=True),
            Ask((text(5, 1),), max_tokens=5, ignore_eos=True, prompt_logprobs=0),
            Ask((text(3, 2),), max_tokens=9, ignore_eos=True, at=3.0),
        ),
        prefix_caching=False,
    ),
    "shared": Script(
        Limits(max_model_len=40, num_blocks=14, block_size=4, num_slots=3),
        CHUNKED,
        (
            Ask((text(14),), max_tokens=6, ignore_eos=True),
            Ask((text(14) + text(3, 9),), max_tokens=8, at=2.0, n=2, ignore_eos=True),
            Ask((text(16),), max_tokens=5, at=4.0, salt="apart", ignore_eos=True),
            Ask((text(14), text(12)), max_tokens=4, at=6.0, ignore_eos=True),
        ),
    ),
    "edges": Script(
        Limits(max_model_len=20, num_blocks=8, block_size=4, num_slots=2),
        CHUNKED,
        (
            Ask((text(8),), max_tokens=0, prompt_logprobs=1),
            Ask((text(8), text(4)), max_tokens=1, n=2),
            Ask((text(13, 1),), max_tokens=0, n=2),
            Ask((text(19, 2),), max_tokens=50, prompt_logprobs=0),
            Ask((text(3),), max_tokens=9, repetition=RepetitionDetection(max_size=1, min_count=2), ignore_eos=True),
        ),
    ),
    "bursts": Script(
        Limits(max_model_len=40, num_blocks=11, block_size=2, num_slots=4),
        CHUNKED,
        (
            Ask((text(5),), max_tokens=9, ignore_eos=True, n=2, seed=1000),
            Ask((text(3, 1), text(4, 2)), max_tokens=6, seed=1001, stop_token_ids=(5,)),
            Ask((text(6, 3),), max_tokens=5, ignore_eos=True, at=3.0, priority=-1),
        ),
    ),
    "one row": Script(
        _TIGHT,
        ONE_ROW,
        (
            Ask((text(4),), max_tokens=6, ignore_eos=True),
            Ask((text(5, 1), text(2, 2)), max_tokens=6, ignore_eos=True),
            Ask((text(3, 3),), max_tokens=5, ignore_eos=True, at=0.1),
        ),
    ),
}
