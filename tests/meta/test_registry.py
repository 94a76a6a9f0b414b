"""The registry is complete: every operator has what its rule demands, every kernel can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import defs
from torch import Tensor

from qtune.hbir.domain import DOMAIN, OPSET, body, domain_ops
from qtune.march import March
from qtune.ops import registry
from qtune.ops.kernel import HbirKernel
from qtune.ops.spec import (
    ALL_SERIES,
    FuseRole,
    MethodTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Target,
)
from qtune.testing.fuzzing.operands import slots

from .conftest import ROOT

SPECS = sorted(registry.specs().values(), key=lambda entry: entry.name)
KERNELS = sorted(registry.kernels().values(), key=lambda kernel: (kernel.domain, kernel.op_type))
DTYPES = {"qint8", "qint16", "qint32", "float32"}
SEEDS = range(5)

each_spec = pytest.mark.parametrize("entry", SPECS, ids=lambda entry: entry.name)
each_kernel = pytest.mark.parametrize(
    "kernel", KERNELS, ids=lambda kernel: f"{kernel.domain or 'onnx'}.{kernel.op_type}"
)


def owners() -> dict[tuple[str, str], OpSpec]:
    return {(k.domain, k.op_type): entry for entry in SPECS for k in entry.kernels}


@each_spec
def test_operator_lies_in_its_own_file_of_its_family(entry: OpSpec) -> None:
    path = ROOT / "qtune" / "ops" / entry.family / f"{entry.name}.py"
    assert path.is_file(), f"{entry.name} must be registered in {path.relative_to(ROOT)}"


def test_every_operator_file_registers_one_operator_at_most() -> None:
    for path in (ROOT / "qtune" / "ops").glob("*/*.py"):
        calls = path.read_text().count("register(\n    OpSpec(")
        assert calls <= 1, path.relative_to(ROOT)


@each_spec
def test_operator_has_every_field_that_its_rule_demands(entry: OpSpec) -> None:
    assert callable(entry.float_kernel)
    assert (entry.decompose is not None) == (entry.rule is Rule.DECOMPOSED)
    assert (entry.table is not None) == (entry.rule is Rule.TABLE)
    assert entry.lower is not None
    assert entry.flops is not None
    assert entry.sample is not None
    assert entry.doc == entry.doc.strip() != ""
    assert not entry.doc.endswith(".")
    assert len(set(entry.roles)) == len(entry.roles) > 0
    if entry.rule is Rule.TABLE:
        assert len(entry.roles) == 1, "a table is a function of one operand"


@each_spec
def test_weight_is_an_operand_with_an_axis(entry: OpSpec) -> None:
    if entry.weight_role is None:
        assert entry.weight_axis is None
        assert entry.weight_groups is None
    else:
        assert entry.weight_role in entry.roles
        assert entry.weight_axis is not None
    if entry.fuse is FuseRole.GEMM:
        assert entry.weight_role is not None


@each_spec
def test_modules_fill_roles_of_the_operator(entry: OpSpec) -> None:
    for target in entry.targets:
        if isinstance(target, ModuleTarget):
            assert set(target.params) <= set(entry.roles), target.cls
            assert issubclass(target.cls, torch.nn.Module)


@each_spec
def test_march_rules_speak_of_known_series_and_dtypes(entry: OpSpec) -> None:
    assert entry.march
    named = [series for rule in entry.march for series in rule.series]
    assert set(named) <= set(ALL_SERIES)
    assert len(named) == len(set(named)), "two rules for one series: which one holds?"
    assert "nash" in named, "nash is the series of the first deliverable"
    for rule in entry.march:
        assert set(rule.inputs) <= DTYPES
        assert set(rule.outputs) <= DTYPES
        assert rule.inputs
        assert rule.outputs


def test_series_are_those_of_the_marches() -> None:
    assert {march.series for march in March} == set(ALL_SERIES)


@each_spec
def test_sampled_calls_run_and_fit_the_limits_of_nash(entry: OpSpec) -> None:
    assert entry.sample is not None
    assert entry.float_kernel is not None
    (nash,) = [rule for rule in entry.march if "nash" in rule.series]
    for seed in SEEDS:
        sample = entry.sample(np.random.default_rng(seed))
        assert sample == entry.sample(np.random.default_rng(seed)), "the sampler is not seeded"
        rng = np.random.default_rng(seed)
        tensors = [slot.draw(rng, positive=True) for slot in slots(entry, sample)]
        with torch.no_grad():
            result = entry.float_kernel(*tensors, **sample.attrs)
        results = result if isinstance(result, (tuple, list)) else (result,)
        assert all(isinstance(item, Tensor) for item in results)
        assert all(bool(torch.isfinite(item).all()) for item in results)
        shapes = [tuple(t.shape) if isinstance(t, Tensor) else None for t in tensors]
        output = tuple(results[0].shape)
        refused = nash.check and nash.check(sample.attrs, shapes, output)
        assert not refused, f"the sampler asks for what nash refuses: {refused}"
        assert entry.flops is not None
        count = entry.flops(sample.attrs, shapes, output)
        assert isinstance(count, int)
        is_gemm = entry.family == "gemm" and results[0].numel() > 0
        assert count > 0 if is_gemm else count >= 0


@each_spec
def test_table_gives_what_the_float_kernel_gives(entry: OpSpec) -> None:
    if entry.table is None:
        return
    assert entry.sample is not None
    assert entry.float_kernel is not None
    attrs = entry.sample(np.random.default_rng(0)).attrs
    x = np.linspace(0.05, 4.0, 200)
    expected = entry.float_kernel(torch.from_numpy(x), **attrs).numpy()
    # The same function in float64, written twice (erf, exp, ... of NumPy or torch).
    np.testing.assert_allclose(entry.table(attrs)(x), expected, rtol=1e-12, atol=1e-14)


@each_kernel
def test_kernel_runs_in_float_or_on_codes_twice(kernel: HbirKernel) -> None:
    assert (kernel.reference is None) == (kernel.fast is None), "one oracle, one fast kernel"
    assert kernel.run_float is not None or kernel.reference is not None
    if kernel.convert is not None:
        assert kernel.run_float is not None, "what converts is a float node, and must run"


@each_kernel
def test_float_kernel_converts_unless_prepare_decomposes_its_operator(kernel: HbirKernel) -> None:
    owner = owners().get((kernel.domain, kernel.op_type))
    is_decomposed = owner is not None and owner.rule is Rule.DECOMPOSED
    if kernel.run_float is not None and not is_decomposed:
        assert kernel.convert is not None


@each_kernel
def test_kernel_belongs_to_an_operator_that_onnx_or_the_domain_defines(kernel: HbirKernel) -> None:
    if kernel.domain == DOMAIN:
        assert kernel.op_type in domain_ops()
        assert body(kernel.op_type).node
    else:
        assert kernel.domain == ""
        assert defs.has(kernel.op_type, OPSET, "")


@pytest.mark.parametrize("name", sorted(domain_ops()))
def test_domain_operator_has_a_kernel_a_body_and_a_text(name: str) -> None:
    op = domain_ops()[name]
    is_part = any(node.op_type == name for other in domain_ops() for node in body(other).node)
    has_kernel = registry.kernel(DOMAIN, name) is not None
    assert has_kernel or is_part, f"{DOMAIN}::{name} has no kernel and no body uses it"
    assert op.doc == op.doc.strip() != ""
    for node in body(name).node:
        known = node.op_type in domain_ops() if node.domain else defs.has(node.op_type, OPSET, "")
        assert known, f"{name}: {node.domain}::{node.op_type}"


@each_spec
def test_every_target_resolves_to_its_operator(entry: OpSpec) -> None:
    for target in entry.targets:
        found = resolve(target)
        assert found is not None
        assert found[0] is entry
        assert found[1] is target


def resolve(target: Target) -> Any:
    if isinstance(target, ModuleTarget):
        return registry.find_module(target.cls)
    if isinstance(target, MethodTarget):
        return registry.find_method(target.name)
    return registry.find_function(target.function)


@each_spec
def test_methods_exist_and_in_place_twins_are_registered_too(entry: OpSpec) -> None:
    names = {target.name for target in entry.targets if isinstance(target, MethodTarget)}
    public = {name for name in names if not name.startswith("__")}
    assert all(hasattr(Tensor, name) for name in public), names
    if entry.rule is Rule.NO_SCALE:
        return  # in place a comparison gives numbers, not the mask of its twin
    twins = {f"{name}_" for name in public if hasattr(Tensor, f"{name}_")}
    missing = twins - names
    assert not missing, f"{entry.name}: Tensor.{sorted(missing)} would stay float"


def test_operators_without_spelling_are_made_by_a_decomposition() -> None:
    made = {
        name
        for name in registry.specs()
        for path in (ROOT / "qtune" / "ops").glob("*/*.py")
        if f'"{name}"' in _decompositions(path)
    }
    assert {entry.name for entry in SPECS if not entry.targets} <= made


def _decompositions(path: Path) -> str:
    text = path.read_text()
    return text if "decompose" in text else ""


def test_families_are_the_folders() -> None:
    folders = {path.parent.name for path in (ROOT / "qtune" / "ops").glob("*/__init__.py")}
    assert {entry.family for entry in SPECS} == folders
