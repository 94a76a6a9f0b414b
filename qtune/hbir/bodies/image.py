"""Bodies of the picture operators: bytes to centred codes, NV12, regions of interest."""

from __future__ import annotations

import re
from itertools import count

from qtune.hbir.bodies.quant import FLOAT, IMPORTS, INT64, UINT8
from qtune.hbir.domain import DomainOp

_INT8 = 3

_REAL = f"""
  wide = Cast<to: int = {FLOAT}>(pixels)
  step = Constant<value_float: float = @scale>()
"""

_PLANES = """
  factors = Constant<value_floats: floats = [1.0, 2.0, 2.0, 1.0]>()
  chroma = Resize<mode: string = "nearest", nearest_mode: string = "floor",
    coordinate_transformation_mode: string = "asymmetric">(uv, , factors)
  pixels = Concat<axis: int = 3>(y, chroma)
"""


_INNER = re.compile(r"(?<== )(.*[(, ])([A-Z][A-Za-z]*\([^()]*\))(.*)$")


def _flat(text: str) -> str:
    """The text with one operator on each line: the ONNX parser takes no nested calls."""
    numbers = count()
    lines: list[str] = []
    for line in text.splitlines():
        while (found := _INNER.search(line)) is not None:
            name = f"step_{next(numbers)}"
            lines.append(f"  {name} = {found.group(2)}")
            line = line[: found.start()] + found.group(1) + name + found.group(3)
        lines.append(line)
    return "\n".join(lines)


def _taps(axis: str, first: str, last: str, out: str, size: str) -> str:
    """Indices ``<axis>0``, ``<axis>1`` [N, out] and the weight ``<axis>w`` of the second."""
    return f"""
  {axis}_length = Add(Sub({last}, {first}), one)
  {axis}_steps = Range(zero, {out}, one)
  {axis}_odd = Add(Mul({axis}_steps, two), one)
  {axis}_far = Sub(Mul({axis}_odd, {axis}_length), {out})
  {axis}_near = Mul(Max({axis}_far, zero), unit)
  {axis}_whole = Div(Add({axis}_near, {out}), Mul(two, {out}))
  {axis}_end = Mul(Sub({axis}_length, one), unit)
  {axis}_place = Min({axis}_whole, {axis}_end)
  {axis}_low = Div({axis}_place, unit)
  {axis}_part = Sub({axis}_place, Mul({axis}_low, unit))
  {axis}0 = Add({first}, {axis}_low)
  {axis}1 = Min(Add({axis}0, one), {last})
  {axis}_v1 = Div(Add({axis}_part, half_step), fine)
  {axis}_v0 = Sub(fine, {axis}_v1)
"""


def _tap(down: int, across: int) -> str:
    n = f"t{down}{across}"
    return f"""
  {n}_y = Unsqueeze(y{down}, behind)
  {n}_x = Unsqueeze(x{across}, middle)
  {n}_yc = Clip({n}_y, zero, y_last)
  {n}_xc = Clip({n}_x, zero, x_last)
  {n}_at = Add(Add(starts, Mul({n}_yc, columns)), {n}_xc)
  {n}_raw = Gather<axis: int = 0>(flat, {n}_at)
  {n}_there = And(Equal({n}_yc, {n}_y), Equal({n}_xc, {n}_x))
  {n}_mask = Unsqueeze({n}_there, last_axis)
  {n}_val = Where({n}_mask, {n}_raw, border)
  {n}_w = Mul(Unsqueeze(y_v{down}, behind), Unsqueeze(x_v{across}, middle))
  {n} = Mul({n}_val, Unsqueeze({n}_w, last_axis))
"""


def _constants() -> str:
    numbers = {"zero": 0, "one": 1, "two": 2, "unit": 65536, "half_step": 128, "fine": 256}
    lines = [f"  {k} = Constant<value_int: int = {v}>()" for k, v in numbers.items()]
    lists = {"behind": [2], "middle": [1], "last_axis": [3]}
    lines += [f"  {k} = Constant<value_ints: ints = {v}>()" for k, v in lists.items()]
    return "\n".join(lines)


def _part(name: str, index: int) -> str:
    return f"""
  {name}_i = Constant<value_ints: ints = [{index}]>()
  {name} = Gather<axis: int = 1>(region, {name}_i)
"""


def _roi_resize(name: str) -> str:
    text = f"""{IMPORTS}{name} <height, width, halve, pad> (x, roi) => (y)
{{
{_constants()}
  rows_out = Constant<value_int: int = @height>()
  columns_out = Constant<value_int: int = @width>()
  factor = Constant<value_int: int = @halve>()
  border = Constant<value_int: int = @pad>()
  wide_roi = Cast<to: int = {INT64}>(roi)
  region = Div(Sub(wide_roi, Mod(wide_roi, factor)), factor)
{_part("left", 0)}{_part("top", 1)}{_part("right", 2)}{_part("bottom", 3)}
  shape = Shape(x)
  rows = Gather<axis: int = 0>(shape, one)
  columns = Gather<axis: int = 0>(shape, two)
  y_last = Sub(rows, one)
  x_last = Sub(columns, one)
{_taps("y", "top", "bottom", "rows_out", "rows")}
{_taps("x", "left", "right", "columns_out", "columns")}
  wide = Cast<to: int = {INT64}>(x)
  four = Constant<value_ints: ints = [4]>()
  channels = Slice(shape, last_axis, four)
  minus = Constant<value_ints: ints = [-1]>()
  flat_shape = Concat<axis: int = 0>(minus, channels)
  flat = Reshape(wide, flat_shape)
  ones = Add(Mul(left, zero), one)
  numbers = CumSum<exclusive: int = 1>(ones, zero)
  starts = Unsqueeze(Mul(numbers, Mul(rows, columns)), behind)
{_tap(0, 0)}{_tap(0, 1)}{_tap(1, 0)}{_tap(1, 1)}
  total = Add(Add(t00, t01), Add(t10, t11))
  rounding = Constant<value_int: int = 32768>()
  mean = Div(Add(total, rounding), unit)
  y = Cast<to: int = {UINT8}>(mean)
}}"""
    return _flat(text)


BODIES: dict[str, str] = {
    "Pixels": f"""{IMPORTS}Pixels <scale, zero> (pixels) => (real)
{{{_REAL}
  centre_i = Constant<value_int: int = @zero>()
  centre = Cast<to: int = {FLOAT}>(centre_i)
  shifted = Sub(wide, centre)
  real = Mul(shifted, step)
}}""",
    "QPixels": f"""{IMPORTS}QPixels (x) => (codes)
{{
  wide = Cast<to: int = {INT64}>(x)
  centre = Constant<value_int: int = 128>()
  shifted = Sub(wide, centre)
  codes = Cast<to: int = {_INT8}>(shifted)
}}""",
    "Nv12": f"""{IMPORTS}Nv12 <scale> (y, uv) => (real)
{{{_PLANES}{_REAL}
  centre = Constant<value_float: float = 128.0>()
  shifted = Sub(wide, centre)
  real = Mul(shifted, step)
}}""",
    "QNv12": f"""{IMPORTS}QNv12 (y, uv) => (codes)
{{{_PLANES}
  codes = qtune.QPixels(pixels)
}}""",
    "RoiResize": _roi_resize("RoiResize"),
    "QRoiResize": _roi_resize("QRoiResize"),
}

_ROI = {"height": "int", "width": "int", "halve": "int", "pad": "int"}
_ROI_DOC = (
    "the regions roi int32 [N, 4] (left, top, right, bottom, both ends inside) of x uint8 "
    "[N, H, W, C], resized bilinearly to height x width; pad stands outside of the picture; roi is "
    "divided by halve for a chroma plane"
)

SCHEMAS: dict[str, DomainOp] = {
    "Pixels": DomainOp(
        "Pixels",
        ("pixels",),
        {"scale": "float", "zero": "int"},
        "(pixels - zero) * scale, float32; pixels uint8 (zero 128) or int8 (zero 0)",
        ("real",),
    ),
    "QPixels": DomainOp("QPixels", ("x",), {}, "x - 128: uint8 pixels as int8 codes", ("codes",)),
    "Nv12": DomainOp(
        "Nv12",
        ("y", "uv"),
        {"scale": "float"},
        "(pixel - 128) * scale of the YUV 4:4:4 picture [N, H, W, 3] made of y uint8 [N, H, W, 1] "
        "and uv uint8 [N, H / 2, W / 2, 2], each chroma pair for four pixels",
        ("real",),
    ),
    "QNv12": DomainOp("QNv12", ("y", "uv"), {}, "Nv12 as int8 codes pixel - 128", ("codes",)),
    "RoiResize": DomainOp("RoiResize", ("x", "roi"), _ROI, _ROI_DOC),
    "QRoiResize": DomainOp("QRoiResize", ("x", "roi"), _ROI, _ROI_DOC),
}
