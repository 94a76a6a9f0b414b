"""One operator as a whole graph: lowered, converted, and run in every way that there is.

``Case.check`` asserts that fast kernels, reference kernels and ONNX Runtime agree in every bit, and
that the float graph equals torch's function with fake-quantize around it; it returns the distance
between float and integer in output scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from qtune.arith.quantize import scale_from_absmax
from qtune.arith_fast.fake_quantize import fake_quantize
from qtune.bpu.convert import convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType, qint8
from qtune.hbir.builder import META_STAGE, GraphBuilder, mark_result
from qtune.hbir.module import HbirModule
from qtune.ops.kernel import LowerCall
from qtune.ops.quant.fake_quant import emit_fake_quant
from qtune.ops.registry import spec
from qtune.ops.spec import OpSpec, Rule

WITH_OWN_SCALE = (Rule.OWN_SCALE, Rule.TABLE)


@dataclass(frozen=True)
class Operand:
    """A tensor or a number. ``dtype`` None: not quantized. ``constant``: a parameter."""

    data: Any
    dtype: QuantDType | None = qint8
    constant: bool = False
    axis: int = -1

    @property
    def is_number(self) -> bool:
        return isinstance(self.data, int | float)

    @cached_property
    def scale(self) -> np.ndarray[Any, Any]:
        x = self.data.float()
        dims = [d for d in range(x.dim()) if d != self.axis % x.dim()] if self.axis >= 0 else None
        absmax = x.abs().amax(dims or ()) if self.axis < 0 or dims else x.abs()
        return scale_from_absmax(absmax.numpy(), self.dtype or qint8)

    @property
    def grid(self) -> Any:
        """The data after fake-quantize."""
        if self.dtype is None:
            return self.data
        scale = torch.from_numpy(np.atleast_1d(self.scale))
        return fake_quantize(self.data, scale, self.dtype.qmin, self.dtype.qmax, self.axis)


@dataclass
class Case:
    """A call of a registered operator."""

    op: str
    operands: Sequence[Operand]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    out: QuantDType = qint8
    out_scale: float | None = None
    march: str = "nash-e"

    @property
    def spec(self) -> OpSpec:
        return spec(self.op)

    @cached_property
    def real(self) -> torch.Tensor:
        """torch's own result on the fake-quantized operands."""
        kernel = self.spec.float_kernel
        assert kernel is not None
        result = kernel(*(operand.grid for operand in self.operands), **self.attrs)
        assert isinstance(result, torch.Tensor)
        return result

    @property
    def has_own_scale(self) -> bool:
        """Whether a fake-quantize follows; integers and masks have none."""
        return self.spec.rule in WITH_OWN_SCALE and self.real.is_floating_point()

    @cached_property
    def scale(self) -> float:
        """The scale of the result."""
        if self.spec.rule is Rule.INPUT_SCALE:
            return float(self.operands[0].scale)
        if self.out_scale is not None:
            return float(np.float32(self.out_scale))
        return float(scale_from_absmax(self.real.abs().max().numpy(), self.out))

    @cached_property
    def expected(self) -> torch.Tensor:
        """The result after its fake-quantize, if it has one."""
        if self.has_own_scale:
            return fake_quantize(self.real, self.scale, self.out.qmin, self.out.qmax)
        return self.real

    @cached_property
    def qat(self) -> HbirModule:
        b = GraphBuilder()
        values = [self._enter(b, index, o) for index, o in enumerate(self.operands)]
        tensors = [None if o.is_number else o.data for o in self.operands]
        call = LowerCall(
            "op",
            tuple(values),
            self.attrs,
            tuple(None if t is None else tuple(t.shape) for t in tensors),
            tuple(self.real.shape),
            tuple(None if t is None else str(t.dtype).removeprefix("torch.") for t in tensors),
        )
        lower = self.spec.lower
        assert lower is not None
        with b.emitting_for("op"):
            result = lower(b, call)
            if self.has_own_scale:
                result = emit_fake_quant(b, result, np.float32(self.scale), self.out)
        mark_result(result, "op", "op")
        b.output(result, "y")
        return HbirModule(b.finish({META_STAGE: "qat"}))

    def _enter(self, b: GraphBuilder, index: int, operand: Operand) -> Any:
        if operand.is_number:
            return operand.data
        array = operand.data.numpy()
        if operand.constant:
            value = b.constant(array, f"x{index}")
        else:
            value = b.input(f"x{index}", ir.DataType.from_numpy(array.dtype), array.shape)
        if operand.dtype is None:
            return value
        rank = operand.data.dim()
        return emit_fake_quant(b, value, operand.scale, operand.dtype, axis=operand.axis, rank=rank)

    @cached_property
    def quantized(self) -> HbirModule:
        return convert(self.qat, self.march)

    @property
    def feed(self) -> dict[str, Any]:
        return {
            f"x{i}": o.data
            for i, o in enumerate(self.operands)
            if not o.is_number and not o.constant
        }

    @property
    def op_types(self) -> list[str]:
        """Types of the converted nodes, without the borders."""
        borders = ("Quantize", "Dequantize")
        return [n.op_type for n in self.quantized.model.graph if n.op_type not in borders]

    def check(self) -> float:
        """See the module. Bool results have the distance 0 or 1."""
        float_result = self.qat[0].run(self.feed)["y"]
        assert torch.equal(float_result, self.expected), "qat.bc differs from torch"
        result = self.run_integer()
        if result.dtype is torch.bool or not result.is_floating_point():
            return float((result != float_result).any())
        if result.numel() == 0:
            return 0.0
        steps = (result.double() - float_result.double()) / self.scale
        return float(steps.abs().max().round(decimals=3))

    def run_integer(self) -> torch.Tensor:
        """The converted operator, run three ways that must agree."""
        function = self.quantized[0]
        fast = function.run(self.feed)["y"]
        reference = function.run(self.feed, mode="reference")["y"]
        assert fast.dtype == reference.dtype
        assert torch.equal(fast, reference), "fast and reference differ"
        arrays = {name: tensor.contiguous().numpy() for name, tensor in self.feed.items()}
        by_ort = torch.from_numpy(run_in_onnxruntime(self.quantized, arrays)["y"])
        assert torch.equal(by_ort, reference), "ONNX Runtime differs"
        return fast


def randn(*shape: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    """Seeded normal values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
