"""adaptive_max_pool2d: maxima to a given size; keeps the input's scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.arith.rounding import Int64Array
from qtune.arith_fast.held import channels_last
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    LowerCall,
    QValue,
)
from qtune.ops.movement.moving import carry, operand_value
from qtune.ops.pool.adaptive_avg_pool2d import flops
from qtune.ops.pool.spatial import on_maps
from qtune.ops.pool.windows import adaptive_windows, pair
from qtune.ops.quant.codes import onnx_type
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule, Sample

OP = "WindowMax"
FLOAT = 1
"""onnx.TensorProto.FLOAT."""


def _bind(input: Any, output_size: Any, return_indices: bool = False) -> Bound:
    if return_indices:
        raise NotImplementedError("adaptive_max_pool2d with return_indices=True")
    return Bound((input,), {"output_size": pair(output_size)})


def _bind_module(module: nn.AdaptiveMaxPool2d, input: Any) -> Bound:
    return _bind(input, module.output_size, module.return_indices)


def window_index(size: int, out: int) -> Int64Array:
    """int64 [out, longest]: the elements of each window; a shorter one repeats its last."""
    windows = adaptive_windows(size, out)
    longest = int(windows.count.max())
    index = windows.start[:, None] + np.arange(longest)
    return np.asarray(np.minimum(index, windows.end[:, None] - 1))


def lower_map(b: Builder, value: Any, shape: Sequence[int], output_size: Sequence[Any]) -> Any:
    """WindowMax of a value [N, C, H, W]; ``None`` as a size keeps that axis."""
    names = ("rows", "columns")
    constants = [
        b.constant(window_index(size, size if wanted is None else int(wanted)), name)
        for size, wanted, name in zip(shape[2:], output_size, names, strict=True)
    ]
    return b.add(OP, [value, *constants], {"to": FLOAT}, domain="qtune")


def _lower(b: Builder, call: LowerCall) -> Any:
    size = call.attrs["output_size"]
    return on_maps(b, call, 2, lambda value, shape: lower_map(b, value, shape, size))


def _run_float(
    attrs: Attrs, x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
) -> torch.Tensor:
    x = x[:, :, rows].amax(3)
    return x[:, :, :, columns].amax(4)


def _convert(ctx: ConvertContext, node: FloatNode) -> Any:
    rest = [operand_value(ctx, node, operand) for operand in node.operands[1:]]
    x = node.operands[0]
    to = onnx_type(x.dtype) if isinstance(x, QValue) else FLOAT
    return carry(ctx, node, lambda v: ctx.add(OP, [v, *rest], {"to": to}, domain="qtune"))


def _reference(
    attrs: Attrs, x: np.ndarray[Any, Any], rows: Int64Array, columns: Int64Array
) -> np.ndarray[Any, Any]:
    return np.asarray(x[:, :, rows].max(axis=3)[:, :, :, columns].max(axis=4))


def _fast(node: KernelNode) -> FastKernel:
    rows, columns = (torch.from_numpy(np.array(node.constants[i])) for i in (1, 2))
    return lambda x: channels_last(_run_float({}, x, rows, columns))


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(1, 9, 2)))
    height, width = (int(v) for v in rng.integers(1, 9, 2))
    size = [(1, 1), (height, width), (height, None)][int(rng.integers(3))]
    return Sample((shape,), {"output_size": size})


register(
    OpSpec(
        name="adaptive_max_pool2d",
        family="pool",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.AdaptiveMaxPool2d, _bind_module),
            FunctionTarget(F.adaptive_max_pool2d, _bind),
        ),
        float_kernel=F.adaptive_max_pool2d,
        lower=_lower,
        kernels=(
            HbirKernel(
                OP,
                "qtune",
                run_float=_run_float,
                convert=_convert,
                reference=_reference,
                fast=_fast,
            ),
        ),
        flops=flops,
        sample=_sample,
        doc="maxima to a given size",
    )
)
