"""Each operator's own sampler: float form as torch, integer form equal in every implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.dtype import QuantDType, qint8, qint16
from qtune.ops.registry import specs
from qtune.ops.spec import OpSpec, Rule, Sample

from .rig import Case, Operand

FAMILIES = ("elementwise", "activation", "reduce")
ENTRIES = [entry for entry in specs().values() if entry.family in FAMILIES]
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal", "div", "pow")
MASK_ROLES = ("condition", "mask")
BARS = {"sum": 2, "add": 2, "sub": 2, "reciprocal": 5, "rsqrt": 5, "log": 5, "sqrt": 5}
"""int16 bars of numerics.md section 3; everything else has at most one step."""


def operands(entry: OpSpec, sample: Sample, dtype: QuantDType | None, seed: int) -> list[Operand]:
    rng = np.random.default_rng(seed)
    found = []
    for index, (shape, role) in enumerate(zip(sample.shapes, entry.roles, strict=True)):
        if shape is None:
            if index in sample.numbers:
                found.append(Operand(sample.numbers[index], None))
            continue
        x = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
        x = x.abs() + 0.5 if entry.name in POSITIVE else x
        if role in MASK_ROLES or entry.name.startswith("logical_"):
            found.append(Operand(x > 0, None))
        elif role == entry.weight_role:
            weight = qint8 if dtype else None
            found.append(Operand(x, weight, constant=True, axis=0))
        else:
            found.append(Operand(x, dtype))
    return found


def sampled(entry: OpSpec, dtype: QuantDType | None, seed: int) -> Case:
    assert entry.sample is not None
    sample = entry.sample(np.random.default_rng(seed))
    attrs = dict(sample.attrs)
    if entry.name in ("mean", "sum", "amax", "amin") and attrs["dim"] is None:
        attrs["keepdim"] = True
    return Case(entry.name, operands(entry, sample, dtype, seed), attrs, out=dtype or qint8)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_float_form_is_torchs(entry: OpSpec) -> None:
    for seed in range(2):
        case = sampled(entry, None, seed)
        if entry.name == "max":
            values, index = case.spec.float_kernel(case.operands[0].data, **case.attrs)  # type: ignore[misc]
            assert index.dtype == torch.int64
            assert values.shape == index.shape
            continue
        assert torch.equal(case.qat[0].run(case.feed)["y"], case.expected)


@pytest.mark.parametrize("dtype", [qint8, qint16])
@pytest.mark.parametrize(
    "entry", [e for e in ENTRIES if e.rule is not Rule.DECOMPOSED], ids=lambda entry: entry.name
)
def test_integer_form_agrees_everywhere(entry: OpSpec, dtype: QuantDType) -> None:
    for seed in range(2):
        case = sampled(entry, dtype, seed)
        distance = case.check()
        if entry.rule is Rule.NO_SCALE:
            continue  # pairs within the multipliers' precision may change sides
        bar = BARS.get(entry.name, 1) if dtype is qint16 else 1
        assert distance <= bar + 0.01, case.attrs


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_flops_count_elements(entry: OpSpec) -> None:
    assert entry.flops is not None
    assert entry.flops({}, ((2, 3, 4), (2, 3, 4)), (2, 3, 4)) == 24
