"""The uniform numbers behind the draws, and the filters on vocabularies of realistic size.

Chi-square limits are those that a right generator exceeds once in a thousand; the inputs are fixed, so a test that
passes always passes.
"""

import numpy as np
import pytest
import torch

from tenure.core.plan import Start
from tenure.kernels import native
from tenure.model_runner import torch_sampling
from tenure.model_runner.sampler import uniforms
from tenure.model_runner.slots import Slots
from tenure.sampling import SamplingParams
from tests.model_runner.reference_sampler import uniform

COUNT = 40_000
CHI_SQUARE_LIMIT = {7: 24.3, 15: 37.7}


def numbers(seeds=0, choices=0, positions=0) -> np.ndarray:
    columns = np.broadcast_arrays(*(np.asarray(column, dtype=np.uint64) for column in (seeds, choices, positions)))
    return uniforms(*(np.ascontiguousarray(column) for column in columns))


def draw(p_RV: torch.Tensor, uniform_R: torch.Tensor, **fields: float) -> torch.Tensor:
    """A token per row, from these probabilities as logits; with native kernels where there are any, and without."""
    slots = Slots(len(p_RV), 8, block_size=16)
    for slot in range(len(p_RV)):
        slots.occupy(Start(slot, 1, [0], 1, 0, SamplingParams(max_tokens=1, **fields)))
    rows = np.arange(len(p_RV))
    tokens = torch_sampling.sample(p_RV.log(), slots, rows, uniform_R)
    if native.available():
        drawn = native.NativeKernels.load().sample(p_RV.log(), slots.lines, rows, uniform_R.numpy())
        assert drawn.tolist() == tokens.tolist()
    return tokens


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


AXES = {
    "positions": {"positions": np.arange(COUNT)},
    "seeds": {"seeds": np.arange(COUNT)},
    "choices": {"choices": np.arange(COUNT)},
    "far seeds": {"seeds": np.arange(COUNT, dtype=np.uint64) << np.uint64(40), "positions": 17},
}


@pytest.mark.parametrize("axis", AXES)
def test_draws_follow_the_softmax_along_each_axis(axis):
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, 1.0, -2.0, 0.5, 1.5])
    shares = torch.softmax(logits, dim=0)
    uniform_R = torch.from_numpy(numbers(**AXES[axis]))
    tokens = torch_sampling.draw(shares.expand(COUNT, 8), uniform_R)
    observed = np.bincount(tokens.numpy(), minlength=8)
    assert chi_square(observed, shares.double().numpy() * COUNT) < CHI_SQUARE_LIMIT[7]


NEIGHBOURS = {
    "positions": ({"positions": np.arange(COUNT)}, {"positions": np.arange(COUNT) + 1}),
    "choices": ({"positions": np.arange(COUNT)}, {"positions": np.arange(COUNT), "choices": 1}),
    "seeds": ({"positions": np.arange(COUNT)}, {"positions": np.arange(COUNT), "seeds": 1}),
    "seed and choice": ({"positions": np.arange(COUNT), "choices": 1}, {"positions": np.arange(COUNT), "seeds": 1}),
    "choice and position": ({"positions": np.arange(COUNT) + 1}, {"positions": np.arange(COUNT), "choices": 1}),
}


@pytest.mark.parametrize("pair", NEIGHBOURS)
def test_neighbouring_draws_are_independent(pair):
    first, second = (numbers(**arguments) for arguments in NEIGHBOURS[pair])
    cells = (first * 4).astype(int) * 4 + (second * 4).astype(int)
    assert chi_square(np.bincount(cells, minlength=16), np.full(16, COUNT / 16)) < CHI_SQUARE_LIMIT[15]


def test_numbers_agree_with_plain_integers_and_lie_inside_the_interval():
    cases = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 - 1, 127, 131_071), (2**63, 3, 9)]
    for seed, choice, position in cases:
        number = uniforms(*(np.array([value], dtype=np.uint64) for value in (seed, choice, position)))[0]
        assert number == uniform(seed, choice, position)
    many = numbers(positions=np.arange(COUNT))
    assert many.min() > 0
    assert many.max() < 1
    assert len(np.unique(many)) == COUNT


def test_the_ends_of_the_interval_draw_the_first_and_last_possible_token():
    p_RW = torch.zeros(2, 200)
    p_RW[:, 70] = 1e-30
    p_RW[:, 100] = 0.7
    p_RW[:, 130] = 1e-38
    assert draw(p_RW, torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [70, 100]
    p_RW[:, 130] = 0.3
    assert draw(p_RW, torch.tensor([2.0**-53, 1 - 2.0**-53], dtype=torch.float64)).tolist() == [100, 130]


def test_a_draw_finds_the_token_at_which_the_cumulative_distribution_passes():
    generator = torch.Generator().manual_seed(5)
    p_RW = torch.softmax(torch.randn(200, 50 * 64 + 7, generator=generator) * 3, dim=-1)
    uniform_R = torch.rand(200, generator=generator, dtype=torch.float64)
    cumulative = p_RW.double().cumsum(-1)
    expected = (cumulative <= (uniform_R * cumulative[:, -1])[:, None]).sum(-1)
    assert draw(p_RW, uniform_R).tolist() == expected.tolist()


def keep_one_row(p_W: torch.Tensor, min_p: float, top_k: int, top_p: float) -> torch.Tensor:
    order = torch.argsort(p_W, descending=True, stable=True)
    sorted_W = p_W[order].double()
    kept = sorted_W >= min_p * sorted_W[0]
    if top_k:
        kept &= sorted_W >= sorted_W[min(top_k, len(sorted_W)) - 1]
    sorted_W = sorted_W * kept
    if top_p < 1:
        kept &= sorted_W.cumsum(0) - sorted_W < top_p * sorted_W.sum()
    return torch.where(p_W >= p_W[order][kept][-1], p_W, 0.0)


@pytest.mark.parametrize("scale", [0.02, 1.0, 6.0])
@pytest.mark.parametrize(
    "filters",
    [
        (0.0, 40, 1.0),
        (0.0, 0, 0.9),
        (0.01, 0, 1.0),
        (0.02, 0, 0.8),
        (0.0, 300, 0.95),
        (1e-4, 5000, 0.99),
        (0.0, 64, 0.5),
        (0.0, 16_000, 1.0),
        (0.3, 0, 0.999),
    ],
)
def test_filters_agree_with_a_full_sort_however_many_tokens_they_keep(filters, scale):
    """The first and the last token that are kept, and one in between, of each row."""
    generator = torch.Generator().manual_seed(3)
    p_RW = torch.softmax(torch.randn(6, 260 * 64, generator=generator) * scale, dim=-1)
    min_p, top_k, top_p = filters
    kept_RW = torch.stack([keep_one_row(row, *filters) for row in p_RW])
    cumulative_RW = kept_RW.double().cumsum(-1)
    for uniform_ in (1e-6, 0.4, 1 - 1e-6):
        expected = (cumulative_RW <= uniform_ * cumulative_RW[:, -1:]).sum(-1)
        uniform_R = torch.full((6,), uniform_, dtype=torch.float64)
        assert draw(p_RW, uniform_R, min_p=min_p, top_k=top_k, top_p=top_p).tolist() == expected.tolist()


def test_equal_probabilities_are_kept_together():
    p_RW = torch.full((2, 6400), 1.0)
    ends = torch.tensor([1e-15, 1 - 1e-15], dtype=torch.float64)
    assert draw(p_RW, ends, top_k=3).tolist() == [0, 6399]
    assert draw(p_RW, ends, top_p=0.5).tolist() == [0, 6399]
