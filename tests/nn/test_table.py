"""Look-up tables of the pre-export model."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from qtune.arith.quantize import quantize
from qtune.arith.table import int8_table, lookup, segment_table
from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import NonFiniteError
from qtune.nn.qat import QATOp, qat_class
from qtune.nn.table import TableOp, TableSource, make_table
from qtune.ops.registry import find_module
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState, set_fake_quantize


def sigmoid(dtype: QuantDType) -> QATOp:
    found = find_module(nn.Sigmoid)
    assert found is not None
    op = qat_class(found[0], nn.Sigmoid)("sigmoid", "s", {})
    op.activation_post_process = FakeQuantize(dtype=dtype, name="s")
    op.activation_post_process.set_qparams(1 / 128 if dtype is qint8 else 1 / 32768)
    return op.eval()


def source(dtype: QuantDType, low: float, high: float) -> FakeQuantize:
    quantizer = FakeQuantize(dtype=dtype, name="x")
    set_fake_quantize(quantizer, FakeQuantState.CALIBRATION)
    quantizer(torch.tensor([low, high]))
    return quantizer


def test_an_int8_table_holds_the_256_entries_of_the_definition() -> None:
    stub = source(qint8, -6.0, 4.0)
    table = make_table(sigmoid(qint8), TableSource(stub))
    expected = int8_table(lambda a: 1 / (1 + np.exp(-a)), float(stub.scale), 1 / 128)
    assert table.entries.dtype == torch.int64
    assert np.array_equal(table.entries.numpy(), expected)


def test_the_int8_table_equals_validation_on_every_code() -> None:
    stub, op = source(qint8, -6.0, 4.0), sigmoid(qint8)
    x = torch.arange(-128, 128) * stub.scale
    set_fake_quantize(op, FakeQuantState.VALIDATION)
    assert torch.equal(make_table(op, TableSource(stub))(x), op(x))


def test_an_int16_table_covers_the_observed_range_and_errs_one_step_at_most() -> None:
    stub, op = source(qint16, -6.0, 4.0), sigmoid(qint16)
    table = make_table(op, TableSource(stub))
    codes = quantize(np.array([-6.0, 4.0], np.float32), float(stub.scale), qint16)
    assert [int(table.first[0]), int(table.last[-1])] == codes.tolist()
    x = torch.arange(codes[0], codes[1] + 1) * stub.scale
    set_fake_quantize(op, FakeQuantState.VALIDATION)
    steps = (table(x) - op(x)).abs() * 32768
    assert steps.max() <= 1


def test_the_forward_is_the_reference_lookup() -> None:
    stub, op = source(qint16, -6.0, 4.0), sigmoid(qint16)
    table = make_table(op, TableSource(stub))
    x = torch.linspace(-8, 8, 4001)
    codes = quantize(x.numpy(), float(stub.scale), qint16)
    reference = lookup(table.table, codes, qint16)
    got = table(x)
    assert np.array_equal(quantize(got.numpy(), 1 / 32768, qint16), reference)


def test_a_fixed_scale_without_data_covers_the_whole_grid() -> None:
    stub = FakeQuantize(dtype=qint16, name="x")
    stub.set_qparams(8 / 32768)
    table = make_table(sigmoid(qint16), TableSource(stub))
    assert (int(table.first[0]), int(table.last[-1])) == (-32768, 32767)
    expected = segment_table(
        lambda a: 1 / (1 + np.exp(-a)), 8 / 32768, 1 / 32768, -32768, 32767, qint16
    )
    assert table.error == expected.error


def test_tables_copy_pickle_and_load() -> None:
    table = make_table(sigmoid(qint8), TableSource(source(qint8, -3.0, 3.0)))
    x = torch.randn(3, 4)
    expected = table(x)
    for other in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert isinstance(other, TableOp)
        assert torch.equal(other(x), expected)


def test_shapes_empty_tensors_and_dtypes_pass() -> None:
    table = make_table(sigmoid(qint8), TableSource(source(qint8, -3.0, 3.0)))
    assert table(torch.zeros(0, 3)).shape == (0, 3)
    assert table(torch.zeros(2, 3, dtype=torch.half)).dtype == torch.half


def test_nan_raises_and_float_state_is_torchs_function() -> None:
    table = make_table(sigmoid(qint8), TableSource(source(qint8, -3.0, 3.0)))
    with pytest.raises(NonFiniteError):
        table(torch.tensor([float("nan")]))
    set_fake_quantize(table, FakeQuantState._FLOAT)
    x = torch.randn(5)
    assert torch.equal(table(x), torch.sigmoid(x))
