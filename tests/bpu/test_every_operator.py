"""Every operator of the registry, alone in a module: export, convert, and three equal runs."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qtune.bpu.compiler import convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType, qint8, qint16
from qtune.hbir.export import export
from qtune.nn.qat import QATOp, qat_class
from qtune.ops import registry
from qtune.ops.spec import OpSpec, Rule
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.observer import MovingAveragePerChannelMinMaxObserver
from qtune.testing.fuzzing.operands import DOMAINS
from tests.hbir.prepared import Prepared

STUBS = ("quant_stub", "dequant_stub")
PARAMETERS = ("weight", "bias", "running_mean", "running_var", "slope")
POSITIVE = ("log", "log10", "log1p", "log2", "rsqrt", "sqrt", "running_var")
SCALARS = {"value": -1.0}
MASKS = ("condition", "mask")
NAMES = [
    name
    for name, spec in sorted(registry.specs().items())
    if spec.rule is not Rule.DECOMPOSED and name not in STUBS
]


@dataclass
class Case:
    """One operator with random operands: inputs by role, parameters inside."""

    spec: OpSpec
    attrs: dict[str, Any]
    operands: list[Any]
    roles: tuple[str, ...]
    inputs: list[torch.Tensor] = field(default_factory=list)

    @staticmethod
    def draw(spec: OpSpec, seed: int) -> Case:
        torch.manual_seed(seed)
        sample = spec.sample(np.random.default_rng(seed))
        roles = (spec.roles + spec.roles[-1:] * len(sample.shapes))[: len(sample.shapes)]
        operands = [
            SCALARS.get(role) if shape is None else _operand(spec.name, role, shape)
            for role, shape in zip(roles, sample.shapes, strict=True)
        ]
        return Case(spec, dict(sample.attrs), operands, roles)

    def prepared(self, out: QuantDType) -> Prepared:
        p = Prepared()
        op = qat_class(self.spec)(self.spec.name, "op", self.attrs)
        nodes = []
        for index, (role, value) in enumerate(zip(self.roles, self.operands, strict=True)):
            is_parameter = value is not None and role in PARAMETERS
            if is_parameter:
                _give_parameter(op, role, value)
            if not isinstance(value, torch.Tensor) or is_parameter:
                nodes.append(None if is_parameter else value)
                continue
            self.inputs.append(value)
            make = p.quantized_input if value.is_floating_point() else p.input
            nodes.append(make(f"x{index}"))
        _quantize_weight(op, self.spec, self.attrs)
        has_scale = self.spec.rule in (Rule.OWN_SCALE, Rule.TABLE)
        result = p._add(op, nodes, "op", out if has_scale else None, None)
        return p.outputs(*self._outputs(p, op, result)).calibrated(*self.inputs)

    def _outputs(self, p: Prepared, op: QATOp, result: Any) -> list[Any]:
        pairs = zip(self.roles, self.operands, strict=True)
        values = [None if role in PARAMETERS else value for role, value in pairs]
        with torch.no_grad():
            found = op.compute(op.fill(tuple(values)), self.attrs)
        if isinstance(found, (tuple, list)):
            items = [
                p.graph.call_function(operator.getitem, (result, i)) for i in range(len(found))
            ]
            return [p.dequantized(item, f"d{i}") for i, item in enumerate(items)]
        return [p.dequantized(result, "d") if found.is_floating_point() else result]


def _operand(op: str, role: str, shape: tuple[int, ...]) -> torch.Tensor:
    if role in MASKS or op.startswith("logical"):
        return torch.rand(shape) > 0.5
    if role == "index":
        return torch.zeros(shape, dtype=torch.int64)
    if op in DOMAINS:
        low, high = DOMAINS[op]
        return low + (high - low) * torch.rand(shape)
    if op in POSITIVE or role in POSITIVE:
        return torch.rand(shape) + 0.1
    return torch.randn(shape)


def _give_parameter(op: QATOp, role: str, value: torch.Tensor) -> None:
    if role.startswith("running"):
        op.register_buffer(role, value)
    else:
        op.register_parameter(role, nn.Parameter(value))
    op.params[role] = role


def _quantize_weight(op: QATOp, spec: OpSpec, attrs: dict[str, Any]) -> None:
    if spec.weight_role not in op.params:
        return
    axis = spec.weight_axis(attrs)
    groups = 1 if spec.weight_groups is None else spec.weight_groups(attrs)
    op.weight_fake_quant = FakeQuantize(
        MovingAveragePerChannelMinMaxObserver,
        ch_axis=axis,
        channel_len=getattr(op, spec.weight_role).shape[axis] * groups,
        name="op.weight",
    )


def _given_on_nash(name: str) -> list[QuantDType]:
    """Result dtypes that the march gives; an operator without own scale takes what it gets."""
    (rule,) = (rule for rule in registry.spec(name).march if "nash" in rule.series)
    return [dtype for dtype in (qint8, qint16) if dtype.name in rule.outputs] or [qint8]


@pytest.mark.parametrize(
    ("name", "out"), [(name, out) for name in NAMES for out in _given_on_nash(name)], ids=str
)
def test_operator_has_the_same_bits_on_every_path(name, out):
    case = Case.draw(registry.spec(name), seed=NAMES.index(name))
    p = case.prepared(out)
    qat = export(p, tuple(case.inputs))
    module = convert(qat, "nash-e")
    feed = {item.name: x for item, x in zip(module[0].inputs, case.inputs, strict=True)}

    fast = module[0].run(feed)
    reference = module[0].run(feed, mode="reference")
    runtime = run_in_onnxruntime(module, {key: x.numpy() for key, x in feed.items()})

    assert not [note for note in module.report if note["kind"] == "stays float"]
    for key, value in fast.items():
        assert torch.equal(value, reference[key]), f"{name}: reference differs"
        assert np.array_equal(value.numpy(), runtime[key]), f"{name}: ONNX Runtime differs"
    if case.spec.rule is not Rule.TABLE:  # a table replaces the float function in pre_export
        assert all(map(torch.equal, qat[0].run(feed).values(), p(*case.inputs)))
