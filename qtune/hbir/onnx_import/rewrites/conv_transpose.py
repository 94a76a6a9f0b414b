"""ConvTranspose: explicit pads and output padding instead of ``auto_pad`` and ``output_shape``."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.hbir.onnx_import.rewrites.windows import kernel_of
from qtune.ops.kernel import Builder
from qtune.ops.quant.codes import range_dtype
from qtune.ops.quant.fake_quant import emit_fake_quant


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    weight = node.weight(axis=1)
    kernel = kernel_of(node)
    rank = len(kernel)
    given = {
        "strides": tuple(node.attrs.get("strides") or (1,) * rank),
        "dilations": tuple(node.attrs.get("dilations") or (1,) * rank),
        "output_padding": tuple(node.attrs.get("output_padding") or (0,) * rank),
        "pads": tuple(node.attrs.get("pads") or (0,) * (2 * rank)),
    }
    auto = node.attrs.get("auto_pad", "NOTSET")
    if auto == "VALID":
        given["pads"] = (0,) * (2 * rank)
    wanted = tuple(node.attrs.get("output_shape") or ())[-rank:]
    if not wanted and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(i * s for i, s in zip(node.shape()[2:], given["strides"], strict=True))
    if wanted:
        given |= _padding(node, kernel, given, wanted, auto == "SAME_UPPER")
    groups = int(node.attrs.get("group", 1))
    attrs = {"kernel_shape": kernel, "group": groups, **given}
    if weight is None or weight.axis < 0 or groups == 1:
        return emit(b, node, attrs)
    # one scale per channel of a group, which ONNX can't tell apart from that of the other groups
    data = b.constant(weight.values(), "weight")
    dtype = range_dtype({"qmin": weight.limits[0], "qmax": weight.limits[1]})
    scales = np.tile(weight.scale, groups)
    grid = emit_fake_quant(b, data, scales, dtype, axis=1, rank=weight.data.ndim, groups=groups)
    return b.add("ConvTranspose", [node.inputs[0], grid, *node.inputs[2:3]], attrs)


def _padding(
    node: OnnxNode,
    kernel: tuple[int, ...],
    given: dict[str, tuple[int, ...]],
    wanted: tuple[int, ...],
    more_behind: bool,
) -> dict[str, tuple[int, ...]]:
    """pads and output_padding that give the wanted sizes."""
    begins, ends, extra = [], [], []
    for axis, size in enumerate(node.shape()[2:]):
        reach = (kernel[axis] - 1) * given["dilations"][axis] + 1
        full = given["strides"][axis] * (size - 1) + reach + given["output_padding"][axis]
        total = max(full - wanted[axis], 0)
        less, more = total // 2, total - total // 2
        begins.append(less if more_behind else more)
        ends.append(more if more_behind else less)
        extra.append(given["output_padding"][axis] + max(wanted[axis] - full, 0))
    return {"pads": (*begins, *ends), "output_padding": tuple(extra)}


register_rewrite("ConvTranspose", _rewrite)
