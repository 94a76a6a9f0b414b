"""cat, stack and x[i] = y: everything is rescaled to the result's own scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.dtype import QuantDType, qint8
from qtune.ops.kernel import ExampleSize
from qtune.ops.registry import spec
from qtune.ops.spec import Rule

from .pipeline import DTYPES, build, check


def codes(results: list[np.ndarray], scale: float) -> np.ndarray:
    return np.round(results[0] / np.float32(scale)).astype(int)


def test_the_published_rescaling_of_a_concatenation() -> None:
    """numerics.md section 3: code -127 at 0.0234853 is -128 at 0.0233923."""
    x = torch.tensor([[-2.9826291, 0.0]])
    y = torch.tensor([[1.0]])
    line = build("cat", [x, y], {"dim": 1}, scales=[0.0234853, 0.0233923], scale=0.0233923)
    assert codes(line.integer_results([x, y]), line.scale)[0, 0] == -128


@pytest.mark.parametrize("first", [0, 1])
def test_a_wide_operand_is_not_clipped_by_a_narrow_one(first: int) -> None:
    """A24."""
    narrow, wide = torch.linspace(-1, 1, 101), torch.linspace(-50, 50, 101)
    tensors = [narrow, wide] if first == 0 else [wide, narrow]
    line = check("cat", tensors, {"dim": 0}, bar=1.0, scale=2 * 50 / 255)
    result = line.integer_results(tensors)[0]
    error = np.abs(result - torch.cat(tensors).numpy())
    # One rounding to the wide operand's own grid, which is the result's grid.
    assert error[101 * (1 - first) :][:101].max() <= line.scale / 2 * (1 + 1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_scales_move_codes_untouched(dtype: QuantDType) -> None:
    x = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
    line = build("cat", [x, x], {"dim": -1}, dtype, scales=[0.25, 0.25], scale=0.25)
    assert "Requantize" not in [node.op_type for node in line.quantized.model.graph]
    np.testing.assert_array_equal(line.integer_results([x, x])[0], line.float_results([x, x])[0])


def test_the_result_of_setitem_has_a_scale_of_its_own() -> None:
    """A15: y[:, 0] *= 2 leaves y's range, so that the new tensor needs its own scale."""
    assert spec("setitem").rule is Rule.OWN_SCALE
    y = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (2, 3, 4, 4)).astype(np.float32))
    doubled = y[:, 0] * 2
    line = check("setitem", [y, doubled], {"index": (slice(None), 0)}, bar=1.0)
    result = line.integer_results([y, doubled])[0]
    steps = result / np.float32(line.scale)
    assert np.abs(steps - np.round(steps)).max() < 1e-3
    assert result[:, 0].max() > 1.5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [0.0, 1.5, -3])
def test_a_number_is_assigned_as_a_code(value: float, dtype: QuantDType) -> None:
    x = torch.linspace(-3, 3, 48).reshape(2, 6, 4)
    attrs = {"index": (..., slice(1, None))}
    line = build("setitem", [x, value], attrs, dtype, scales=[2**-5, 1.0], scale=2**-5)
    result = line.integer_results([x])[0]
    np.testing.assert_array_equal(result, line.float_results([x])[0])
    assert (result[..., 1:] == np.float32(value)).all()


def test_setitem_leaves_its_operand_alone() -> None:
    kernel = spec("setitem").float_kernel
    assert kernel is not None
    x = torch.zeros(2, 3, requires_grad=True)
    result = kernel(x, 1.0, index=(0, slice(0, ExampleSize(2))))
    result.sum().backward()
    assert x.detach().abs().max() == 0
    assert x.grad is not None
    assert x.grad.tolist() == [[0, 0, 1], [1, 1, 1]]


def test_masks_and_indices_are_joined_as_they_are() -> None:
    ids = torch.arange(6).reshape(2, 3)
    line = build("cat", [ids, ids], {"dim": 0}, qint8, scales=[1.0, 1.0])
    assert "Requantize" not in [node.op_type for node in line.quantized.model.graph]
    assert line.integer_results([ids, ids])[0].tolist() == torch.cat([ids, ids]).tolist()


@pytest.mark.parametrize(
    ("shapes", "output", "words"),
    [
        ([(1, 2)] * 1024, (1, 131071), None),
        ([(1, 2)] * 1025, (1, 2050), "1025 inputs; at most 1024"),
        ([(1, 65536)] * 2, (1, 131072), "sizes below 131072"),
    ],
)
def test_nash_limits_the_number_of_inputs_and_the_sizes(
    shapes: list[tuple[int, ...]], output: tuple[int, ...], words: str | None
) -> None:
    (rule,) = (rule for rule in spec("cat").march if "nash" in rule.series)
    assert rule.check is not None
    found = rule.check({"dim": 1}, shapes, output)
    assert found is None if words is None else words in str(found)
