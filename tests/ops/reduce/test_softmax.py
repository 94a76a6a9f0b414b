"""softmax and log_softmax: decomposed, int16 inside (numerics.md section 3)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from qtune.arith.quantize import scale_from_absmax
from qtune.arith_fast.fake_quantize import fake_quantize
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType, qint8, qint16
from qtune.ops.reduce.normalizing import dimension
from qtune.ops.registry import find_module, spec
from qtune.ops.spec import Bound
from tests.ops.elementwise.rig import randn

from .decomposing import CalibratingBuilder, Decomposed

X = randn(4, 3, 17, scale=3.0)

ALONG_LAST = {"dim": -1, "dtype": None}


def test_softmax_is_made_of_the_documented_parts_in_int16() -> None:
    builder = Decomposed("softmax", X, ALONG_LAST).builder
    assert list(builder.parts) == ["max", "sub", "exp", "sum", "reciprocal", "mul"]
    dtypes = {name: part.dtype for name, part in builder.parts.items()}
    assert dtypes.pop("max") is qint8  # keeps the input's grid
    assert dtypes.pop("mul") is qint8  # the configured dtype
    assert set(dtypes.values()) == {qint16}


@pytest.mark.parametrize("dtype", [qint8, qint16])
@pytest.mark.parametrize("dim", [-1, 1, 0])
def test_rows_of_int16_softmax_sum_to_one(dtype: QuantDType, dim: int) -> None:
    soft = Decomposed("softmax", X, {"dim": dim, "dtype": None}, dtype, qint16)
    total = soft.run().sum(dim)
    assert float((total - 1).abs().max()) < 0.02


SHAPES = [(32, 10), (16, 197), (8, 1000), (4, 4096)]


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 10.0, 30.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_long_and_short_rows_keep_their_bars(shape: tuple[int, int], scale: float) -> None:
    """numerics.md section 3: int16 rows sum to 1 within 2 %, int8 entries are one step off."""
    x = randn(*shape, scale=scale)
    total = Decomposed("softmax", x, ALONG_LAST, qint16, qint16).run().sum(-1)
    assert float((total - 1).abs().max()) < 0.02
    for dtype in (qint8, qint16):
        soft = Decomposed("softmax", x, ALONG_LAST, dtype, qint8)
        step = float(scale_from_absmax(x.abs().max().numpy(), dtype))
        on_grid = fake_quantize(x, step, dtype.qmin, dtype.qmax).double()
        steps = (soft.run() - torch.softmax(on_grid, -1)).abs() / soft.result.scale
        assert float(steps.max()) <= 1


def test_rows_of_very_different_sharpness_keep_their_bar() -> None:
    """Flat rows sum up to 40 times what peaked ones do, so their reciprocals are small."""
    x = randn(32, 50) * torch.logspace(-2, 1.5, 32)[:, None]
    soft = Decomposed("softmax", x, ALONG_LAST, qint16, qint16)
    assert float((soft.run().sum(-1) - 1).abs().max()) < 0.02


@pytest.mark.parametrize("out", [qint8, qint16])
def test_softmax_is_near_torch(out: QuantDType) -> None:
    soft = Decomposed("softmax", X, ALONG_LAST, qint16, out)
    error = float((soft.run() - torch.softmax(X, -1)).abs().max())
    # One output step, and 2e-3 of a value below 1 for the chain of int16 parts.
    assert error <= soft.result.scale + 2e-3


def test_integer_softmax_is_within_its_bars_of_the_fake_quantized_one() -> None:
    soft = Decomposed("softmax", X, ALONG_LAST)
    qat = soft.qat[0].run({"x": X})["y"]
    steps = (soft.run() - qat).abs() / soft.result.scale
    assert float(steps.max()) <= 1.01  # int8 steps


def test_softmax_runs_in_onnxruntime_with_the_same_bits() -> None:
    soft = Decomposed("softmax", X, ALONG_LAST)
    by_ort = run_in_onnxruntime(soft.quantized, {"x": X.numpy()})["y"]
    np.testing.assert_array_equal(by_ort, soft.run().numpy())


def test_equal_inputs_share_evenly_and_masked_ones_vanish() -> None:
    flat = Decomposed("softmax", torch.full((2, 4), 3.0), ALONG_LAST, qint8, qint16).run()
    assert float((flat - 0.25).abs().max()) < 1e-3  # 33 of the 32768 steps of int16
    masked = torch.tensor([[0.0, -100.0, 0.0, -100.0]])
    soft = Decomposed("softmax", masked, ALONG_LAST, qint16, qint16).run()
    assert float((soft - torch.tensor([[0.5, 0, 0.5, 0]])).abs().max()) < 0.01


def test_log_softmax_is_near_torch() -> None:
    x = X.clamp(-4, 4)
    soft = Decomposed("log_softmax", x, ALONG_LAST, qint16, qint16)
    error = float((soft.run() - torch.log_softmax(x, -1)).abs().max())
    # The log table may be off by 5 steps near its steep end, exp and sum by a few more.
    assert error <= 20 * soft.result.scale


def test_implicit_dimension_is_torchs() -> None:
    assert [dimension(None, rank) for rank in range(5)] == [0, 0, 1, 0, 1]
    assert dimension(-1, 4) == -1


def test_softmax2d_and_its_subclasses_take_the_channels() -> None:
    class Own(nn.Softmax2d):
        pass

    entry, target = find_module(Own) or pytest.fail("no operator")
    bound = target.bind(Own(), X)
    assert (entry.name, bound.attrs["dim"]) == ("softmax", -3)


def test_softmax_to_another_dtype_is_refused_by_name() -> None:
    builder = CalibratingBuilder(qint8)
    x = builder.input(X, qint8)
    decompose = spec("softmax").decompose
    assert decompose is not None
    with pytest.raises(NotImplementedError, match="dtype=torch.float64"):
        decompose(builder, Bound((x,), {"dim": -1, "dtype": torch.float64}))
    decompose(builder, Bound((x,), {"dim": -1, "dtype": torch.float32}))
