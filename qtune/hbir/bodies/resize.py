"""Function bodies of resize on codes: gathered taps, integer weights, one rounding."""

from __future__ import annotations

from qtune.hbir.domain import DomainOp

SCHEMAS: dict[str, DomainOp] = {
    "QResizeNearest": DomainOp(
        "QResizeNearest",
        ("x", "rows", "columns"),
        {},
        "the rows and columns of x [N, C, H, W] that two int64 vectors name",
    ),
    "FakeResizeBilinear": DomainOp(
        "FakeResizeBilinear",
        ("x", "scale", "y0", "y1", "wy", "x0", "x1", "wx"),
        {},
        "QResizeBilinear on the codes of floats on the grid of scale, as floats on that grid",
    ),
    "QResizeBilinear": DomainOp(
        "QResizeBilinear",
        ("x", "y0", "y1", "wy", "x0", "x1", "wx"),
        {"to": "int"},
        "x [N, C, H, W] at rows y0 and y1 and columns x0 and x1, weighted by 256 - w and w "
        "(int64), rounded half up once",
    ),
}

_INT64 = 7
_FLOAT = 1

BODIES: dict[str, str] = {
    "QResizeNearest": """
<opset_import: ["" : 21], domain: "qtune">
QResizeNearest (x, rows, columns) => (y) {
    chosen = Gather <axis: int = 2> (x, rows)
    y = Gather <axis: int = 3> (chosen, columns)
}
""",
    "FakeResizeBilinear": f"""
<opset_import: ["" : 21, "qtune" : 1], domain: "qtune">
FakeResizeBilinear (x, scale, y0, y1, wy, x0, x1, wx) => (y) {{
    half = Constant <value_float: float = 0.5> ()
    ratio = Div (x, scale)
    shifted = Add (ratio, half)
    floored = Floor (shifted)
    codes = Cast <to: int = {_INT64}> (floored)
    blended = qtune.QResizeBilinear <to: int = {_FLOAT}> (codes, y0, y1, wy, x0, x1, wx)
    y = Mul (blended, scale)
}}
""",
    # ONNX's BitShift is unsigned and its Div truncates: an offset keeps the sum positive.
    "QResizeBilinear": f"""
<opset_import: ["" : 21], domain: "qtune">
QResizeBilinear <to> (x, y0, y1, wy, x0, x1, wx) => (y) {{
    codes = Cast <to: int = {_INT64}> (x)
    one = Constant <value_int: int = 256> ()
    column = Constant <value_ints: ints = [-1, 1]> ()
    half = Constant <value_int: int = 32768> ()
    divisor = Constant <value_int: int = 65536> ()
    offset = Constant <value_int: int = 32768> ()
    shift = Constant <value_int: int = 2147483648> ()
    weight_bottom = Reshape (wy, column)
    weight_top = Sub (one, weight_bottom)
    top = Gather <axis: int = 2> (codes, y0)
    bottom = Gather <axis: int = 2> (codes, y1)
    top_part = Mul (top, weight_top)
    bottom_part = Mul (bottom, weight_bottom)
    rows = Add (top_part, bottom_part)
    weight_left = Sub (one, wx)
    left = Gather <axis: int = 3> (rows, x0)
    right = Gather <axis: int = 3> (rows, x1)
    left_part = Mul (left, weight_left)
    right_part = Mul (right, wx)
    total = Add (left_part, right_part)
    rounded = Add (total, half)
    positive = Add (rounded, shift)
    quotient = Div (positive, divisor)
    result = Sub (quotient, offset)
    y = Cast <to: int = @to> (result)
}}
""",
}
