"""All fields at once, against the plain reference; and rows alone against the same rows among others."""

import math
import random
from dataclasses import replace

import pytest
import torch

from tenure.model_runner.sampler import Sampled, Sampler
from tenure.sampling import SamplingParams
from tests.model_runner.reference_sampler import adjusted, reference_logprob, reference_token
from tests.model_runner.sampled_rows import SAMPLERS, Case, sample

ROWS = 120


def random_params(rng: random.Random, vocabulary: int) -> SamplingParams:
    def sometimes(value, default):
        return value if rng.random() < 0.35 else default

    def some_tokens(most: int) -> tuple[int, ...]:
        return tuple(rng.sample(range(vocabulary), rng.randint(1, most)))

    return SamplingParams(
        max_tokens=50,
        min_tokens=sometimes(rng.randint(1, 12), 0),
        temperature=rng.choice([0.0, 0.3, 0.8, 1.0, 1.7]),
        top_p=sometimes(rng.uniform(0.05, 1.0), 1.0),
        top_k=sometimes(rng.randint(1, vocabulary), 0),
        min_p=sometimes(rng.uniform(0.0, 0.5), 0.0),
        presence_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        frequency_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        repetition_penalty=sometimes(rng.uniform(0.5, 2), 1.0),
        seed=rng.randint(-(2**63), 2**63 - 1),
        eos_token_ids=some_tokens(2),
        stop_token_ids=some_tokens(2),
        logit_bias=sometimes(tuple((token, rng.uniform(-9, 9)) for token in some_tokens(9)), ()),
        allowed_token_ids=sometimes(some_tokens(vocabulary), ()),
        bad_words=sometimes(tuple(some_tokens(1) for _ in range(3)), ()),
        logprobs=sometimes(rng.choice([0, 1, 3, 20, -1]), None),
        logprob_token_ids=sometimes(some_tokens(4), ()),
    )


class Batch:
    """Rows with random logits, params and histories."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        rng = random.Random(seed)
        self.logits = torch.randn(ROWS, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2.5
        self.params = [random_params(rng, vocabulary) for _ in range(ROWS)]
        self.choices = [rng.randint(0, 5) for _ in range(ROWS)]
        self.prompts = [rng.choices(range(vocabulary), k=rng.randint(1, 30)) for _ in range(ROWS)]
        self.outputs = [rng.choices(range(vocabulary), k=rng.randint(0, 20)) for _ in range(ROWS)]

    def sample(self, rows: list[int], sampler: Sampler) -> Sampled:
        cases = [Case(*row) for row in zip(self.params, self.choices, self.prompts, self.outputs, strict=True)]
        return sample(self.logits[rows], [cases[row] for row in rows], sampler)


samplers = pytest.mark.parametrize("sampler", SAMPLERS, ids=["torch", "native"][: len(SAMPLERS)])


@samplers
@pytest.mark.parametrize("vocabulary", [64, 131])
def test_every_row_agrees_with_the_reference(vocabulary, sampler):
    batch = Batch(vocabulary, vocabulary)
    sampled = batch.sample(list(range(ROWS)), sampler)
    for row in range(ROWS):
        logits, params = batch.logits[row].tolist(), batch.params[row]
        history = (batch.prompts[row], batch.outputs[row])
        if max(adjusted(logits, params, *history)) == -math.inf:
            assert sampled.errors[row] is not None
            continue
        assert sampled.tokens[row] == reference_token(logits, params, batch.choices[row], *history), params
        report = sampled.logprobs[row]
        assert (report is not None) == (params.logprobs is not None or bool(params.logprob_token_ids))
        if report is not None:
            logprob, rank = reference_logprob(logits, sampled.tokens[row])
            assert (report.logprob, report.rank) == (pytest.approx(logprob, abs=2e-5), rank)
            best = sorted(range(vocabulary), key=lambda token: -logits[token])
            wanted = params.logprobs or 0
            best = best if wanted == -1 else best[:wanted]
            extra = [token for token in params.logprob_token_ids if token not in best]
            assert report.ids == best + extra
            assert report.logprobs == pytest.approx(
                [reference_logprob(logits, token)[0] for token in report.ids], abs=2e-5
            )


@samplers
@pytest.mark.parametrize("vocabulary", [131, 4099])
def test_a_row_gets_the_same_alone_and_among_others(vocabulary, sampler):
    batch = Batch(7, vocabulary)
    everything = list(range(ROWS))
    together = batch.sample(everything, sampler)
    backwards = batch.sample(everything[::-1], replace(sampler, slice_elements=7 * vocabulary))
    assert together.tokens == backwards.tokens[::-1]
    assert together.logprobs == backwards.logprobs[::-1]
    assert together.errors == backwards.errors[::-1]
    for row in range(0, ROWS, 4):
        alone = batch.sample([row], sampler)
        assert alone.tokens[0] == together.tokens[row]
        assert alone.logprobs[0] == together.logprobs[row]
        assert alone.errors[0] == together.errors[row]
