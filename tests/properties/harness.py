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
from qtune.ops.spec import ModuleTarget, OpSpec, Sample
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export
from qtune.quantization.qconfig_setter import ModuleNameTemplate

MASK_ROLES = ("condition", "mask")
VARIANCE = "running_var"


class Operator(nn.Module):
    """Calls the float kernel; operands that modules own are its parameters and buffers."""

    def __init__(self, spec: OpSpec, sample: Sample, rng: np.random.Generator) -> None:
        super().__init__()
        self.kernel, self.attrs = spec.float_kernel, dict(sample.attrs)
        self.numbers = dict(sample.numbers)
        self.places: list[str | int | None] = []
        self.inputs: list[Any] = []
        owned = {role for t in spec.targets if isinstance(t, ModuleTarget) for role in t.params}
        for index, (role, shape) in enumerate(
            zip(_roles(spec, len(sample.shapes)), sample.shapes, strict=True)
        ):
            self._place(spec, role, index, shape, sample, role in owned, rng)

    def _place(
        self,
        spec: OpSpec,
        role: str,
        index: int,
        shape: tuple[int, ...] | None,
        sample: Sample,
        is_owned: bool,
        rng: np.random.Generator,
    ) -> None:
        if shape is None:
            self.places.append(None)
            return
        if not is_owned:
            self.places.append(len(self.inputs))
            self.inputs.append((shape, sample.indices.get(index), _is_mask(spec, role)))
            return
        value = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
        if role.startswith("running"):
            self.register_buffer(role, value.abs() + 0.1 if role == VARIANCE else value)
        else:
            self.register_parameter(role, nn.Parameter(value))
        self.places.append(role)

    def forward(self, *tensors: Tensor) -> Any:
        operands = [
            self.numbers.get(index)
            if place is None
            else tensors[place]
            if isinstance(place, int)
            else getattr(self, place)
            for index, place in enumerate(self.places)
        ]
        return self.kernel(*operands, **self.attrs)

    def draw(self, rng: np.random.Generator, *, positive: bool) -> tuple[Tensor, ...]:
        """Random inputs: indices, masks, normal numbers, or only positive ones."""
        return tuple(_tensor(rng, positive, *described) for described in self.inputs)


def _roles(spec: OpSpec, count: int) -> tuple[str, ...]:
    return (spec.roles + spec.roles[-1:] * count)[:count]


def _is_mask(spec: OpSpec, role: str) -> bool:
    return role in MASK_ROLES or spec.name.startswith("logical_")


def _tensor(
    rng: np.random.Generator, positive: bool, shape: tuple[int, ...], rows: int | None, mask: bool
) -> Tensor:
    if rows is not None:
        return torch.from_numpy(np.asarray(rng.integers(0, rows, shape)))
    x = torch.from_numpy(np.asarray(rng.standard_normal(shape), dtype=np.float32))
    if mask:
        return x > 0
    return x.abs() + 0.1 if positive else x


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


def build(spec: OpSpec, seed: int) -> tuple[Model, tuple[Tensor, ...]]:
    """A model and inputs on which its result is finite."""
    assert spec.sample is not None
    rng = np.random.default_rng(seed)
    op = Operator(spec, spec.sample(rng), rng).eval()
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
