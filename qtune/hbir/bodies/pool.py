"""Function bodies of the pools: exact sums by prefix sums, maxima in float (exact on codes)."""

from __future__ import annotations

from qtune.arith.requantize import TIE_BITS
from qtune.hbir.domain import DomainOp

_RESCALED = {"lo": "int", "hi": "int", "to": "int"}

SCHEMAS: dict[str, DomainOp] = {
    "QAvgPool": DomainOp(
        "QAvgPool",
        ("x", "y0", "y1", "x0", "x1", "m", "n"),
        _RESCALED,
        "sums of x over rows y0..y1 and columns x0..x1 (ends excluded), requantized by m and n, "
        "which are scalars or one pair per place",
    ),
    "QAvgPoolUp": DomainOp(
        "QAvgPoolUp",
        ("x", "y0", "y1", "x0", "x1", "m", "n"),
        _RESCALED,
        "QAvgPool that requantizes 64 * sum + 1: its ties go up whichever way m was rounded",
    ),
    "QMaxPool": DomainOp(
        "QMaxPool",
        ("x",),
        {
            "kernel_shape": "ints",
            "strides": "ints",
            "pads": "ints",
            "dilations": "ints",
            "ceil_mode": "int",
            "lo": "int",
            "to": "int",
        },
        "ONNX MaxPool of codes; a window with nothing but border is lo",
    ),
    "WindowMax": DomainOp(
        "WindowMax",
        ("x", "rows", "columns"),
        {"to": "int"},
        "maxima of x (floats or codes) over the rows and columns that each window lists",
    ),
    "AvgPoolDivisor": DomainOp(
        "AvgPoolDivisor",
        ("x",),
        {"kernel_shape": "ints", "strides": "ints", "pads": "ints", "divisor": "int"},
        "window sums of floats, each divided by divisor",
    ),
    "AdaptiveAvgPool": DomainOp(
        "AdaptiveAvgPool",
        ("x", "rows", "columns"),
        {"output_size": "ints"},
        "averages of floats to output_size; rows and columns are the averaging matrices",
    ),
}

_FLOAT, _INT64 = 1, 7


def _average(name: str, finish: str) -> str:
    """A body that requantizes ``acc``, made of the sum right - left."""
    # before[i] is the sum of the first i elements, so a window is a difference of two.
    return f"""
<opset_import: ["" : 21, "qtune" : 1], domain: "qtune">
{name} <lo, hi, to> (x, y0, y1, x0, x1, m, n) => (y) {{
    codes = Cast <to: int = {_INT64}> (x)
    row_axis = Constant <value_int: int = 2> ()
    column_axis = Constant <value_int: int = 3> ()
    row_pads = Constant <value_ints: ints = [0, 0, 1, 0, 0, 0, 0, 0]> ()
    column_pads = Constant <value_ints: ints = [0, 0, 0, 1, 0, 0, 0, 0]> ()
    from_row = Pad (codes, row_pads)
    rows_before = CumSum (from_row, row_axis)
    bottom = Gather <axis: int = 2> (rows_before, y1)
    top = Gather <axis: int = 2> (rows_before, y0)
    rows = Sub (bottom, top)
    from_column = Pad (rows, column_pads)
    columns_before = CumSum (from_column, column_axis)
    right = Gather <axis: int = 3> (columns_before, x1)
    left = Gather <axis: int = 3> (columns_before, x0)
    {finish}
    y = qtune.Requantize <lo: int = @lo, hi: int = @hi, to: int = @to> (acc, m, n)
}}
"""


BODIES: dict[str, str] = {
    "QAvgPool": _average("QAvgPool", "acc = Sub (right, left)"),
    "QAvgPoolUp": _average(
        "QAvgPoolUp",
        f"""total = Sub (right, left)
    parts = Constant <value_int: int = {1 << TIE_BITS}> ()
    one = Constant <value_int: int = 1> ()
    wide = Mul (total, parts)
    acc = Add (wide, one)""",
    ),
    "QMaxPool": f"""
<opset_import: ["" : 21], domain: "qtune">
QMaxPool <kernel_shape, strides, pads, dilations, ceil_mode, lo, to> (x) => (y) {{
    codes = Cast <to: int = {_FLOAT}> (x)
    lowest = Constant <value_int: int = @lo> ()
    low = Cast <to: int = {_FLOAT}> (lowest)
    best = MaxPool <kernel_shape: ints = @kernel_shape, strides: ints = @strides,
        pads: ints = @pads, dilations: ints = @dilations, ceil_mode: int = @ceil_mode> (codes)
    kept = Max (best, low)
    y = Cast <to: int = @to> (kept)
}}
""",
    "WindowMax": f"""
<opset_import: ["" : 21], domain: "qtune">
WindowMax <to> (x, rows, columns) => (y) {{
    codes = Cast <to: int = {_FLOAT}> (x)
    row_axis = Constant <value_ints: ints = [3]> ()
    column_axis = Constant <value_ints: ints = [4]> ()
    by_row = Gather <axis: int = 2> (codes, rows)
    best_rows = ReduceMax <keepdims: int = 0> (by_row, row_axis)
    by_column = Gather <axis: int = 3> (best_rows, columns)
    best = ReduceMax <keepdims: int = 0> (by_column, column_axis)
    y = Cast <to: int = @to> (best)
}}
""",
    # The sum is the average times the area of the kernel, which the border fills up.
    "AvgPoolDivisor": f"""
<opset_import: ["" : 21], domain: "qtune">
AvgPoolDivisor <kernel_shape, strides, pads, divisor> (x) => (y) {{
    sides = Constant <value_ints: ints = @kernel_shape> ()
    area_int = ReduceProd <keepdims: int = 0> (sides)
    area = Cast <to: int = {_FLOAT}> (area_int)
    divisor_int = Constant <value_int: int = @divisor> ()
    divisor_float = Cast <to: int = {_FLOAT}> (divisor_int)
    average = AveragePool <kernel_shape: ints = @kernel_shape, strides: ints = @strides,
        pads: ints = @pads, count_include_pad: int = 1> (x)
    total = Mul (average, area)
    y = Div (total, divisor_float)
}}
""",
    "AdaptiveAvgPool": """
<opset_import: ["" : 21], domain: "qtune">
AdaptiveAvgPool <output_size> (x, rows, columns) => (y) {
    down = MatMul (rows, x)
    y = MatMul (down, columns)
}
""",
}
