"""A softmax calibrated in float: its int16 sum has room for what the integers make of the data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from qtune import march
from qtune.dtype import QuantDType, qint8, qint16
from qtune.quantization import QconfigSetter, get_qconfig
from qtune.quantization.hbdk4 import convert, export
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from qtune.quantizers.fake_quantize import FakeQuantize
from tests.quantization.flow import calib, op, out_scale, prep, s16, scales


@pytest.fixture(autouse=True)
def _march(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A march, seeded data, no run files."""
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    torch.manual_seed(0)
    with march.march("nash-e"):
        yield


def calibrated_in_float(
    x: torch.Tensor, dtype: QuantDType, test: torch.Tensor | None = None
) -> tuple[torch.Tensor, FakeQuantize, torch.Tensor]:
    """A softmax of int8 data, calibrated on ``x`` as it is: the data on their grid, the
    fake-quantize of the result, and what the integers give for ``test`` (or ``x``).
    """
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint8, "0": dtype})])
    model = prep(nn.Sequential(nn.Softmax(-1)), x, qconfig_setter=setter)
    calib(model, [x])
    test = x if test is None else test
    stub, *_, last = (op.activation_post_process for _, op in list(model.operators())[:-1])
    assert isinstance(stub, FakeQuantize)
    assert isinstance(last, FakeQuantize)
    assert (stub.dtype, last.dtype) == (qint8, dtype)
    function = convert(export(model, (x,)), "nash-e")[0]
    (got,) = function.run({function.inputs[0].name: test}).values()
    return stub(test), last, got


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0, 10.0, 30.0])
@pytest.mark.parametrize("shape", [(32, 10), (16, 197), (8, 1000), (4, 4096)], ids=str)
def test_ties_that_the_grid_of_the_input_makes_do_not_saturate_the_sum(
    shape: tuple[int, int], scale: float
) -> None:
    """Calibration sees floats; on the int8 grid several of them are the largest of their row."""
    x = scale * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for dtype in (qint8, qint16):
        on_grid, result, got = calibrated_in_float(x, dtype)
        right = torch.softmax(on_grid.double(), -1)
        in_range = right.clamp(max=float(result.scale) * result.quant_max)
        steps = (got - in_range).abs() / result.scale
        if dtype is qint8:
            assert float(steps.max()) <= 1
        else:
            # What lies beyond the result's own range is missing from a row, as in every operator.
            lost = (right - in_range).sum(-1)
            assert float((got.sum(-1) + lost - 1).abs().max()) < 0.02


def test_unseen_rows_may_sum_to_twice_what_calibration_saw() -> None:
    seen = torch.tensor([[4.0, 0.0, 0.0, 0.0, -4.0], [4.0, 1.0, 0.0, 0.0, 0.0]])
    unseen = torch.tensor([[4.0, 4.0, 0.0, 0.0, 0.0], [4.0, -4.0, -4.0, -4.0, -4.0]])
    on_grid, _, got = calibrated_in_float(seen, qint16, unseen)
    right = torch.softmax(on_grid.double(), -1)
    # One step of an int8 input in 4 is 3 % of a power; the sum itself is exact to 0.1 %.
    assert float((got - right)[0].abs().max()) < 2e-3


def test_known_bounds_limit_the_headroom() -> None:
    x = torch.zeros(3, 5)  # all powers are 1, no sum can be larger than 5
    model = prep(nn.Sequential(nn.Softmax(-1)), x)
    calib(model, [x])
    assert out_scale(model, "0.sum") == s16(5.0)
    assert out_scale(model, "0.reciprocal") == s16(2 * 0.2)
    inverse = op(model, "0.reciprocal").activation_post_process
    assert inverse is not None
    low, high = (float(value) for value in inverse.observed_range())
    # one int16 step of rounding
    assert (low, high) == pytest.approx((0.2, 0.4), abs=s16(0.4))


def test_bounds_of_the_example_give_way_to_data_of_a_larger_size() -> None:
    model = prep(nn.Sequential(nn.Softmax(-1)), torch.zeros(3, 5))
    calib(model, [torch.zeros(3, 20)])
    assert out_scale(model, "0.sum") == s16(2 * 20.0)
    inverse = op(model, "0.reciprocal").activation_post_process
    assert inverse is not None
    low, high = (float(value) for value in inverse.observed_range())
    # one int16 step of rounding
    assert (low, high) == pytest.approx((0.025, 0.1), abs=s16(0.1))


def test_a_scale_with_headroom_survives_saving_and_a_scale_by_hand_has_none() -> None:
    x = 5 * torch.randn(4, 9)
    model, other = (prep(nn.Sequential(nn.Softmax(-1)), x) for _ in range(2))
    calib(model, [x])
    other.load_state_dict(model.state_dict())
    assert scales(other) == scales(model)
    total = op(model, "0.sum").activation_post_process
    assert total is not None
    observed = total.activation_post_process.calculate_scale()
    assert torch.equal(total.scale, 2 * observed)
    total.set_qparams(0.25)
    assert float(total.scale) == 0.25
