"""A model made of one operator, drawn by the operator's own sampler, through the whole line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qtune.bpu.convert import convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import value_quantizers
from qtune.nn.qat import QATOp
from qtune.ops.spec import OpSpec, Sample
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from .drawing import Slot, owned_roles, slots


class Operator(nn.Module):
    """Calls the float kernel; operands that modules own are its parameters and buffers."""

    def __init__(self, entry: OpSpec, sample: Sample, rng: np.random.Generator) -> None:
        super().__init__()
        self.kernel, self.attrs = entry.float_kernel, dict(sample.attrs)
        self.slots = slots(entry, sample)
        self.owned = owned_roles(entry)
        self.names = [_attribute(slot.role, index) for index, slot in enumerate(self.slots)]
        for name, slot in zip(self.names, self.slots, strict=True):
            if slot.role in self.owned and slot.shape is not None:
                self._own(name, slot.draw(rng))

    def _own(self, role: str, value: Tensor) -> None:
        if role.startswith("running"):
            self.register_buffer(role, value)
        else:
            self.register_parameter(role, nn.Parameter(value))

    def _is_input(self, slot: Slot) -> bool:
        return slot.shape is not None and slot.role not in self.owned

    def forward(self, *tensors: Tensor) -> Any:
        given = iter(tensors)
        operands = [
            next(given) if self._is_input(slot) else getattr(self, name, slot.number)
            for name, slot in zip(self.names, self.slots, strict=True)
        ]
        return self.kernel(*operands, **self.attrs)

    def draw(self, rng: np.random.Generator, *, positive: bool) -> tuple[Tensor, ...]:
        """Random inputs."""
        return tuple(
            slot.draw(rng, positive=positive) for slot in self.slots if self._is_input(slot)
        )


def _attribute(role: str, index: int) -> str:
    """The name of a parameter; a role ``*name`` stands for several."""
    return f"{role[1:]}_{index}" if role.startswith("*") else role


class Model(nn.Module):
    """One operator under the name ``op``, so that rules for ``op`` reach it."""

    def __init__(self, op: Operator) -> None:
        super().__init__()
        self.op = op

    def forward(self, *tensors: Tensor) -> Any:
        return self.op(*tensors)


@dataclass(frozen=True)
class Line:
    """A prepared model, its results and those of the integer module on the same input.

    ``steps``: scale of each result, ``None`` for masks, integers and what is not quantized.
    """

    prepared: PreparedModel
    fake: list[Tensor]
    integer: list[Tensor]
    steps: list[float | None]

    def distances(self) -> list[tuple[float, bool]]:
        """Largest distance of each result, and whether it is counted in steps."""
        found = []
        for left, right, step in zip(self.fake, self.integer, self.steps, strict=True):
            assert left.dtype == right.dtype
            assert left.shape == right.shape
            gap = (left.double() - right.double()).abs().max().item() if left.numel() else 0.0
            found.append((gap / (step or 1.0), step is not None))
        return found


def flat(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def build(entry: OpSpec, seed: int) -> tuple[Model, tuple[Tensor, ...]]:
    """A model and inputs on which its result is finite."""
    assert entry.sample is not None
    rng = np.random.default_rng(seed)
    op = Operator(entry, entry.sample(rng), rng).eval()
    data = op.draw(np.random.default_rng(seed), positive=False)
    if not all(bool(torch.isfinite(y).all()) for y in flat(op(*data))):
        data = op.draw(np.random.default_rng(seed), positive=True)
    return Model(op).eval(), data


def prepared_model(model: Model, data: Sequence[Tensor], dtype: QuantDType) -> PreparedModel:
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": dtype, "op": dtype})])
    return prepare(model, tuple(data), setter).eval()


def run_line(
    model: Model, calibration: tuple[Tensor, ...], data: tuple[Tensor, ...], dtype: QuantDType
) -> Line:
    """Prepare, calibrate, validate, export, convert, run; the three integer runs agree."""
    prepared = prepared_model(model, calibration, dtype)
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    with torch.no_grad():
        prepared(*calibration)
        set_fake_quantize(prepared, FakeQuantState.VALIDATION)
        fake = flat(prepared(*data))
    module = convert(export(prepared, calibration))
    assert not [note for note in module.report if note["kind"] == "stays float"]
    return Line(prepared, fake, run_everywhere(module, data), output_steps(prepared))


def run_everywhere(module: HbirModule, data: Sequence[Tensor]) -> list[Tensor]:
    """Results of the fast kernels, after NumPy and ONNX Runtime gave the same bits."""
    function = module[0]
    feed = {item.name: x for item, x in zip(function.inputs, data, strict=True)}
    fast, exact = function.run(feed), function.run(feed, "reference")
    by_ort = run_in_onnxruntime(module, {key: x.numpy() for key, x in feed.items()})
    for name, value in fast.items():
        assert torch.equal(value, exact[name]), f"{name}: fast and reference differ"
        np.testing.assert_array_equal(by_ort[name], exact[name].numpy(), err_msg="ONNX Runtime")
    return [fast[item.name] for item in function.outputs]


def output_steps(prepared: PreparedModel) -> list[float | None]:
    """The scale of each output of the model, ``None`` for masks and integers."""
    known = value_quantizers(prepared)
    (output,) = prepared.graph.find_nodes(op="output")
    return [_step(prepared, node, known) for node in output.args[0]]


def _step(prepared: PreparedModel, node: Any, known: Any) -> float | None:
    module = prepared.get_submodule(str(node.target)) if node.op == "call_module" else None
    if not isinstance(module, QATOp) or module.spec.name != "dequant_stub":
        return None
    quantizer = known.get(node.args[0])
    return None if quantizer is None else float(quantizer.scale)
