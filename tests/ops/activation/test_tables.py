"""Table operators: int8 and int16 tables of torch's own functions (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qtune.arith.quantize import quantize, scale_from_absmax
from qtune.arith.segments import SegmentOptions
from qtune.arith.table import int8_table
from qtune.arith_fast.fake_quantize import fake_quantize
from qtune.dtype import qint8, qint16
from qtune.errors import NonFiniteError
from qtune.ops.activation.segment_module import Elementwise
from qtune.ops.registry import specs
from qtune.ops.spec import OpSpec, Rule
from qtune.testing.fuzzing.bars import JUMPING, table_bar
from qtune.testing.fuzzing.operands import DOMAINS
from tests.ops.elementwise.rig import Case, Operand, randn

TABLES = [entry for entry in specs().values() if entry.rule is Rule.TABLE]
ATTRS: dict[str, dict[str, Any]] = {
    "leaky_relu": {"negative_slope": 0.1},
    "gelu": {"approximate": "tanh"},
    "softplus": {"beta": 2.0, "threshold": 3.0},
    "elu": {"alpha": 0.7},
    "celu": {"alpha": 0.7},
    "hardshrink": {"lambd": 0.7},
    "softshrink": {"lambd": 0.7},
    "segment_lut": {"simulated_func": Elementwise(torch.tanh), "table_options": SegmentOptions()},
}
POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal")


def data(entry: OpSpec) -> torch.Tensor:
    x = randn(2, 3, 6, 7, scale=2.0)
    if entry.name in DOMAINS:
        low, high = DOMAINS[entry.name]
        x = low + (high - low) * torch.sigmoid(x)
    return x.abs() + 0.5 if entry.name in POSITIVE else x


def attrs(entry: OpSpec) -> dict[str, Any]:
    if entry.name in ATTRS:
        return ATTRS[entry.name]
    assert entry.sample is not None
    return dict(entry.sample(np.random.default_rng(0)).attrs)


@pytest.fixture(params=TABLES, ids=lambda entry: entry.name)
def entry(request: pytest.FixtureRequest) -> OpSpec:
    found: OpSpec = request.param
    return found


def test_int8_table_is_the_double_function_rounded_once(entry: OpSpec) -> None:
    case = Case(entry.name, [Operand(data(entry))], attrs(entry))
    assert case.check() <= 1  # the float graph computes in float32: 1 where that crosses a tie
    assert entry.float_kernel is not None
    real = entry.float_kernel(case.operands[0].grid.double(), **attrs(entry))
    validated = fake_quantize(real, case.scale, qint8.qmin, qint8.qmax)
    assert torch.equal(case.run_integer().double(), validated.float().double())


def test_int16_table_is_within_its_bar(entry: OpSpec) -> None:
    case = Case(entry.name, [Operand(data(entry), qint16)], attrs(entry), out=qint16)
    # Bars of numerics.md section 3; the steps are floats, hence the 0.01.
    assert case.check() <= table_bar(entry.name) + 0.01
    assert case.op_types == ["Lut16"]


def test_tables_change_the_dtype(entry: OpSpec) -> None:
    x = data(entry)
    to16 = Case(entry.name, [Operand(x, qint8)], attrs(entry), out=qint16)
    assert to16.check() <= 1.01
    assert to16.op_types == ["Lut8"]
    to8 = Case(entry.name, [Operand(x, qint16)], attrs(entry), out=qint8)
    assert to8.check() <= (table_bar(entry.name) if entry.name in JUMPING else 1) + 0.01
    assert to8.op_types == ["Lut16"]


def test_float_form_is_torch_bit_for_bit(entry: OpSpec) -> None:
    """Outside the quantized region the operator stays float, before and after convert."""
    case = Case(entry.name, [Operand(data(entry), None)], attrs(entry), out_scale=0.02)
    codes = case.quantized[0].run(case.feed)["y"]
    assert torch.equal(case.qat[0].run(case.feed)["y"], case.expected)
    assert torch.equal(codes, case.expected)


def test_table_function_is_torch_in_double(entry: OpSpec) -> None:
    assert entry.table is not None
    assert entry.float_kernel is not None
    x = data(entry).double().flatten()
    got = entry.table(attrs(entry))(x.numpy())
    assert got.dtype == np.float64
    torch.testing.assert_close(
        torch.from_numpy(got), entry.float_kernel(x, **attrs(entry)), rtol=0, atol=0
    )


def test_ties_in_table_entries_round_up() -> None:
    """A21: entries are rounded half up like everything else."""
    half = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5]) * 2  # exact at scale 1 after the table
    table = int8_table(lambda x: x / 2, 1.0, 1.0)
    assert table[half.long().numpy() + 128].tolist() == [1, 2, 3, 0, -1, -2]


def test_undefined_codes_take_the_nearest_defined_value() -> None:
    operand = Operand(torch.linspace(0.1, 4.0, 50))
    for op in ("log", "sqrt", "rsqrt"):
        case = Case(op, [operand])
        node = next(n for n in case.quantized.model.graph if n.op_type == "Lut8")
        table = node.inputs[1]
        assert table is not None
        assert table.const_value is not None
        entries = table.const_value.numpy()
        assert set(entries[:128].tolist()) == {int(entries[128])}


def test_nan_never_becomes_a_code() -> None:
    scale = float(scale_from_absmax(1.0, qint8))
    with pytest.raises(NonFiniteError):
        quantize(np.array([float("nan")]), scale, qint8)
    with pytest.raises(NonFiniteError):
        int8_table(lambda x: x * float("nan"), scale, scale)


def test_clamp_behind_a_table_joins_its_entries() -> None:
    from qtune.ops.activation.table_rule import deferred_table
    from tests.ops.gemm.eager import EagerContext, quantized

    for dtype in (qint8, qint16):
        x = quantized(randn(200), 4 / dtype.qmax, dtype)
        ctx = EagerContext()
        pending = deferred_table(x, np.tanh).clamp(ctx, 0.0, 0.5)
        assert pending is not None
        y = pending.emit(ctx, 1 / dtype.divisor, dtype)
        high = int(quantize(np.float32(0.5), 1 / dtype.divisor, dtype))
        assert (y.code_min, y.code_max) == (0, high)
        assert (y.value.codes.min(), y.value.codes.max()) == (0, high)
