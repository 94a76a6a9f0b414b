"""Function bodies of sampling at computed positions, which count 256ths of an element."""

from __future__ import annotations

from qtune.hbir.domain import DomainOp

_DOUBLE, _INT32, _INT64 = 11, 6, 7

SCHEMAS: dict[str, DomainOp] = {
    "QPositions": DomainOp(
        "QPositions",
        ("codes", "m", "n", "base", "low", "high"),
        {},
        "int32 positions: base plus codes rescaled by m / 2**n, no less than low and no more than "
        "high; all of them broadcast",
    ),
    "QSampleBilinear": DomainOp(
        "QSampleBilinear",
        ("x", "positions"),
        {"to": "int"},
        "x [N, C, H, W] at positions [N, h, w, (x, y)]: four taps, weights of 256 each way, "
        "rounded half up once; 0 outside of x",
    ),
    "FakeSampleBilinear": DomainOp(
        "FakeSampleBilinear",
        ("x", "grid", "scale", "elements", "base", "low", "high"),
        {},
        "QSampleBilinear on the codes of floats on the grid of scale, as floats on that grid, at "
        "floor(grid * elements * 256 + base + 0.5) cut to low .. high",
    ),
    "QSampleNearest": DomainOp(
        "QSampleNearest",
        ("x", "positions"),
        {"to": "int"},
        "the elements of x [N, C, H, W] nearest to positions [N, h, w, (x, y)], half up; 0 outside",
    ),
    "Warp": DomainOp(
        "Warp",
        ("x", "grid"),
        {"mode": "string", "padding_mode": "string"},
        "x [N, C, H, W] at absolute float positions [N, h, w, (x, y)], in elements",
    ),
}

# The map gets a frame of zeros: one element before, two behind. Positions are cut to the frame,
# shifted by the one element before, and are positive then, so that Div and Mod round down.
_FRAME = f"""
    codes = Cast <to: int = {_INT64}> (x)
    frame = Constant <value_ints: ints = [0, 0, 1, 1, 0, 0, 2, 2]> ()
    framed = Pad (codes, frame)
    channels_behind = Transpose <perm: ints = [0, 2, 3, 1]> (framed)
    rest = Constant <value_ints: ints = [-1]> ()
    lead = Shape <start: int = 0, end: int = 1> (x)
    channels = Shape <start: int = 1, end: int = 2> (x)
    flat_shape = Concat <axis: int = 0> (lead, rest, channels)
    flat = Reshape (channels_behind, flat_shape)
    size = Shape <start: int = 2, end: int = 4> (x)
    turned = Constant <value_ints: ints = [1, 0]> ()
    size_xy = Gather (size, turned)
    one = Constant <value_int: int = 256> ()
    down_to = Constant <value_int: int = -256> ()
    up_to = Mul (size_xy, one)
    at = Cast <to: int = {_INT64}> (positions)
    at_above = Max (at, down_to)
    at_cut = Min (at_above, up_to)
    at_framed = Add (at_cut, one)
    behind = Constant <value_ints: ints = [3]> ()
    first = Constant <value_int: int = 0> ()
    second = Constant <value_int: int = 1> ()
    three = Constant <value_int: int = 3> ()
    width_only = Gather (size, second)
    width = Add (width_only, three)
"""

_INDEX = """
    column = Gather <axis: int = 3> (element, first)
    row = Gather <axis: int = 3> (element, second)
    row_start = Mul (row, width)
    place = Add (row_start, column)
    index = Unsqueeze (place, behind)
"""


def _tap(name: str, index: str) -> str:
    return f"""
    {name}_taken = GatherND <batch_dims: int = 1> (flat, {index})
    {name}_part = Mul ({name}_taken, {name})
"""


_WEIGHTS = """
    fraction = Mod (at_framed, one)
    across_flat = Gather <axis: int = 3> (fraction, first)
    across = Unsqueeze (across_flat, behind)
    down_flat = Gather <axis: int = 3> (fraction, second)
    down = Unsqueeze (down_flat, behind)
    left = Sub (one, across)
    upper = Sub (one, down)
    upper_left = Mul (left, upper)
    upper_right = Mul (across, upper)
    lower_left = Mul (left, down)
    lower_right = Mul (across, down)
    index_right = Add (index, second)
    index_down = Add (index, width)
    index_both = Add (index_down, second)
"""

BODIES: dict[str, str] = {
    "QPositions": f"""
<opset_import: ["" : 21, "qtune" : 1], domain: "qtune">
QPositions (codes, m, n, base, low, high) => (y) {{
    moved = qtune.Rescale (codes, m, n)
    base_d = Cast <to: int = {_DOUBLE}> (base)
    low_d = Cast <to: int = {_DOUBLE}> (low)
    high_d = Cast <to: int = {_DOUBLE}> (high)
    total = Add (moved, base_d)
    above = Max (total, low_d)
    kept = Min (above, high_d)
    y = Cast <to: int = {_INT32}> (kept)
}}
""",
    # ONNX's Div truncates: an offset keeps the sum positive.
    "QSampleBilinear": f"""
<opset_import: ["" : 21], domain: "qtune">
QSampleBilinear <to> (x, positions) => (y) {{
{_FRAME}
    element = Div (at_framed, one)
{_INDEX}
{_WEIGHTS}
{_tap("upper_left", "index")}
{_tap("upper_right", "index_right")}
{_tap("lower_left", "index_down")}
{_tap("lower_right", "index_both")}
    upper_sum = Add (upper_left_part, upper_right_part)
    lower_sum = Add (lower_left_part, lower_right_part)
    total = Add (upper_sum, lower_sum)
    half = Constant <value_int: int = 32768> ()
    divisor = Constant <value_int: int = 65536> ()
    offset = Constant <value_int: int = 32768> ()
    shift = Constant <value_int: int = 2147483648> ()
    rounded = Add (total, half)
    positive = Add (rounded, shift)
    quotient = Div (positive, divisor)
    result = Sub (quotient, offset)
    result_map = Transpose <perm: ints = [0, 3, 1, 2]> (result)
    y = Cast <to: int = @to> (result_map)
}}
""",
    "FakeSampleBilinear": f"""
<opset_import: ["" : 21, "qtune" : 1], domain: "qtune">
FakeSampleBilinear (x, grid, scale, elements, base, low, high) => (y) {{
    half = Constant <value_float: float = 0.5> ()
    ratio = Div (x, scale)
    shifted = Add (ratio, half)
    floored = Floor (shifted)
    codes = Cast <to: int = {_INT64}> (floored)
    parts = Constant <value = double {{256.0}}> ()
    half_d = Constant <value = double {{0.5}}> ()
    grid_d = Cast <to: int = 11> (grid)
    elements_d = Cast <to: int = 11> (elements)
    base_d = Cast <to: int = 11> (base)
    steps = Mul (elements_d, parts)
    moved = Mul (grid_d, steps)
    based = Add (moved, base_d)
    based_half = Add (based, half_d)
    at_d = Floor (based_half)
    low_d = Cast <to: int = 11> (low)
    high_d = Cast <to: int = 11> (high)
    at_above = Max (at_d, low_d)
    at_cut = Min (at_above, high_d)
    at = Cast <to: int = {_INT64}> (at_cut)
    sampled = qtune.QSampleBilinear <to: int = 1> (codes, at)
    y = Mul (sampled, scale)
}}
""",
    "QSampleNearest": f"""
<opset_import: ["" : 21], domain: "qtune">
QSampleNearest <to> (x, positions) => (y) {{
{_FRAME}
    half_element = Constant <value_int: int = 128> ()
    at_half = Add (at_framed, half_element)
    element = Div (at_half, one)
{_INDEX}
    taken = GatherND <batch_dims: int = 1> (flat, index)
    result_map = Transpose <perm: ints = [0, 3, 1, 2]> (taken)
    y = Cast <to: int = @to> (result_map)
}}
""",
    # align_corners = 0 puts element i at (2 i + 1) / size - 1.
    "Warp": """
<opset_import: ["" : 21], domain: "qtune">
Warp <mode, padding_mode> (x, grid) => (y) {
    size = Shape <start: int = 2, end: int = 4> (x)
    turned = Constant <value_ints: ints = [1, 0]> ()
    size_xy = Gather (size, turned)
    size_float = CastLike (size_xy, grid)
    two_f = Constant <value_float: float = 2.0> ()
    one_f = Constant <value_float: float = 1.0> ()
    two = CastLike (two_f, grid)
    one = CastLike (one_f, grid)
    twice = Mul (grid, two)
    middle = Add (twice, one)
    ratio = Div (middle, size_float)
    normal = Sub (ratio, one)
    y = GridSample <mode: string = @mode, padding_mode: string = @padding_mode,
        align_corners: int = 0> (x, normal)
}
""",
}
