"""Explicit geometry for imported convolutions and pools: ``auto_pad`` and defaults resolved."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode


def geometry(node: OnnxNode, kernel: tuple[int, ...]) -> dict[str, Any]:
    """kernel_shape, strides, dilations and pads (all begins, all ends), one number per axis."""
    rank = len(kernel)
    strides = tuple(node.attrs.get("strides") or (1,) * rank)
    dilations = tuple(node.attrs.get("dilations") or (1,) * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = node.attrs.get("auto_pad", "NOTSET")
    if auto == "NOTSET":
        pads = tuple(node.attrs.get("pads") or (0,) * (2 * rank))
    elif auto == "VALID":
        pads = (0,) * (2 * rank)
    else:
        totals = [
            max((-(-size // s) - 1) * s + r - size, 0)
            for size, s, r in zip(node.shape()[2:], strides, reach, strict=True)
        ]
        less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
        begins, ends = (less, more) if auto == "SAME_UPPER" else (more, less)
        pads = (*begins, *ends)
    return {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}


def kernel_of(node: OnnxNode) -> tuple[int, ...]:
    """The kernel's size: of the attribute, else of the weight."""
    given = node.attrs.get("kernel_shape")
    return tuple(given) if given else node.shape(1)[2:]


def is_even(pads: tuple[int, ...]) -> bool:
    """Whether both ends of every axis are padded alike."""
    half = len(pads) // 2
    return pads[:half] == pads[half:]
