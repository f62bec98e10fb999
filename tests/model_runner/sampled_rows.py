"""Rows for the sampler: each with what is known of its slot's occupant. With and without native kernels."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tenure.core.plan import Start
from tenure.kernels import native
from tenure.model_runner.sampler import Sampled, Sampler
from tenure.model_runner.slots import Slots
from tenure.sampling import SamplingParams

SAMPLERS = [Sampler(kernels=None), *([Sampler()] if native.available() else [])]
NO_TOKEN = 1_000_000
"""A prompt has a token; this one is beyond every vocabulary here."""


class Case(NamedTuple):
    params: SamplingParams
    choice: int = 0
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()


def sample(logits_RV: torch.Tensor, cases: Sequence[Case], sampler: Sampler) -> Sampled:
    slots = Slots(len(cases), 1000, block_size=16)
    for slot, (params, choice, prompt, output) in enumerate(cases):
        prompt = [*prompt] or [NO_TOKEN]
        slots.occupy(Start(slot, 1, [*prompt, *output], len(prompt), choice, params))
    return sampler.sample(logits_RV, slots, np.arange(len(cases)))
