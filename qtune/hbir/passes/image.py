"""insert_image_preprocess, insert_image_convert, insert_roi_resize: pictures of bytes as inputs.

Rules: numerics.md section 3, "pictures". Colour conversion and normalization are one linear map of
the channels, a GEMM with int16 weights; the rest moves bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from qtune.arith.quantize import scale_from_absmax
from qtune.dtype import qint16
from qtune.errors import ArgumentError
from qtune.hbir.argument import Argument, unknown_choice
from qtune.hbir.builder import META_FLOPS
from qtune.hbir.domain import DOMAIN
from qtune.hbir.passes.edit import Edit, Grid, before_convert, shape_of
from qtune.hbir.passes.movement import PIXELS, Entry, entry_of, settle_input

Array = np.ndarray[Any, Any]
CENTRE = 128
CHANNELS = 3
UNIT = 1.0 / 128
"""Scale of a float picture input: pixels 0..255 are real numbers -1..1 (toolchain_facts 1.2)."""

_KR, _KB = 0.299, 0.114  # ITU-R BT.601: the parts of red and blue in luma
_KG = 1.0 - _KR - _KB
_FULL = np.array(
    [
        [1.0, 0.0, 2 * (1 - _KR)],
        [1.0, -2 * (1 - _KB) * _KB / _KG, -2 * (1 - _KR) * _KR / _KG],
        [1.0, 2 * (1 - _KB), 0.0],
    ]
)
"""RGB of (Y, Cb - 128, Cr - 128), all 0..255."""
_SWAP = np.eye(CHANNELS)[::-1]
_VIDEO = _FULL * np.array([255 / 219, 255 / 224, 255 / 224])
"""The same for Y in 16..235 and chroma in 16..240."""

_YUV_ZERO = {"full": (0.0, 128.0, 128.0), "video": (16.0, 128.0, 128.0)}
_MODES = MappingProxyType(
    {
        "skip": (np.eye(CHANNELS), (0.0, 0.0, 0.0)),
        "yuvbt601full2rgb": (_FULL, _YUV_ZERO["full"]),
        "yuvbt601full2bgr": (_SWAP @ _FULL, _YUV_ZERO["full"]),
        "yuvbt601video2rgb": (_VIDEO, _YUV_ZERO["video"]),
        "yuvbt601video2bgr": (_SWAP @ _VIDEO, _YUV_ZERO["video"]),
        "bgr2rgb": (_SWAP, (0.0, 0.0, 0.0)),
        "rgb2bgr": (_SWAP, (0.0, 0.0, 0.0)),
    }
)


def colour_map(mode: str, divisor: float, mean: Array, std: Array) -> tuple[Array, Array]:
    """Weight [3, 3] and bias [3] with ``weight @ (pixel - 128) + bias`` = the model's input.

    ``(matrix @ (pixel - zero) / divisor - mean) / std``, in float64.
    """
    matrix, zero = _MODES[mode]
    weight = matrix / divisor / std[:, None]
    bias = weight @ (CENTRE - np.array(zero)) - mean / std
    return weight, bias


def insert_image_preprocess(
    argument: Argument,
    mode: str,
    divisor: float,
    mean: Sequence[float],
    std: Sequence[float],
    is_signed: bool,
    bit_width: int,
    image_layout: str,
) -> list[Argument]:
    """Let a float picture input take bytes."""
    where = f"insert_image_preprocess({argument.name!r})"
    index = before_convert(argument, "insert_image_preprocess")
    if mode not in _MODES:
        raise unknown_choice(f"{where}: mode", mode, list(_MODES))
    if bit_width != 8:
        raise NotImplementedError(f"{where}: bit_width={bit_width} is not implemented; only 8 is")
    axis = _channel_axis(where, argument, image_layout)
    means, stds = (_channels(where, k, v) for k, v in (("mean", mean), ("std", std)))
    if isinstance(divisor, bool) or not isinstance(divisor, (int, float)):
        raise ArgumentError(f"{where}: divisor must be a number, got {divisor!r}")
    if not isinstance(is_signed, bool):
        raise ArgumentError(f"{where}: is_signed must be True or False, got {is_signed!r}")
    if divisor == 0 or not stds.all():
        raise ArgumentError(f"{where}: divisor and std must not be 0, got {divisor} and {std}")
    entry = _float_picture(where, argument)
    weight, bias = colour_map(mode, float(divisor), means, stds)
    old, name, shape = argument.value, argument.name, argument.shape
    edit = Edit(argument.function.model)
    with edit.emitting_for(edit.operator_name(f"{name}_preprocess")):
        edit.free_name(old, f"{name}_real")
        byte = ir.DataType.INT8 if is_signed else ir.DataType.UINT8
        new = edit.new_input(name, byte, shape)
        attrs = {"scale": 1.0, "zero": 0 if is_signed else CENTRE}
        real = (ir.DataType.FLOAT, shape)
        pixels = edit.emit(PIXELS, [new], attrs, real, domain=DOMAIN)
        mixed = _mix(edit, pixels, weight, bias, axis, shape)
        result = edit.on_grid(mixed, entry.grid)
        return settle_input(edit, argument, index, entry, [new], result)


def _mix(
    edit: Edit, value: ir.Value, weight: Array, bias: Array, axis: int, shape: Sequence[int]
) -> ir.Value:
    """The linear map of the channels: on the last axis, or as a 1 x 1 convolution."""
    kernel = weight if axis == 3 else weight[..., None, None]
    scale = scale_from_absmax(np.abs(weight).max(1).astype(np.float32), qint16)
    factor = edit.constant(kernel.astype(np.float32), "weight")
    steps = edit.constant(scale.reshape(-1, *[1] * (kernel.ndim - 1)), "weight_scale")
    limits = {"axis": 0, "qmin": qint16.qmin, "qmax": qint16.qmax}
    like = (ir.DataType.FLOAT, kernel.shape)
    quantized = edit.emit("FakeQuant", [factor, steps], limits, like, domain=DOMAIN)
    operands = [value, quantized, edit.constant(bias.astype(np.float32), "bias")]
    real = (ir.DataType.FLOAT, shape)
    if axis == 3:
        result = edit.emit("Linear", operands, {}, real, domain=DOMAIN)
    else:
        result = edit.emit("Conv", operands, {"kernel_shape": [1, 1]}, real)
    node = result.producer()
    if node is not None:
        node.metadata_props[META_FLOPS] = str(CHANNELS * int(np.prod(shape)))
    return result


def insert_image_convert(argument: Argument, mode: str) -> list[Argument]:
    """Let a picture input take camera planes."""
    where = f"insert_image_convert({argument.name!r})"
    index = before_convert(argument, "insert_image_convert")
    _check_mode(where, mode)
    entry, scale = _picture(where, argument)
    height, width, last = _layout(where, argument, mode)
    n = argument.shape[0]
    edit = Edit(argument.function.model)
    with edit.emitting_for(edit.operator_name(f"{argument.name}_convert")):
        planes = _planes(edit, argument, mode, (n, height, width))
        value = _join(edit, planes, scale, last, entry.grid)
        return settle_input(edit, argument, index, entry, planes, value)


def insert_roi_resize(
    argument: Argument,
    mode: str,
    interp_mode: str,
    pad_mode: str,
    pad_value: Sequence[int],
    source_size: tuple[int, int] | None,
) -> list[Argument]:
    """Let a picture input take a region of larger camera planes."""
    where = f"insert_roi_resize({argument.name!r})"
    index = before_convert(argument, "insert_roi_resize")
    _check_mode(where, mode)
    if interp_mode != "bilinear":
        raise NotImplementedError(f"{where}: interp_mode={interp_mode!r}; only 'bilinear' is done")
    if pad_mode != "constant":
        raise NotImplementedError(f"{where}: pad_mode={pad_mode!r}; only 'constant' is done")
    border = _pad_bytes(where, pad_value)
    entry, scale = _picture(where, argument)
    height, width, last = _layout(where, argument, mode)
    source = (height, width) if source_size is None else source_size
    _check_even(where, "source_size", mode, *source)
    n = argument.shape[0]
    edit = Edit(argument.function.model)
    with edit.emitting_for(edit.operator_name(f"{argument.name}_roi_resize")):
        name = argument.name
        planes = _planes(edit, argument, mode, (n, *source))
        roi = edit.new_input(f"{name}_roi", ir.DataType.INT32, (n, 4))
        resized = [
            _resize(edit, plane, roi, (height, width), halve, border[halve - 1])
            for halve, plane in enumerate(planes, start=1)
        ]
        value = _join(edit, resized, scale, last, entry.grid)
        return settle_input(edit, argument, index, entry, [*planes, roi], value)


def _resize(
    edit: Edit, plane: ir.Value, roi: ir.Value, size: tuple[int, int], halve: int, pad: int
) -> ir.Value:
    height, width = size[0] // halve, size[1] // halve
    attrs = {"height": height, "width": width, "halve": halve, "pad": pad}
    n, channels = shape_of(plane)[0], shape_of(plane)[3]
    result = (ir.DataType.UINT8, (n, height, width, channels))
    return edit.emit("RoiResize", [plane, roi], attrs, result, domain=DOMAIN)


def _planes(
    edit: Edit, argument: Argument, mode: str, picture: tuple[int, int, int]
) -> list[ir.Value]:
    n, height, width = picture
    name = argument.name
    edit.free_name(argument.value, f"{name}_picture")
    byte = ir.DataType.UINT8
    if mode == "gray":
        return [edit.new_input(name, byte, (n, height, width, 1))]
    half = (n, height // 2, width // 2, 2)
    luma = edit.new_input(f"{name}_y", byte, (n, height, width, 1))
    return [luma, edit.new_input(f"{name}_uv", byte, half)]


def _join(
    edit: Edit, planes: Sequence[ir.Value], scale: float, last: bool, grid: Grid | None
) -> ir.Value:
    """Planes as the real numbers of one picture, in its layout."""
    n, height, width, _ = shape_of(planes[0])
    channels = 1 if len(planes) == 1 else CHANNELS
    real = (ir.DataType.FLOAT, (n, height, width, channels))
    if len(planes) == 1:
        attrs = {"scale": scale, "zero": CENTRE}
        value = edit.emit(PIXELS, planes, attrs, real, domain=DOMAIN)
    else:
        value = edit.emit("Nv12", planes, {"scale": scale}, real, domain=DOMAIN)
    if not last:
        shape = (n, channels, height, width)
        value = edit.emit("Transpose", [value], {"perm": [0, 3, 1, 2]}, (real[0], shape))
    return edit.on_grid(value, grid)


def _check_mode(where: str, mode: str) -> None:
    if mode in ("nv12_yh12", "nv12_yh10"):
        raise NotImplementedError(
            f"{where}: mode={mode!r} is not implemented: the layout of planes of more than 8 bits "
            "is not published"
        )
    if mode not in ("nv12", "gray"):
        raise unknown_choice(f"{where}: mode", mode, ("nv12", "gray"))


def _picture(where: str, argument: Argument) -> tuple[Entry, float]:
    """The entry of a picture input, and the scale of its codes ``pixel - 128``.

    Between pixels and a colour conversion no grid lies: codes of scale 1 go on as they are.
    """
    entry = entry_of(argument.value)
    if entry.pixels is not None and float(entry.pixels["scale"]) == 1.0:
        return Entry(entry.target, entry.pixels, None), 1.0
    return _float_picture(where, argument), UNIT


def _float_picture(where: str, argument: Argument) -> Entry:
    if argument.kind != "inputs":
        raise ArgumentError(f"{where}: pictures are inputs, and this argument is an output")
    entry = entry_of(argument.value)
    if argument.dtype != "float32" or entry.grid is None:
        raise ArgumentError(
            f"{where}: expected a float32 input that goes straight to a QuantStub, got "
            f"{argument}. Put the QuantStub first in forward, and insert the picture operators in "
            "the order transpose, preprocess, convert"
        )
    return entry


def _layout(where: str, argument: Argument, mode: str) -> tuple[int, int, bool]:
    """Height, width, and whether the channels come last."""
    wanted, shape = (1 if mode == "gray" else CHANNELS), argument.shape
    if len(shape) == 4 and shape[3] == wanted:
        height, width, last = shape[1], shape[2], True
    elif len(shape) == 4 and shape[1] == wanted:
        height, width, last = shape[2], shape[3], False
    else:
        raise ArgumentError(
            f"{where}: mode {mode!r} makes pictures of {wanted} channel(s), [N, H, W, {wanted}] or "
            f"[N, {wanted}, H, W], got {list(shape)}"
        )
    _check_even(where, "the picture", mode, height, width)
    return height, width, last


def _check_even(where: str, what: str, mode: str, height: int, width: int) -> None:
    odd = mode == "nv12" and (height % 2 or width % 2)
    if odd or height < 1 or width < 1:
        raise ArgumentError(
            f"{where}: {what} is {height} x {width}; the sizes of an NV12 picture are even"
        )


def _channel_axis(where: str, argument: Argument, layout: str) -> int:
    axes = {"NHWC": 3, "NCHW": 1}
    if layout not in axes:
        raise unknown_choice(f"{where}: image_layout", layout, list(axes))
    shape = argument.shape
    if len(shape) != 4 or shape[axes[layout]] != CHANNELS:
        raise ArgumentError(
            f"{where}: expected {CHANNELS} channels in dimension {axes[layout]} of a 4-dimensional "
            f"{layout} input, got {list(shape)}. Call insert_transpose(permutes=[0, 3, 1, 2]) on "
            "an NCHW input first, or pass image_layout"
        )
    return axes[layout]


def _channels(where: str, name: str, values: Sequence[float]) -> Array:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape != (CHANNELS,) or not np.isfinite(array).all():
        raise ArgumentError(f"{where}: {name} must hold {CHANNELS} numbers, got {values!r}")
    return array


def _pad_bytes(where: str, pad_value: Sequence[int]) -> tuple[int, ...]:
    values = [int(value) for value in pad_value]
    if len(values) != 2 or not all(-128 <= value <= 255 for value in values):
        raise ArgumentError(f"{where}: pad_value must hold two bytes, got {pad_value!r}")
    return tuple(value % 256 for value in values)
