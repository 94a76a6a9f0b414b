"""What each series of marches takes of the GEMM operators (toolchain_facts 7.1 and 7.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qtune.ops.spec import MarchRule

Shapes = Sequence[tuple[int, ...] | None]

OUTPUTS_INT8 = ("qint8", "qint32")
OUTPUTS = ("qint8", "qint16", "qint32")


def first_excess(limits: Sequence[tuple[str, int, int]]) -> str | None:
    """The first ``(what, value, largest)`` whose value is too large, in words."""
    for what, value, largest in limits:
        if value > largest:
            return f"{what} is {value}, at most {largest} is possible"
    return None


def _conv(
    attrs: Mapping[str, Any], shapes: Shapes, max_kernel: int, max_dilation: int
) -> str | None:
    outputs, inputs, *kernel = shapes[1] or (0, 0)
    stride, dilation = max(attrs["stride"]), max(attrs["dilation"])
    if dilation > 1 and stride > 1:
        return f"stride {stride} together with dilation {dilation}; one of them must be 1"
    return first_excess(
        [
            ("the number of input channels per group", inputs, 8192),
            ("the number of output channels", outputs, 65536),
            ("the kernel size", max(kernel, default=0), max_kernel),
            ("the dilation", dilation, max_dilation),
        ]
    )


def _conv_bayes(attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]) -> str | None:
    return _conv(attrs, shapes, 31, 16)


def _conv_nash(attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]) -> str | None:
    weight, data = shapes[1] or (), shapes[0] or ()
    summed = 1
    for size in weight[1:]:
        summed *= size
    return _conv(attrs, shapes, 31, 18) or first_excess(
        [
            ("the batch size", data[0] if data else 0, 4096),
            ("the largest of channels, height and width", max(data[1:], default=0), 65536),
            ("the number of inputs summed per output", summed, 65536),
            ("the stride", max(attrs["stride"]), 256),
        ]
    )


def _transpose(
    attrs: Mapping[str, Any], shapes: Shapes, min_kernel: int, max_stride: int
) -> str | None:
    inputs, outputs, *kernel = shapes[1] or (0, 0)
    if min(kernel, default=min_kernel) < min_kernel:
        return f"the kernel size is {min(kernel)}, at least {min_kernel} is needed"
    return first_excess(
        [
            ("the kernel size", max(kernel, default=0), 14),
            ("the stride", max(attrs["stride"]), max_stride),
            ("the number of input channels", inputs, 2048),
            ("the number of output channels", outputs * attrs["groups"], 2048),
        ]
    )


def _transpose_bernoulli(
    attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]
) -> str | None:
    if min(attrs["stride"]) < 2:
        return f"the stride is {min(attrs['stride'])}, at least 2 is needed"
    return _transpose(attrs, shapes, 2, 4)


def _transpose_bayes(
    attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]
) -> str | None:
    return _transpose(attrs, shapes, 1, 14)


def _transpose_nash(
    attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]
) -> str | None:
    kernel = (shapes[1] or (0, 0))[2:]
    if tuple(kernel) == (1, 1):
        return "the kernel is 1 x 1; use a convolution"
    if max(attrs["dilation"]) > 1:
        return f"the dilation is {max(attrs['dilation'])}, only 1 is possible"
    if any(s >= k for s, k in zip(attrs["stride"], kernel, strict=True)):
        return f"the stride {attrs['stride']} must be smaller than the kernel {tuple(kernel)}"
    return _transpose(attrs, shapes, 1, 14)


def _linear(attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]) -> str | None:
    # A larger product of both sizes than the linear unit takes runs as a 1 x 1 convolution
    # (toolchain_facts 4.3), hence no limit on it here.
    outputs, inputs = shapes[1] or (0, 0)
    return first_excess(
        [("the number of inputs", inputs, 8192), ("the number of outputs", outputs, 8192)]
    )


def _matmul(attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]) -> str | None:
    sizes = [size for shape in shapes for size in (shape or ())[-2:]]
    batch = 1
    for size in output[:-2]:
        batch *= size
    return first_excess(
        [("the largest matrix side", max(sizes, default=0), 8192), ("the batch", batch, 4096)]
    )


INT8, INT8_16 = ("qint8",), ("qint8", "qint16")

CONV = (
    MarchRule(("bernoulli",), INT8, OUTPUTS_INT8),
    MarchRule(("bayes",), INT8_16, OUTPUTS, _conv_bayes),
    MarchRule(("nash",), INT8_16, OUTPUTS, _conv_nash),
)
CONV_TRANSPOSE = (
    MarchRule(("bernoulli",), INT8, OUTPUTS_INT8, _transpose_bernoulli),
    MarchRule(("bayes",), INT8, OUTPUTS_INT8, _transpose_bayes),
    MarchRule(("nash",), INT8_16, OUTPUTS, _transpose_nash),
)
LINEAR = (
    MarchRule(("bayes",), INT8, OUTPUTS, _linear),
    MarchRule(("nash",), INT8_16, OUTPUTS, _linear),
)
MATMUL = (
    MarchRule(("bernoulli",), INT8, OUTPUTS_INT8),
    MarchRule(("bayes",), INT8, OUTPUTS, _matmul),
    MarchRule(("nash",), INT8_16, OUTPUTS, _matmul),
)
