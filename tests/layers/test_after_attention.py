"""What an encoder's layer does after its attention comes to the same in every way of doing it."""

import pytest
import torch
import torch.nn.functional as F

from tenure.kernels import native
from tenure.layers.after_attention import AfterAttention, CompiledSteps, StepByStep, after_attention
from tenure.layers.linear import LINEAR_BACKENDS, Activation, linear_factory
from tenure.layers.norm import LayerNorm
from tests.layers.threads import threads as using

CPU = torch.device("cpu")
needs_native = pytest.mark.skipif(
    not native.can_run_avx512(torch.float32, CPU), reason="no native layers with this processor or installation"
)
BACKENDS = [pytest.param(name, marks=needs_native) if name == "native" else name for name in LINEAR_BACKENDS]
SIZES = [(32, 128), (50, 70), (7, 33), (256, 1600), (1024, 40)]
"""Hidden and inner sizes, with and without what does not fill a vector, a panel or a part of the inputs."""
ACTIVATIONS = {
    Activation.GELU: F.gelu,
    Activation.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
    Activation.RELU: F.relu,
    Activation.TANH: torch.tanh,
}


def layer(hidden: int, inner: int, activation: Activation, backend: str) -> tuple[StepByStep, AfterAttention]:
    """The same weights step by step with torch's products, and as the back end would do it."""
    torch.manual_seed(5)
    shapes = [(hidden, hidden), (inner, hidden), (hidden, inner)]
    weights = [(torch.randn(n, k) / k**0.5, torch.randn(n)) for n, k in shapes]
    norms = [LayerNorm(torch.randn(hidden), torch.randn(hidden), 1e-5) for _ in range(2)]

    def steps(name: str) -> StepByStep:
        output, up, down = (linear_factory(torch.float32, CPU, name)(*weight) for weight in weights)
        return StepByStep(output, norms[0], up, activation, down, norms[1])

    with torch.inference_mode():
        return steps("torch"), after_attention(steps(backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("hidden", "inner"), SIZES)
@pytest.mark.parametrize("rows", [1, 95, 96, 333])
def test_all_ways_agree(rows: int, hidden: int, inner: int, activation: Activation, backend: str) -> None:
    by_steps, given = layer(hidden, inner, activation, backend)
    attended, x = torch.randn(rows, hidden), 3 * torch.randn(rows, hidden)
    before = attended.clone(), x.clone()
    with torch.inference_mode(), using(2):
        torch.testing.assert_close(given(attended, x), by_steps(attended, x), atol=2e-5, rtol=1e-4)
    assert torch.equal(attended, before[0])
    assert torch.equal(x, before[1])


@needs_native
def test_who_takes_blocks() -> None:
    assert isinstance(layer(32, 64, Activation.GELU, "native")[1], CompiledSteps)
    assert isinstance(layer(32, 64, Activation.TANH, "native")[1], StepByStep)
    assert isinstance(layer(32, 64, Activation.GELU, "torch")[1], StepByStep)


@needs_native
@pytest.mark.parametrize(("hidden", "inner"), SIZES)
@pytest.mark.parametrize("activation", [Activation.GELU, Activation.GELU_TANH, Activation.RELU])
def test_a_row_is_the_same_among_any_others(hidden: int, inner: int, activation: Activation) -> None:
    """To the last bit, in blocks on any number of threads; what is not finite stays in its row."""
    _, given = layer(hidden, inner, activation, "native")
    attended, x = torch.randn(400, hidden), torch.randn(400, hidden)
    attended[123, 3] = torch.nan
    x[124, 0] = torch.inf
    with torch.inference_mode():
        with using(1):
            whole = given(attended, x)
        for count, first, last in (
            (1, 60, 120),
            (1, 120, 140),
            (2, 0, 399),
            (2, 30, 199),
            (3, 123, 400),
            (4, 100, 160),
            (5, 0, 240),
        ):
            rows = slice(first, last)
            with using(count):
                found = given(attended[rows], x[rows])
            torch.testing.assert_close(found, whole[rows], rtol=0, atol=0, equal_nan=True)
        with using(1):
            assert given(attended[:0], x[:0]).shape == (0, hidden)
    assert whole.isnan().any(1).nonzero().flatten().tolist() == [123, 124]
