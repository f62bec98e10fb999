"""All linear back ends do the same sums."""

import pytest
import torch

from tenure.errors import CallerError
from tenure.layers.linear import LINEAR_BACKENDS, Activation, linear_factory

CPU = torch.device("cpu")


@pytest.mark.parametrize("backend", LINEAR_BACKENDS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 16, 130])
def test_product_and_sum(rows: int, biased: bool, backend: str) -> None:
    torch.manual_seed(0)
    weight, bias, x, residual = torch.randn(70, 36), torch.randn(70), torch.randn(rows, 36), torch.randn(rows, 70)
    kept = residual.clone()
    with torch.inference_mode():
        linear = linear_factory(torch.float32, CPU, backend)(weight, bias if biased else None)
        expected = (x.double() @ weight.double().T + (bias.double() if biased else 0)).float()
        torch.testing.assert_close(linear(x), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(linear.add(x, residual), residual + expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(residual, kept)
    assert linear.nbytes == 4 * (70 * 36 + (70 if biased else 0))


FUNCTIONS = {
    Activation.NONE: lambda x: x,
    Activation.GELU: torch.nn.functional.gelu,
    Activation.GELU_TANH: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    Activation.RELU: torch.relu,
    Activation.TANH: torch.tanh,
}


@pytest.mark.parametrize("backend", LINEAR_BACKENDS)
@pytest.mark.parametrize("activation", Activation)
def test_what_follows_the_product(activation: Activation, backend: str) -> None:
    torch.manual_seed(1)
    weight, bias, x = torch.randn(70, 36), torch.randn(70), torch.randn(19, 36)
    with torch.inference_mode():
        linear = linear_factory(torch.float32, CPU, backend)(weight, bias)
        expected = FUNCTIONS[activation](x.double() @ weight.double().T + bias.double()).float()
        torch.testing.assert_close(linear.activated(x, activation), expected, atol=1e-4, rtol=1e-4)


def test_an_unknown_back_end_is_refused() -> None:
    with pytest.raises(CallerError, match="no linear back end 'magic'"):
        linear_factory(torch.float32, CPU, "magic")


def test_element_types_that_cannot_be_packed_fall_back() -> None:
    with torch.inference_mode():
        linear = linear_factory(torch.float64, CPU)(torch.eye(3, dtype=torch.float64), None)
        assert torch.equal(linear(torch.ones(2, 3, dtype=torch.float64)), torch.ones(2, 3, dtype=torch.float64))
