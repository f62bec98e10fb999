"""All linear back ends do the same sums."""

import pytest
import torch

from tenure.errors import CallerError
from tenure.kernels import native
from tenure.layers.linear import LINEAR_BACKENDS, Activation, linear_factory
from tests.layers.threads import threads as using

CPU = torch.device("cpu")
CAN_MULTIPLY = native.can_run_avx512(torch.float32, CPU)
needs_native = pytest.mark.skipif(not CAN_MULTIPLY, reason="no native products with this processor or installation")
BACKENDS = [pytest.param(name, marks=needs_native) if name == "native" else name for name in LINEAR_BACKENDS]


@pytest.mark.parametrize("backend", BACKENDS)
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_need_not_lie_together(backend: str) -> None:
    torch.manual_seed(3)
    weight, x, residual = torch.randn(600, 600), torch.randn(8, 600), torch.randn(8, 600)
    with torch.inference_mode():
        linear = linear_factory(torch.float32, CPU, backend)(weight.T.contiguous().T, None)
        found = linear.add(x.T.contiguous().T, residual.T.contiguous().T)
        torch.testing.assert_close(found, residual + x @ weight.T, atol=1e-4, rtol=1e-4)


FUNCTIONS = {
    Activation.NONE: lambda x: x,
    Activation.GELU: torch.nn.functional.gelu,
    Activation.GELU_TANH: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    Activation.RELU: torch.relu,
    Activation.TANH: torch.tanh,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", Activation)
def test_what_follows_the_product(activation: Activation, backend: str) -> None:
    torch.manual_seed(1)
    weight, bias, x = torch.randn(70, 36), torch.randn(70), torch.randn(19, 36)
    with torch.inference_mode():
        linear = linear_factory(torch.float32, CPU, backend)(weight, bias)
        expected = FUNCTIONS[activation](x.double() @ weight.double().T + bias.double()).float()
        torch.testing.assert_close(linear.activated(x, activation), expected, atol=1e-4, rtol=1e-4)


@needs_native
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(576, 960), (1537, 576), (2048, 1056), (1024, 70), (37, 33), (3, 1000), (4, 1)]
)
def test_native_products_of_a_row_are_the_same_in_any_batch(inputs: int, outputs: int) -> None:
    """To the last bit, on any number of threads; a number that is not finite stays in its row."""
    torch.manual_seed(2)
    weight, x, residual = torch.randn(outputs, inputs), torch.randn(131, inputs), torch.randn(131, outputs)
    x[7, inputs // 2] = torch.nan
    with torch.inference_mode():
        linear = linear_factory(torch.float32, CPU, "native")(weight, None)
        with using(1):
            whole, added = linear(x), linear.add(x, residual)
        for threads in (1, 2, 5):
            with using(threads):
                for first in range(0, 131, threads):
                    for count in (1, 2, 11, 12, 13, 16, 50, 131):
                        rows = slice(first, min(first + count, 131))
                        torch.testing.assert_close(linear(x[rows]), whole[rows], rtol=0, atol=0, equal_nan=True)
                        found = linear.add(x[rows], residual[rows])
                        torch.testing.assert_close(found, added[rows], rtol=0, atol=0, equal_nan=True)
        close = 0 if inputs <= 1536 else 1e-4  # of more, sums begin with what is added
        torch.testing.assert_close(added, whole + residual, rtol=close, atol=close, equal_nan=True)
    assert whole.isnan().any(1).nonzero().flatten().tolist() == [7]
    assert linear(x[:0]).shape == (0, outputs)


@needs_native
def test_native_products_are_for_float32() -> None:
    assert linear_factory(torch.float32, CPU) is LINEAR_BACKENDS["native"]
    assert linear_factory(torch.float64, CPU) is LINEAR_BACKENDS["torch"]
    with pytest.raises(CallerError, match="linear back end 'native' cannot run"):
        linear_factory(torch.float64, CPU, "native")


def test_an_unknown_back_end_is_refused() -> None:
    with pytest.raises(CallerError, match="no linear back end 'magic'"):
        linear_factory(torch.float32, CPU, "magic")


def test_element_types_that_cannot_be_packed_fall_back() -> None:
    with torch.inference_mode():
        linear = linear_factory(torch.float64, CPU)(torch.eye(3, dtype=torch.float64), None)
        assert torch.equal(linear(torch.ones(2, 3, dtype=torch.float64)), torch.ones(2, 3, dtype=torch.float64))
