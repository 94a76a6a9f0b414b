"""The output channels of a weight on one plain axis (numerics.md section 1, "granularity").

A transposed convolution stores its weight as ``[in, out / groups, kh, kw]``: with groups, axis 1
holds the channels of one group only. Its channel view is ``[in / groups, out, kh, kw]``, where
real output channel ``c = group * (out / groups) + o`` lies at position ``c`` of axis 1. Scales,
fake-quantize and folding work on the view; without groups view and weight are the same.
"""

from __future__ import annotations

from typing import Any


def channel_view(weight: Any, groups: int) -> Any:
    """Return ``[in, out / groups, ...]`` as ``[in / groups, out, ...]``; torch or NumPy.

    The gradient of a torch weight flows through. ``groups`` 1 returns ``weight`` itself.
    """
    if groups == 1:
        return weight
    inputs, outputs, *kernel = weight.shape
    split = weight.reshape(groups, inputs // groups, outputs, *kernel)
    return split.swapaxes(0, 1).reshape(inputs // groups, groups * outputs, *kernel)


def channel_unview(view: Any, groups: int) -> Any:
    """Undo :func:`channel_view`."""
    if groups == 1:
        return view
    inputs, outputs, *kernel = view.shape
    split = view.reshape(inputs, groups, outputs // groups, *kernel)
    return split.swapaxes(0, 1).reshape(groups * inputs, outputs // groups, *kernel)
