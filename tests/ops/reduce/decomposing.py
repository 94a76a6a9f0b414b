"""A DecomposeBuilder that calibrates each part on one example and writes it into a float graph.

Every part gets the fake-quantize of its dtype; table parts are written as the tables they become
after pre_export. ``Decomposed`` then converts the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from qtune.arith.quantize import quantize, scale_from_absmax
from qtune.arith.table import int8_table, segment_table
from qtune.arith_fast.fake_quantize import fake_quantize
from qtune.bpu.convert import convert
from qtune.dtype import QuantDType, qint8
from qtune.hbir.builder import META_STAGE, GraphBuilder, mark_result
from qtune.hbir.module import HbirModule
from qtune.ops.activation.lookup import lower_table
from qtune.ops.kernel import LowerCall
from qtune.ops.quant.fake_quant import emit_fake_quant
from qtune.ops.registry import spec
from qtune.ops.spec import Bound, OpSpec, Rule


@dataclass(frozen=True, eq=False)
class Part:
    """A node: its value in the graph, and what it holds for the example."""

    value: Any
    data: torch.Tensor
    dtype: QuantDType
    scale: float


class CalibratingBuilder:
    """See the module."""

    def __init__(self, out: QuantDType) -> None:
        self.graph = GraphBuilder()
        self.out = out
        self.parts: dict[str, Part] = {}

    def input(self, x: torch.Tensor, dtype: QuantDType) -> Part:
        scale = float(scale_from_absmax(x.abs().max().numpy(), dtype))
        value = self.graph.input("x", ir.DataType.FLOAT, x.shape)
        value = emit_fake_quant(self.graph, value, np.float32(scale), dtype)
        return Part(value, fake_quantize(x, scale, dtype.qmin, dtype.qmax), dtype, scale)

    def call(
        self,
        op_name: str,
        tensors: Sequence[Any],
        attrs: Mapping[str, Any] | None = None,
        *,
        part: str,
        forced_dtype: QuantDType | None = None,
        bounds: tuple[float, float] | None = None,
    ) -> Part:
        entry, attrs, dtype = spec(op_name), attrs or {}, forced_dtype or self.out
        assert entry.float_kernel is not None
        real = entry.float_kernel(*(t.data if isinstance(t, Part) else t for t in tensors), **attrs)
        first = next(t for t in tensors if isinstance(t, Part))
        keeps = entry.rule is Rule.INPUT_SCALE
        dtype = first.dtype if keeps else dtype
        scale = first.scale if keeps else float(scale_from_absmax(real.abs().max().numpy(), dtype))
        with self.graph.emitting_for(part):
            value = self._emit(entry, first, tensors, attrs, real, dtype, scale)
        mark_result(value, part, part)
        data = real if keeps else fake_quantize(real, scale, dtype.qmin, dtype.qmax)
        self.parts[part] = Part(value, data, dtype, scale)
        return self.parts[part]

    def _emit(
        self,
        entry: OpSpec,
        x: Part,
        tensors: Sequence[Any],
        attrs: Mapping[str, Any],
        real: torch.Tensor,
        dtype: QuantDType,
        scale: float,
    ) -> Any:
        if entry.table is not None:
            function = entry.table(attrs)
            if x.dtype is qint8:
                entries: Any = int8_table(function, x.scale, scale, dtype)
            else:
                span = quantize(np.array([x.data.min(), x.data.max()]), x.scale, x.dtype)
                entries = segment_table(function, x.scale, scale, int(span[0]), int(span[1]), dtype)
            return lower_table(self.graph, x.value, entries, x.scale, scale, dtype)
        assert entry.lower is not None
        values = tuple(t.value if isinstance(t, Part) else t for t in tensors)
        shapes = tuple(tuple(t.data.shape) if isinstance(t, Part) else None for t in tensors)
        call = LowerCall("op", values, attrs, shapes, tuple(real.shape))
        value = entry.lower(self.graph, call)
        if entry.rule is Rule.INPUT_SCALE:
            return value
        return emit_fake_quant(self.graph, value, np.float32(scale), dtype)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, Part)

    def shape(self, tensor: Part) -> tuple[int, ...]:
        return tuple(tensor.data.shape)

    def dtype(self, tensor: Part) -> torch.dtype:
        return tensor.data.dtype

    def made_by(self, tensor: Part) -> None:
        """Operands here come from outside."""


class Decomposed:
    """A decomposed operator of one tensor, calibrated on ``x``."""

    def __init__(
        self,
        op: str,
        x: torch.Tensor,
        attrs: Mapping[str, Any],
        dtype: QuantDType = qint8,
        out: QuantDType = qint8,
    ) -> None:
        self.x = x
        self.builder = CalibratingBuilder(out)
        decompose = spec(op).decompose
        assert decompose is not None
        result = decompose(self.builder, Bound((self.builder.input(x, dtype),), attrs))
        assert isinstance(result, Part)
        self.result = result
        self.builder.graph.output(result.value, "y")
        self.qat = HbirModule(self.builder.graph.finish({META_STAGE: "qat"}))

    @cached_property
    def quantized(self) -> HbirModule:
        return convert(self.qat, "nash-e")

    def run(self) -> torch.Tensor:
        function = self.quantized[0]
        fast = function.run({"x": self.x})["y"]
        assert torch.equal(fast, function.run({"x": self.x}, mode="reference")["y"])
        return fast
