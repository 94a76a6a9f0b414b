"""``TableOp``: an element-wise operator as an integer look-up table, made by ``pre_export``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qtune.arith.quantize import quantize
from qtune.arith.rounding import Int64Array
from qtune.arith.table import SegmentTable, int8_table, segment_table
from qtune.dtype import QuantDType
from qtune.errors import ExportError
from qtune.nn.qat.op import QATOp
from qtune.ops.activation.lookup import fake_lookup, lower_table
from qtune.ops.kernel import Builder, Value
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState


class TableOp(QATOp):
    """The table of an operator between an input and an output grid, still in torch.

    Forward: quantize to the input's codes, look up, dequantize; the same integers as the ``Lut``
    operators of HBIR. ``error``: largest distance to the function in output steps.

    Buffers: ``entries`` int64 [256] for qint8 inputs; ``entries`` [N, 64], ``first``, ``last`` [N]
    for qint16; ``input_scale``, ``output_scale`` float32.
    """

    entries: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    input_scale: torch.Tensor
    output_scale: torch.Tensor
    activation_post_process: FakeQuantize

    def __init__(self, op: QATOp, source: FakeQuantize, table: Int64Array | SegmentTable) -> None:
        super().__init__(op.op, op.name, op.attrs, float_type=op.float_type)
        if op.activation_post_process is None:
            raise ExportError(f"{op.name}: a table needs an output scale, and it has none")
        self.qconfig = op.qconfig
        for key, quantizer in op.input_fake_quants.items():
            self.quantize_input(int(key), quantizer)
        self.float_repr = op.float_repr
        self.activation_post_process = op.activation_post_process
        self.in_dtype = source.dtype
        self.error = table.error if isinstance(table, SegmentTable) else 0
        is_segments = isinstance(table, SegmentTable)
        entries = table.entries if is_segments else table  # type: ignore[union-attr]
        self.register_buffer("entries", torch.from_numpy(np.array(entries)))
        self.register_buffer("input_scale", source.scale.detach().clone())
        self.register_buffer("output_scale", op.activation_post_process.scale.detach().clone())
        if isinstance(table, SegmentTable):
            self.register_buffer("first", torch.from_numpy(np.array(table.first)))
            self.register_buffer("last", torch.from_numpy(np.array(table.last)))
        self._lookup: Callable[[torch.Tensor], torch.Tensor] | None = None
        self.train(op.training)

    @property
    def out_dtype(self) -> QuantDType:
        """The dtype of the result."""
        return self.activation_post_process.dtype

    @property
    def table(self) -> Int64Array | SegmentTable:
        """The table as the arithmetic takes it."""
        entries = self.entries.cpu().numpy()
        if self.in_dtype.bits <= 8:
            return entries
        first, last = self.first.cpu().numpy(), self.last.cpu().numpy()
        return SegmentTable(first, last, entries, self.error)

    def forward(self, *operands: Any, **dynamic: Any) -> Any:
        """Look up one float tensor; the result has its dtype and device."""
        (x,) = operands
        if self.activation_post_process.state is FakeQuantState._FLOAT:
            return self.compute([x], {**self.attrs, **dynamic})
        for quantizer in self.input_fake_quants.values():
            x = quantizer(x)
        if x.numel() == 0:
            return x
        if self._lookup is None:
            scales = float(self.input_scale), float(self.output_scale)
            self._lookup = fake_lookup(self.table, *scales, self.out_dtype)
        return self._lookup(x.cpu()).to(x.device)

    def emit_table(self, builder: Builder, value: Value) -> Value:
        """Emit the table into HBIR."""
        scales = float(self.input_scale), float(self.output_scale)
        return lower_table(builder, value, self.table, *scales, self.out_dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lookup": None}


def make_table(op: QATOp, source: FakeQuantize) -> TableOp:
    """The table of ``op`` for the grid of its input ``source`` (numerics.md section 3).

    An int16 table covers the observed range of the input.
    """
    target, spec = op.activation_post_process, op.spec
    if target is None or spec.table is None:
        raise ExportError(f"{op.name}: {op.op} has no table; export the model with its function")
    function = spec.table(op.attrs)
    s_x, s_y = float(source.scale), float(target.scale)
    if source.dtype.bits <= 8:
        return TableOp(op, source, int8_table(function, s_x, s_y, target.dtype))
    observed = torch.cat(source.observed_range()).cpu().numpy()
    first, last = (int(code) for code in quantize(observed, s_x, source.dtype))
    return TableOp(op, source, segment_table(function, s_x, s_y, first, last, target.dtype))
