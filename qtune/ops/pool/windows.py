"""Where pooling windows lie, and how many elements each averages over, along one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtune.arith.rounding import Int64Array


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of one axis: elements ``start <= i < end`` of the input, one pair per output.

    ``count``: how many elements the average divides by (more than ``end - start`` where a border
    counts). int64 [out] each.
    """

    start: Int64Array
    end: Int64Array
    count: Int64Array


def strided_windows(
    size: int, kernel: int, stride: int, padding: int, *, ceil_mode: bool, count_pad: bool
) -> Windows:
    """Windows of a pool with a stride; ``padding`` on both sides.

    ``ceil_mode`` adds a last window that reaches over the edge if it starts before the end pad.
    ``count_pad``: the border counts in the average (not the part that ceil_mode added).
    """
    room = size + 2 * padding - kernel
    steps = -(-room // stride) if ceil_mode else room // stride
    if ceil_mode and steps * stride >= size + padding:
        steps -= 1
    start = np.arange(steps + 1, dtype=np.int64) * stride - padding
    end = np.minimum(start + kernel, size + padding)
    inside_start, inside_end = np.maximum(start, 0), np.minimum(end, size)
    count = end - start if count_pad else inside_end - inside_start
    return Windows(inside_start, inside_end, count)


def adaptive_windows(size: int, out: int) -> Windows:
    """Windows of an adaptive pool: ``floor(o * in / out)`` to ``ceil((o + 1) * in / out)``."""
    index = np.arange(out, dtype=np.int64)
    start = index * size // out
    end = -(-(index + 1) * size // out)
    return Windows(start, end, end - start)


def pair(value: Any) -> tuple[Any, Any]:
    """An argument given once for both axes, or for each."""
    if isinstance(value, Sequence):
        return (value[0], value[-1])
    return (value, value)


def single(value: Any) -> Any:
    """An argument of a 1-d pool, given as a number or as a sequence of one."""
    return value[0] if isinstance(value, Sequence) else value


def stride_or(kernel_size: Any, stride: Any) -> Any:
    """The stride, or the kernel size where none (``None`` or an empty list) is given."""
    missing = stride is None or (isinstance(stride, Sequence) and not stride)
    return kernel_size if missing else stride


def end_pads(size: Sequence[int], geometry: Mapping[str, Any]) -> tuple[int, int]:
    """End pads that make the windows of ``ceil_mode`` fit without it."""
    result = []
    for axis in range(2):
        kernel, stride, pad = (
            int(geometry[key][axis]) for key in ("kernel_size", "stride", "padding")
        )
        windows = strided_windows(
            size[axis], kernel, stride, pad, ceil_mode=bool(geometry["ceil_mode"]), count_pad=True
        )
        result.append(max((len(windows.start) - 1) * stride + kernel - size[axis] - pad, 0))
    return result[0], result[1]


def unread(size: Sequence[int], geometry: Mapping[str, Any]) -> tuple[int, int]:
    """Elements at the end of each padded axis that no window reads, where ceil_mode drops a window.

    torch leaves out a window that would start in the end pad. ONNX's shape inference counts it,
    unless these elements are gone.
    """
    found = []
    for axis in range(2):
        kernel, stride, pad = (
            int(geometry[key][axis]) for key in ("kernel_size", "stride", "padding")
        )
        reach = (kernel - 1) * int(geometry.get("dilation", (1, 1))[axis]) + 1
        room = size[axis] + 2 * pad - reach
        steps = -(-room // stride)
        is_dropped = bool(geometry["ceil_mode"]) and steps * stride >= size[axis] + pad
        found.append(room % stride if is_dropped else 0)
    return found[0], found[1]
