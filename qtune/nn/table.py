"""``TableOp``: an element-wise operator as an integer look-up table, made by ``pre_export``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from qtune.arith.quantize import quantize
from qtune.arith.rounding import Int64Array
from qtune.arith.segments import SegmentOptions, segment_table_by
from qtune.arith.table import RealFunction, SegmentTable, int8_table, lookup
from qtune.dtype import QuantDType
from qtune.errors import ArgumentError, ExportError, NonFiniteError
from qtune.modes import POWER_OF_TWO_TABLES
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import operand_quantizer, value_quantizers
from qtune.nn.qat.op import QATOp
from qtune.ops.activation.lookup import fake_lookup, lower_table
from qtune.ops.activation.segment_module import TABLE_OPTIONS
from qtune.ops.kernel import Builder, Value
from qtune.ops.spec import Rule
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState

_SOURCES = "table_sources"
"""Attribute of a table operator: where its input comes from, for each of its calls."""


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
        target = op.activation_post_process
        if target is None or isinstance(target, FakeCast):
            raise ExportError(f"{op.name}: a table needs an output scale, and it has none")
        self.qconfig = op.qconfig
        for key, quantizer in op.input_fake_quants.items():
            self.quantize_input(int(key), quantizer)
        self.float_repr = op.float_repr
        self.activation_post_process = target
        self.in_dtype = source.dtype
        self.error = table.error if isinstance(table, SegmentTable) else 0
        is_segments = isinstance(table, SegmentTable)
        entries = table.entries if is_segments else table  # type: ignore[union-attr]
        self.register_buffer("entries", torch.from_numpy(np.array(entries)))
        self.register_buffer("input_scale", source.scale.detach().clone())
        self.register_buffer("output_scale", target.scale.detach().clone())
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


@dataclass(frozen=True, slots=True)
class TableSource:
    """Where the input of a table comes from.

    ``quantizer``: the fake-quantize whose grid it is on. ``as_observed``: whether the values that
    it saw arrive as they were; ``abs`` or a pool between make others of them. ``fills``: numbers
    that a padding or ``tril`` between put beside them.
    """

    quantizer: FakeQuantize
    as_observed: bool = True
    fills: tuple[float, ...] = ()

    def codes(self) -> tuple[int, int]:
        """The smallest and the largest code that an int16 table must cover."""
        observed = torch.cat(self.quantizer.observed_range()).cpu().numpy()
        if not self.as_observed:
            largest = np.abs(observed).max()
            observed = np.stack([-largest, largest])
        if self.fills:
            known = np.append(observed, np.asarray(self.fills, observed.dtype))
            observed = np.stack([known.min(), known.max()])
        scale = float(self.quantizer.scale.detach())
        low, high = (int(code) for code in quantize(observed, scale, self.quantizer.dtype))
        return low, high


def table_source(
    model: nn.Module, op: QATOp, node: fx.Node, known: Mapping[fx.Node, FakeQuantize | None]
) -> TableSource | None:
    """The source of a table operator's input in ``model.graph``; ``None`` where it is float."""
    quantizer = operand_quantizer(op, node, 0, known)
    if quantizer is None:
        return None
    if op.input_fake_quants:
        return TableSource(quantizer)
    as_observed, fills = True, []
    for between in _between(model, node.args[0]):
        as_observed = as_observed and between.spec.family == "movement"
        fill = between.spec.fills(between.attrs) if between.spec.fills else None
        if fill is not None:
            fills.append(fill)
    return TableSource(quantizer, as_observed, tuple(fills))


def _between(model: nn.Module, value: Any) -> Iterator[QATOp]:
    """The operators between a value and the fake-quantize that it comes from."""
    while isinstance(value, fx.Node):
        op = model.get_submodule(str(value.target)) if value.op == "call_module" else None
        if isinstance(op, QATOp):
            if op.activation_post_process is not None:
                return
            yield op
        value = value.args[0] if value.args else None


def make_table(op: QATOp, source: TableSource) -> TableOp:
    """The table of ``op`` for the grid of its input (numerics.md section 3).

    An int16 table covers the observed range of the input, unless the operator has options of its
    own (``SegmentLUT``, or the ``<part>_kwargs`` of a composed operator).
    """
    grid = source.quantizer
    if grid.dtype.bits > 8:
        return TableOp(op, grid, _segments(op, source))
    function, target = _function_and_target(op)
    scales = float(grid.scale.detach()), float(target.scale.detach())
    return TableOp(op, grid, int8_table(function, *scales, target.dtype))


def unrolled_table(op: QATOp, source: FakeQuantize) -> torch.Tensor:
    """What the int16 table of ``op`` gives for every code from qmin to qmax, float32 [65536]."""
    noted: tuple[TableSource | None, ...] = getattr(op, _SOURCES, ())
    known = (item for item in noted if item is not None and item.quantizer is source)
    table = _segments(op, next(known, TableSource(source)))
    codes = np.arange(source.dtype.qmin, source.dtype.qmax + 1)
    values = lookup(table, codes, _function_and_target(op)[1].dtype)
    return torch.from_numpy(values.astype(np.float32))


def _segments(op: QATOp, source: TableSource) -> SegmentTable:
    function, target = _function_and_target(op)
    scales = float(source.quantizer.scale.detach()), float(target.scale.detach())
    options = getattr(op, TABLE_OPTIONS, None) or op.attrs.get(TABLE_OPTIONS) or SegmentOptions()
    power_of_two = (op.consistency_level or 0) >= POWER_OF_TWO_TABLES
    try:
        return segment_table_by(
            options, function, *scales, *source.codes(), target.dtype, power_of_two=power_of_two
        )
    except (ArgumentError, NonFiniteError) as error:
        raise ExportError(f"{op.name}: no table can be made of it: {error}") from error


def _function_and_target(op: QATOp) -> tuple[RealFunction, FakeQuantize]:
    target, spec = op.activation_post_process, op.spec
    if target is None or isinstance(target, FakeCast) or spec.table is None:
        raise ExportError(f"{op.name}: {op.op} has no table; export the model with its function")
    return spec.table(op.attrs), target


def note_sources(model: PreparedModel) -> None:
    """Remember at every table operator where its input comes from.

    The graph knows that; an operator alone, which ``pre_export`` may be given, does not.
    """
    known = value_quantizers(model)
    for node, op in model.operators():
        if op.spec.rule is Rule.TABLE:
            source = table_source(model, op, node, known)
            setattr(op, _SOURCES, (*getattr(op, _SOURCES, ()), source))


def forget_sources(module: nn.Module) -> None:
    """Forget what :func:`note_sources` and levels noted on the operators in ``module``."""
    for op in module.modules():
        if isinstance(op, QATOp):
            vars(op).pop(_SOURCES, None)
            op.grid_sources = ()


def noted_source(op: QATOp) -> TableSource | None:
    """What :func:`note_sources` wrote; ``None``: the input is float."""
    sources: tuple[TableSource | None, ...] | None = getattr(op, _SOURCES, None)
    if sources is None:
        raise ExportError(
            f"{op.name}: what makes its input is not known; pass pre_export the whole model"
        )
    first = sources[0]
    if any(not _same_grid(first, other) for other in sources[1:]):
        raise NotImplementedError(
            f"pre_export: {op.name} is called on inputs of {len(sources)} grids and needs a table "
            "for each, which only pre_export of the whole model can make"
        )
    return first


def _same_grid(first: TableSource | None, other: TableSource | None) -> bool:
    if first is None or other is None:
        return first is other
    a, b = first.quantizer, other.quantizer
    return a is b or (a.dtype == b.dtype and torch.equal(a.scale, b.scale))
