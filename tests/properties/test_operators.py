"""For every operator of the registry: fake-quant against integers, and every path against NumPy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qtune.dtype import QuantDType, qint8, qint16
from qtune.ops.registry import specs
from qtune.ops.spec import OpSpec, Rule
from qtune.quantization import FakeQuantState, set_fake_quantize
from qtune.testing.fuzzing.bars import ROUNDED, bar
from qtune.testing.fuzzing.operands import owned_roles

from .harness import build, flat, prepared_model, run_line

# torch says once that such a padding copies the input; no operator is wrong for it
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")

SPECS = sorted(specs().values(), key=lambda entry: entry.name)

few = settings(max_examples=4, deadline=None, derandomize=True, database=None)
each_spec = pytest.mark.parametrize("entry", SPECS, ids=lambda entry: entry.name)
seeds = st.integers(0, 2**16)
dtypes = st.sampled_from([qint8, qint16])


def scaled(data: tuple[Tensor, ...], factor: float) -> tuple[Tensor, ...]:
    return tuple(x * factor if x.is_floating_point() else x for x in data)


@pytest.mark.parametrize("dtype", [qint8, qint16], ids=str)
@each_spec
@settings(few, max_examples=2)
@given(seed=seeds)
def test_integers_follow_the_fake_quant_model(entry: OpSpec, seed: int, dtype: QuantDType) -> None:
    model, data = build(entry, seed)
    line, inputs = run_line(model, data, data, dtype), data
    for distance, in_steps in line.distances():
        allowed = bar(entry, dtype, line.prepared, inputs) + ROUNDED if in_steps else 0.0
        assert distance <= allowed, f"{entry.name} {model.op.attrs}"


@pytest.mark.parametrize(
    "entry",
    # An int16 table is made for the calibrated range, the function behind it is not.
    [entry for entry in SPECS if entry.rule in (Rule.INPUT_SCALE, Rule.OWN_SCALE)],
    ids=lambda entry: entry.name,
)
@few
@given(seed=seeds, dtype=dtypes, factor=st.sampled_from([8.0, -1.0, 1e30, 0.0]))
def test_integers_follow_the_fake_quant_model_far_outside_the_calibrated_range(
    entry: OpSpec, seed: int, dtype: QuantDType, factor: float
) -> None:
    model, data = build(entry, seed)
    inputs = scaled(data, factor)
    line = run_line(model, data, inputs, dtype)
    for distance, in_steps in line.distances():
        allowed = bar(entry, dtype, line.prepared, inputs) + ROUNDED if in_steps else 0.0
        assert distance <= allowed, f"{entry.name} {model.op.attrs}"


@each_spec
@settings(few, max_examples=2)
@given(seed=seeds)
def test_float_state_is_torchs_own_function(entry: OpSpec, seed: int) -> None:
    model, data = build(entry, seed)
    prepared = prepared_model(model, data, qint8)
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    with torch.no_grad():
        pairs = list(zip(flat(prepared(*data)), flat(model(*data)), strict=True))
    for left, right in pairs:
        assert left.dtype == right.dtype
        if entry.rule is Rule.DECOMPOSED:
            # Other operators in another order: numerics.md section 5 allows 1e-5 relative.
            torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(left, right)


@each_spec
def test_model_of_the_operator_takes_data_and_owns_what_modules_own(entry: OpSpec) -> None:
    model, data = build(entry, 0)
    assert bool(list(model.parameters())) == bool(owned_roles(entry))
    assert data
