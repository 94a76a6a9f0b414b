"""Operators of a prepared model with their numbers fixed: codes and scales, nothing to train."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from qtune.arith.quantize import dequantize, quantize
from qtune.dtype import QuantDType
from qtune.nn.qat.grids import input_grid
from qtune.nn.qat.op import QATOp
from qtune.nn.quantized.qtensor import QTensor
from qtune.nn.table import TableOp, TableSource, make_table
from qtune.ops.activation.segment_module import TABLE_OPTIONS
from qtune.ops.gemm.channels import channel_unview, channel_view
from qtune.ops.quant.codes import stored
from qtune.ops.spec import Rule
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize


class Grid(nn.Module):
    """Scale and dtype of a fake-quantize, without its observer.

    Buffers: ``scale`` float32 [C], one number for each channel along ``ch_axis`` (-1: one);
    ``data_range`` float32 [2], the smallest and largest value that calibration saw, which int16
    tables behind the grid cover (``None``: not known).
    """

    scale: torch.Tensor
    data_range: torch.Tensor | None
    is_quantizing = True
    """A grid always quantizes, unlike a fake-quantize."""

    def __init__(
        self,
        scale: torch.Tensor,
        dtype: QuantDType,
        ch_axis: int = -1,
        data_range: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.ch_axis = ch_axis
        self.register_buffer("scale", scale.detach().clone().reshape(-1))
        self.register_buffer("data_range", data_range)

    @classmethod
    def of(cls, quantizer: FakeQuantize | FakeCast) -> Grid | FakeCast:
        """The grid of a fake-quantize. A cast to float16 has none and stays what it is."""
        if isinstance(quantizer, FakeCast):
            return FakeCast(name=quantizer.name)
        axis = quantizer.ch_axis
        seen = torch.cat(quantizer.observed_range()).detach() if axis < 0 else None
        return cls(quantizer.scale, quantizer.dtype, axis, seen)

    def observed_range(self) -> tuple[torch.Tensor, ...]:
        """As of a fake-quantize: what a table behind the grid covers."""
        if self.data_range is not None:
            return (self.data_range,)
        return self.dtype.qmin * self.scale, self.dtype.qmax * self.scale

    def extra_repr(self) -> str:
        """Dtype and scale."""
        text = f"dtype={self.dtype}, scale={self.scale.cpu().numpy().tolist()}"
        if self.scale.numel() > 1:
            text = f"dtype={self.dtype}, scale=[{self.scale.numel()} channels]"
        return text if self.ch_axis < 0 else f"{text}, ch_axis={self.ch_axis}"


class FrozenOp(QATOp):
    """One operator of a converted model: what it computes, and its parameters.

    The quantized weight is a buffer of integer codes (int8 or int16, in the weight's shape), its
    scale a buffer ``weight_fake_quant.scale``; other parameters are float buffers. It doesn't run
    by itself: the :class:`~qtune.nn.quantized.op.QuantizedOp` that holds it does.
    """

    source_grid: Grid | None
    qconfig: Any = None

    def __init__(self, op: QATOp) -> None:
        QATOp.__init__(self, op.op, op.name, op.attrs, float_type=op.float_type)
        del self.qconfig  # the module that holds it has it
        self.consistency_level = op.consistency_level
        self.call_form = op.call_form
        if hasattr(op, TABLE_OPTIONS):
            setattr(self, TABLE_OPTIONS, getattr(op, TABLE_OPTIONS))
        self.float_repr = op.extra_repr()
        for key, quantizer in op.input_fake_quants.items():
            self.quantize_input(int(key), Grid.of(quantizer))  # type: ignore[arg-type]
        for name in ("weight_fake_quant", "activation_post_process"):
            quantizer = getattr(op, name)
            setattr(self, name, None if quantizer is None else Grid.of(quantizer))
        source = input_grid(op)
        self.source_grid = None if source is None else Grid.of(source)  # type: ignore[assignment]
        self._take_parameters(op)
        self.eval()

    @property
    def grid_sources(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The grid of the first operand, where a consistency level makes the operator follow it."""
        return () if self.source_grid is None else (self.source_grid,)

    def _take_parameters(self, op: QATOp) -> None:
        for role in op.params:
            value = op.param(role)
            name = role.replace("*", "").replace(".", "_")
            self.params[role] = name
            data = value.detach() if isinstance(value, torch.Tensor) else None
            if data is not None and role == self.spec.weight_role and self._weight_grid:
                data = self._codes(data)
            self.register_buffer(name, None if data is None else data.clone())

    def quantized_weight(self) -> QTensor | None:
        """Codes and scales of the weight, one for each output channel; ``None`` without a weight.

        A grouped transposed convolution's is given with its real output channels on axis 1.
        """
        grid, role = self._weight_grid, self.spec.weight_role
        if grid is None or role not in self.params:
            return None
        codes = channel_view(getattr(self, self.params[role]), self.weight_groups(self.attrs))
        return QTensor(codes.contiguous(), grid.scale, grid.dtype, grid.ch_axis)

    @property
    def _weight_grid(self) -> Grid | None:
        grid: Any = self.weight_fake_quant
        return grid if isinstance(grid, Grid) else None

    def _codes(self, weight: torch.Tensor) -> torch.Tensor:
        grid: Any = self._weight_grid
        groups = self.weight_groups(self.attrs)
        view = channel_view(weight.float(), groups).cpu().numpy()
        codes = stored(
            quantize(view, grid.scale.cpu().numpy(), grid.dtype, grid.ch_axis), grid.dtype
        )
        result: torch.Tensor = channel_unview(torch.from_numpy(codes), groups)
        return result.contiguous().to(weight.device)

    def param(self, role: str) -> Any:
        """The real numbers that fill a role; a quantized weight is ``codes * scale``."""
        value = getattr(self, self.params[role])
        grid = self._weight_grid
        if value is None or grid is None or role != self.spec.weight_role:
            return value
        groups = self.weight_groups(self.attrs)
        view = channel_view(value, groups).cpu().numpy()
        real = dequantize(view, grid.scale.cpu().numpy(), grid.ch_axis)
        tensor = torch.from_numpy(np.asarray(real, dtype=np.float32)).to(value.device)
        return channel_unview(tensor, groups).contiguous()

    @property
    def weight_index(self) -> int:
        """Position of the weight among the operands. torch.jit asks modules for all properties."""
        if self.spec.weight_role is None:
            raise AttributeError(f"{self.name}: {self.op} has no weight")
        return self.spec.roles.index(self.spec.weight_role)

    def forward(self, *operands: Any, **dynamic: Any) -> Any:
        """Not to be called; call the module that holds it."""
        raise TypeError(f"{self.name}: call the converted module, not one member of it")


class FrozenTable(FrozenOp, TableOp):
    """The look-up table that ``pre_export`` made of an operator."""

    def __init__(self, op: TableOp) -> None:
        FrozenOp.__init__(self, op)
        self.in_dtype, self.error = op.in_dtype, op.error
        for name, value in op.named_buffers(recurse=False):
            self.register_buffer(name, value.detach().clone())
        self._lookup = None


def freeze(op: QATOp) -> FrozenOp:
    """The fixed form of an operator of a prepared model."""
    return FrozenTable(op) if isinstance(op, TableOp) else FrozenOp(op)


def tabled(op: FrozenOp, source: TableSource | None) -> FrozenOp:
    """An element-wise function as the table for an input from ``source``; others as they are.

    ``pre_export`` did this already where the model has a graph.
    """
    is_open = op.spec.rule is Rule.TABLE and not isinstance(op, FrozenTable)
    if not is_open or not isinstance(op.activation_post_process, Grid):
        return op
    own: Any = op.input_fake_quants.get("0")
    if isinstance(own, Grid):
        source = TableSource(own)
    return op if source is None else FrozenTable(make_table(op, source))
