"""What each series of marches takes of the GEMM operators (toolchain_facts 7.1 and 7.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from qtune.ops.spec import Float16, MarchRule

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
    attrs: Mapping[str, Any], shapes: Shapes, max_outputs: int, max_dilation: int
) -> str | None:
    outputs, inputs, *kernel = shapes[1] or (0, 0)
    stride, dilation = max(attrs["stride"]), max(attrs["dilation"])
    if dilation > 1 and stride > 1:
        return f"stride {stride} together with dilation {dilation}; one of them must be 1"
    return first_excess(
        [
            ("the number of input channels per group", inputs, 8192),
            ("the number of output channels", outputs, max_outputs),
            ("the kernel size", max(kernel, default=0), 31),
            ("the dilation", dilation, max_dilation),
        ]
    )


def _conv_bayes(attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]) -> str | None:
    return _conv(attrs, shapes, 16384, 16)


def _conv_nash(attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]) -> str | None:
    weight, data = shapes[1] or (), shapes[0] or ()
    summed = 1
    for size in weight[1:]:
        summed *= size
    return _conv(attrs, shapes, 65536, 18) or first_excess(
        [
            ("the batch size", data[0] if data else 0, 4096),
            ("the largest of channels, height and width", max(data[1:], default=0), 65536),
            ("the number of inputs summed per output", summed, 65536),
            ("the stride", max(attrs["stride"]), 256),
            ("the padding", _largest_padding(attrs), 256),
        ]
    )


def _largest_padding(attrs: Mapping[str, Any]) -> int:
    padding = attrs.get("padding", 0)
    sides = padding if isinstance(padding, (tuple, list)) else (padding,)
    return max((side for side in sides if isinstance(side, int)), default=0)


def _conv_dtypes(
    attrs: Mapping[str, Any], shapes: Shapes, inputs: frozenset[str], output: str
) -> str | None:
    """More output channels than 8192 leave the model only, which is in high precision."""
    outputs = (shapes[1] or (0,))[0]
    if outputs > 8192 and output not in ("", "qint32"):
        return (
            f"the number of output channels is {outputs}; above 8192 only the last layer of the "
            "model with a high-precision output is possible. Split it"
        )
    return None


def _conv_dtypes_nash(
    attrs: Mapping[str, Any], shapes: Shapes, inputs: frozenset[str], output: str
) -> str | None:
    """An int16 depthwise convolution has an odd stride, or 2."""
    weight = shapes[1] or (0, 0)
    depthwise = attrs["groups"] > 1 and weight[1] == 1
    even = [stride for stride in attrs["stride"] if stride % 2 == 0 and stride != 2]
    if "qint16" in inputs and depthwise and even:
        return (
            f"a qint16 depthwise convolution has an odd stride or 2, got {even[0]}; set its input "
            "to qint8"
        )
    return _conv_dtypes(attrs, shapes, inputs, output)


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
    if all(size == 1 for size in kernel):
        return f"the kernel is {' x '.join(map(str, kernel))}; use a convolution"
    if max(attrs["dilation"]) > 1:
        return f"the dilation is {max(attrs['dilation'])}, only 1 is possible"
    # Both published tables of nash (J6, S100) ask for stride < kernel, so kernel 2 with stride 2 is
    # refused although the arithmetic would be no trouble: what passes here has to compile there.
    if any(s >= k for s, k in zip(attrs["stride"], kernel, strict=True)):
        return (
            f"the stride {attrs['stride']} must be smaller than the kernel {tuple(kernel)}; pad "
            "the weight with zeros to a larger kernel (the result is the same after cropping), or "
            "use interpolate and a convolution"
        )
    batch = (shapes[0] or (0,))[0]
    if batch > 128:
        return f"the batch size is {batch}, at most 128 is possible"
    return _transpose(attrs, shapes, 1, 14)


def _conv3d(attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]) -> str | None:
    if tuple(attrs["stride"]) not in ((1, 1, 1), (2, 2, 2)):
        return f"the stride is {tuple(attrs['stride'])}, only 1 or 2 on all three axes is possible"
    kernel = max((shapes[1] or (0, 0))[2:], default=0)
    return first_excess([("the kernel size", kernel, 9)]) or _conv(attrs, shapes, 65536, 18)


def _conv3d_nash(attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]) -> str | None:
    weight, data = shapes[1] or (), shapes[0] or ()
    channels = max(data[1] if len(data) > 1 else 0, weight[0] if weight else 0)
    return _conv3d(attrs, shapes, output) or first_excess(
        [
            ("the batch size", data[0] if data else 0, 128),
            ("the number of channels", channels, 4096),
        ]
    )


def _deform(attrs: Mapping[str, Any], shapes: Shapes, output: tuple[int, ...]) -> str | None:
    outputs, _, *kernel = shapes[2] or (0, 0)
    parts = (shapes[1] or (0, 0))[1] // (2 * max(prod(kernel), 1))
    steps = {"stride": max(attrs["stride"]), "dilation": max(attrs["dilation"])}
    return first_excess(
        [
            ("the kernel size", max(kernel, default=0), 8),
            *((f"the {name}", value, 1) for name, value in steps.items()),
            ("the number of offset groups", parts, 2),
            ("the number of output channels", outputs, 8192),
        ]
    )


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
GEMM = Float16.RESULT

CONV = (
    MarchRule(("bernoulli",), INT8, OUTPUTS_INT8),
    MarchRule(("bayes",), INT8_16, OUTPUTS, _conv_bayes, _conv_dtypes, float16=GEMM),
    MarchRule(("nash",), INT8_16, OUTPUTS, _conv_nash, _conv_dtypes_nash, float16=GEMM),
)
CONV_TRANSPOSE = (
    MarchRule(("bernoulli",), INT8, OUTPUTS_INT8, _transpose_bernoulli),
    MarchRule(("bayes",), INT8, OUTPUTS_INT8, _transpose_bayes),
    MarchRule(("nash",), INT8_16, OUTPUTS, _transpose_nash, float16=GEMM),
)
CONV3D = (
    MarchRule(("bayes",), INT8, INT8, _conv3d, operands={"weight": INT8}),
    MarchRule(("nash",), INT8, INT8, _conv3d_nash, operands={"weight": INT8}),
)
CONV_TRANSPOSE3D = (MarchRule(("nash",), INT8, INT8, _transpose_nash, operands={"weight": INT8}),)
"""No list has a transposed convolution of volumes: int8 like conv3d, sizes like conv2dtranspose."""
DEFORM_CONV = (
    MarchRule(
        ("nash",),
        INT8,
        OUTPUTS,
        _deform,
        operands={"offset": ("qint16",), "weight": INT8},
    ),
)
LINEAR = (
    MarchRule(("bayes",), INT8, OUTPUTS, _linear),
    MarchRule(("nash",), INT8_16, OUTPUTS, _linear, float16=GEMM),
)
MATMUL = (
    MarchRule(("bernoulli",), INT8, OUTPUTS_INT8),
    MarchRule(("bayes",), INT8, OUTPUTS, _matmul),
    MarchRule(("nash",), INT8_16, OUTPUTS, _matmul, float16=GEMM),
)
