"""Each operator's own sampler: float form as torch, integer form equal in every implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.dtype import QuantDType, qint8, qint16
from qtune.ops.registry import specs
from qtune.ops.spec import OpSpec, Rule, Sample
from qtune.testing.fuzzing.bars import table_bar
from qtune.testing.fuzzing.operands import DOMAINS

from .rig import Case, Operand

FAMILIES = ("elementwise", "activation", "reduce")
ENTRIES = [entry for entry in specs().values() if entry.family in FAMILIES]
POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "div", "pow", "addcdiv")
MASK_ROLES = ("condition", "mask")
SEVERAL = ("max", "min", "aminmax", "topk", "sort")
"""Operators with two results, which a Case does not hold; test_ordering.py has those of topk."""
BARS = {"sum": 2, "add": 2, "sub": 2, "cumsum": 2}
"""int16 bars of numerics.md section 3; everything else has at most one step, tables: see bars."""

FUSED = ("lerp", "addcmul", "addcdiv")


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
        if entry.name in DOMAINS:
            x = torch.from_numpy(rng.uniform(*DOMAINS[entry.name], shape).astype(np.float32))
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
    if entry.name in ("mean", "sum", "amax", "amin", "any", "all") and attrs["dim"] is None:
        attrs["keepdim"] = True
    return Case(entry.name, operands(entry, sample, dtype, seed), attrs, out=dtype or qint8)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_float_form_is_torchs(entry: OpSpec) -> None:
    for seed in range(2):
        case = sampled(entry, None, seed)
        if entry.name in SEVERAL:
            first, second = case.spec.float_kernel(case.operands[0].data, **case.attrs)  # type: ignore[misc]
            assert first.shape == second.shape
            continue
        result = case.qat[0].run(case.feed)["y"]
        # torch fuses their multiplication and addition: one rounding less.
        rtol = 1e-5 if entry.name in FUSED else 0.0
        torch.testing.assert_close(result, case.expected, rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize("dtype", [qint8, qint16])
@pytest.mark.parametrize(
    "entry",
    [e for e in ENTRIES if e.rule is not Rule.DECOMPOSED and e.name not in SEVERAL],
    ids=lambda entry: entry.name,
)
def test_integer_form_agrees_everywhere(entry: OpSpec, dtype: QuantDType) -> None:
    for seed in range(2):
        case = sampled(entry, dtype, seed)
        distance = case.check()
        if entry.rule is Rule.NO_SCALE:
            continue  # pairs within the multipliers' precision may change sides
        bar = BARS.get(entry.name, table_bar(entry.name)) if dtype is qint16 else 1.0
        assert distance <= bar + 0.01, case.attrs


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_flops_count_elements(entry: OpSpec) -> None:
    assert entry.flops is not None
    assert entry.flops({}, ((2, 3, 4), (2, 3, 4)), (2, 3, 4)) == 24
