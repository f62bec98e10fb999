"""All row back ends do the same sums, row by row."""

import pytest
import torch

from tenure.errors import CallerError
from tenure.kernels import native
from tenure.layers.rowwise import ROW_BACKENDS, RowKernels, row_kernels

CPU = torch.device("cpu")
SIZES = [(1, 576), (16, 576), (5, 33), (3, 7), (300, 100), (0, 16)]


@pytest.fixture(params=ROW_BACKENDS)
def kernels(request: pytest.FixtureRequest) -> RowKernels:
    if request.param == "native" and not native.available():
        pytest.skip("the native kernels were not built")
    return row_kernels(torch.float32, CPU, request.param)


@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_norm(kernels: RowKernels, rows: int, width: int) -> None:
    random = torch.Generator().manual_seed(0)
    x, weight = torch.randn(rows, width, generator=random) * 3, torch.randn(width, generator=random)
    expected = x / (x.double() ** 2).mean(1, keepdim=True).add(1e-5).sqrt() * weight
    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-5), expected.float(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_activation(kernels: RowKernels, rows: int, width: int) -> None:
    gate_up = torch.randn(rows, 2 * width, generator=torch.Generator().manual_seed(0)) * 20
    gate, up = gate_up.double().chunk(2, dim=1)
    torch.testing.assert_close(kernels.silu_mul(gate_up), (gate.sigmoid() * gate * up).float(), atol=1e-6, rtol=1e-6)


def test_activation_of_large_values(kernels: RowKernels) -> None:
    gate = torch.tensor([[-1e30, -200.0, -88.0, -0.0, 88.0, 200.0, 1e30]])
    expected = torch.tensor([[0.0, 0.0, 0.0, 0.0, 88.0, 200.0, 1e30]])
    torch.testing.assert_close(kernels.silu_mul(torch.cat([gate, torch.ones_like(gate)], 1)), expected)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("column", [0, 20])
def test_what_is_not_finite_stays_in_its_row_and_is_not_lost(kernels: RowKernels, column: int, value: float) -> None:
    x = torch.ones(3, 22)
    x[1, column] = value
    for out in (kernels.rms_norm(x, torch.ones(22), 1e-5), kernels.silu_mul(x)):
        assert not out[1].isfinite().all()
        assert out[[0, 2]].isfinite().all()


def test_an_unknown_back_end_is_refused() -> None:
    with pytest.raises(CallerError, match="no row back end 'magic'"):
        row_kernels(torch.float32, CPU, "magic")


def test_native_rows_are_refused_for_other_element_types() -> None:
    with pytest.raises(CallerError, match="row back end 'native' cannot run"):
        row_kernels(torch.bfloat16, CPU, "native")
    with torch.inference_mode():
        assert (
            row_kernels(torch.bfloat16, CPU).rms_norm(torch.ones(1, 4).bfloat16(), torch.ones(4).bfloat16(), 0.0)[0, 0]
            == 1
        )
