"""unfold: the windows of a map as columns (im2col); pads are code 0, the scale stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import nn

from qtune.errors import ExportError
from qtune.ops.gemm.geometry import per_axis
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import int64, no_flops, rank_of
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule, Sample


def _bind(
    input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Bound:
    rank = rank_of(input)
    if rank not in (None, 4):
        raise NotImplementedError(f"unfold of a tensor of {rank} dimensions; 4 are possible")
    attrs = {
        "kernel_size": per_axis(kernel_size, 2),
        "dilation": per_axis(dilation, 2),
        "padding": per_axis(padding, 2),
        "stride": per_axis(stride, 2),
    }
    return Bound((input,), attrs)


def _bind_module(module: nn.Unfold, input: Any) -> Bound:
    return _bind(input, module.kernel_size, module.dilation, module.padding, module.stride)


def _windows(size: int, attrs: Any, axis: int) -> np.ndarray[Any, Any]:
    """int64 [kernel, windows]: the element of the padded axis that a tap of a window reads."""
    kernel, dilation, padding, stride = (
        int(attrs[key][axis]) for key in ("kernel_size", "dilation", "padding", "stride")
    )
    last = size + 2 * padding - dilation * (kernel - 1) - 1
    start = np.arange(last // stride + 1, dtype=np.int64) * stride
    return np.arange(kernel, dtype=np.int64)[:, None] * dilation + start


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, attrs = call.input_shapes[0] or (), call.attrs
    if len(shape) != 4:
        raise ExportError(f"{call.name}: unfold of shape {shape}; [N, C, H, W] can be exported")
    value = call.operands[0]
    pads = (0, 0, *attrs["padding"])
    if any(pads):
        value = b.add(
            "Pad", [value, b.constant(int64((*pads, *pads)), "pads")], {"mode": "constant"}
        )
    rows, columns = (_windows(shape[2 + axis], attrs, axis) for axis in range(2))
    value = b.add("Gather", [value, b.constant(rows, "rows")], {"axis": 2})
    value = b.add("Gather", [value, b.constant(columns, "columns")], {"axis": 4})
    # [N, C, kh, h, kw, w]: the taps of a channel come first, then the windows.
    value = b.add("Transpose", [value], {"perm": (0, 1, 2, 4, 3, 5)})
    taps, count = len(rows) * len(columns), rows.shape[1] * columns.shape[1]
    target = b.constant(int64((-1, shape[1] * taps, count)), "shape")
    return b.add("Reshape", [value, target])


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(5, 9, 2)))

    def pair(low: int, high: int) -> Sequence[int]:
        return tuple(int(v) for v in rng.integers(low, high, 2))

    attrs = {
        "kernel_size": pair(1, 4),
        "dilation": pair(1, 3),
        "padding": pair(0, 2),
        "stride": pair(1, 4),
    }
    return Sample((shape,), attrs)


register(
    OpSpec(
        name="unfold",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(ModuleTarget(nn.Unfold, _bind_module), FunctionTarget(F.unfold, _bind)),
        float_kernel=F.unfold,
        lower=_lower,
        fills=lambda attrs: 0.0 if any(attrs["padding"]) else None,
        flops=no_flops,
        sample=_sample,
        doc="the windows of a map as columns",
    )
)
