"""ONNX TopK, which topk, sort and argsort lower to: order along an axis, the scale is kept.

In a tie the lowest index comes first. torch leaves that open for topk and for a sort that isn't
stable; the float kernels here are stable, so that every stage gives the same indices.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from qtune.arith_fast.held import channels_last
from qtune.errors import ConvertError
from qtune.ops.elementwise.operands import codes, is_plain
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatConst,
    FloatNode,
    FloatValue,
    HbirKernel,
    KernelNode,
    LowerCall,
    PlainValue,
)
from qtune.ops.quant.codes import onnx_type

Array = np.ndarray[Any, Any]


def ordered(
    x: torch.Tensor, dim: int, descending: bool, count: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``count`` values (all for ``None``) in order along ``dim``, and their indices."""
    values, indices = torch.sort(x, dim=dim, descending=descending, stable=True)
    if count is None or x.dim() == 0:
        return values, indices
    return values.narrow(dim, 0, count), indices.narrow(dim, 0, count)


def emit_top(b: Builder, call: LowerCall, count: int | None, largest: bool) -> Any:
    """Emit TopK along the attribute ``dim``; return values and indices."""
    shape, x = call.input_shapes[0] or (), call.operands[0]
    if not shape:
        index = b.constant(np.zeros((), dtype=np.int64), "index")
        return b.add("Identity", [x]), b.add("Identity", [index])
    axis = int(call.attrs["dim"]) % len(shape)
    k = b.constant(np.array([shape[axis] if count is None else count]), "k")
    attrs = {"axis": axis, "largest": int(largest), "sorted": 1}
    return b.add("TopK", [x, k], attrs, outputs=2)


def _run_float(attrs: Attrs, x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return ordered(x, attrs.get("axis", -1), bool(attrs.get("largest", 1)), int(k))


def _convert(ctx: ConvertContext, node: FloatNode) -> Any:
    k = node.operands[1]
    if is_plain(node):
        inputs = [
            ctx.constant(o.data) if isinstance(o, FloatConst) else o.value  # type: ignore[union-attr]
            for o in node.operands
        ]
        values, indices = ctx.add("TopK", inputs, node.attrs, outputs=2)
        kind = PlainValue if isinstance(node.operands[0], PlainValue) else FloatValue
        return kind(values), PlainValue(indices)
    if not isinstance(k, FloatConst):
        raise ConvertError(f"{node.name}: TopK needs its k as a constant of the file")
    x = codes(ctx, node, 0)
    attrs = {
        "axis": node.attrs.get("axis", -1),
        "largest": node.attrs.get("largest", 1),
        "k": [int(k.data.reshape(()))],
        "to": onnx_type(x.dtype),
    }
    values, indices = ctx.add("QTopK", [x.value], attrs, domain="qtune", outputs=2)
    return replace(x, value=values), PlainValue(indices)


def _reference(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    axis, k = int(attrs["axis"]), int(attrs["k"][0])
    order = np.argsort(-x if attrs["largest"] else x, axis=axis, kind="stable")
    first = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, first, axis=axis), first


def _fast(node: KernelNode) -> FastKernel:
    axis, k = int(node.attrs["axis"]), int(node.attrs["k"][0])
    largest = bool(node.attrs["largest"])

    def kernel(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = ordered(x, axis, largest, k)
        return channels_last(values), indices.contiguous()

    return kernel


KERNELS = (
    HbirKernel("TopK", run_float=_run_float, convert=_convert),
    HbirKernel("QTopK", "qtune", reference=_reference, fast=_fast),
)
"""The kernels of topk, sort and argsort; topk registers them."""
