"""Explicit geometry for imported convolutions and pools: ``auto_pad`` and defaults resolved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode
from qtune.ops.kernel import Builder, Value


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


@dataclass(frozen=True, slots=True)
class Window:
    """A pool's window over two axes; ``sizes`` and ``results``: the map before and after it."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    sizes: tuple[int, ...]
    results: tuple[int, ...]

    def is_even(self) -> bool:
        """Whether both ends of an axis are padded alike, by half a kernel at most."""
        wide = any(p > k // 2 for p, k in zip(self.pads[:2], self.kernel, strict=True))
        return self.pads[:2] == self.pads[2:] and not wide

    def ends(self) -> tuple[int, ...]:
        """What the ends are padded by so that all windows are whole, those of ceil_mode too."""
        found = []
        for axis, begin in enumerate(self.pads[:2]):
            reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
            needed = (self.results[axis] - 1) * self.strides[axis] + reach
            found.append(max(self.pads[2 + axis], needed - self.sizes[axis] - begin))
        return tuple(found)


def window_of(node: OnnxNode) -> Window:
    """The window of a pool; that of rows is 1 high."""
    given = geometry(node, tuple(node.attrs["kernel_shape"]))
    rank, output = len(given["kernel_shape"]), node.output_shapes[0]
    if rank > 2:
        raise node.refusal(f"{rank} spatial axes have no form here, only 1 and 2")
    if output is None:
        raise node.refusal("its sizes are computed while the model runs; make them constant")
    ones, zeros = (1,) * (2 - rank), (0,) * (2 - rank)
    pads = given["pads"]
    return Window(
        (*ones, *given["kernel_shape"]),
        (*ones, *given["strides"]),
        (*ones, *given["dilations"]),
        (*zeros, *pads[:rank], *zeros, *pads[rank:]),
        (*ones, *node.shape()[2:]),
        (*ones, *output[2:]),
    )


def on_maps(b: Builder, node: OnnxNode, emit: Callable[[Any], Value]) -> Value:
    """``emit`` of the input, which is a map; rows [N, C, L] are given as maps of height 1."""
    if len(node.shape()) == 4:
        return emit(node.inputs[0])
    axes = b.constant(np.array([2], dtype=np.int64), "axes")
    made: Value = b.add("Squeeze", [emit(b.add("Unsqueeze", [node.inputs[0], axes])), axes])
    return made
