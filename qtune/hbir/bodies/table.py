"""Look-up tables, and the float functions for which ONNX has no operator (numerics.md section 3).

``FakeLut8`` and ``FakeLut16`` are the pre-export form of a table: float in, float out, codes
between. ``Lut8`` and ``Lut16`` are the integer operators. Both hold the same table.
"""

from __future__ import annotations

from qtune.hbir.bodies.elementwise import SATURATE, function
from qtune.hbir.domain import DomainOp

_TO_CODES = """
    half = Constant <value = float {0.5}> ()
    steps = Div (x, s_x)
    halves = Add (steps, half)
    whole = Floor (halves)
    qmin = Constant <value = float {QMIN}> ()
    qmax = Constant <value = float {QMAX}> ()
    cut = Clip (whole, qmin, qmax)
    q = Cast <to = 7> (cut)
"""


def _to_codes(qmin: int, qmax: int) -> str:
    return _TO_CODES.replace("QMIN", f"{qmin}.0").replace("QMAX", f"{qmax}.0")


_TO_FLOAT = """
    codes = Cast <to = 1> (entry)
    y = Mul (codes, s_y)
"""

_LOOKUP8 = """
    zero = Constant <value = int64 {128}> ()
    index = Add (q, zero)
    entry = Gather (table, index)
"""

_LOOKUP16 = """
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    two = Constant <value = int64 {2}> ()
    steps63 = Constant <value = int64 {63}> ()
    width64 = Constant <value = int64 {64}> ()
    scale16 = Constant <value = int64 {65536}> ()
    half16 = Constant <value = int64 {32768}> ()
    raise48 = Constant <value = int64 {281474976710656}> ()
    raise32 = Constant <value = int64 {4294967296}> ()
    front = Constant <value_ints = [0]> ()
    back = Constant <value_ints = [-1]> ()
    start = Gather (first, zero)
    minus = Constant <value = int64 {-1}> ()
    end = Gather (last, minus)
    above_start = Max (q, start)
    inside = Min (above_start, end)
    behind = Unsqueeze (inside, back)
    reached = GreaterOrEqual (behind, first)
    reached_i = Cast <to = 7> (reached)
    count = ReduceSum <keepdims = 0> (reached_i, back)
    segment = Sub (count, one)
    low_end = Gather (first, segment)
    high_end = Gather (last, segment)
    width = Sub (high_end, low_end)
    way = Sub (inside, low_end)
    way63 = Mul (way, steps63)
    numerator = Mul (way63, scale16)
    twice = Mul (numerator, two)
    raised = Add (twice, width)
    double_width = Mul (width, two)
    position = Div (raised, double_width)
    left = Div (position, scale16)
    left16 = Mul (left, scale16)
    fraction = Sub (position, left16)
    next = Add (left, one)
    right = Min (next, steps63)
    row = Mul (segment, width64)
    at_left = Add (row, left)
    at_right = Add (row, right)
    flat_shape = Constant <value_ints = [-1]> ()
    flat = Reshape (entries, flat_shape)
    below = Gather (flat, at_left)
    above = Gather (flat, at_right)
    rise = Sub (above, below)
    part = Mul (rise, fraction)
    base = Mul (below, scale16)
    total = Add (base, part)
    rounded = Add (total, half16)
    positive = Add (rounded, raise48)
    shifted = Div (positive, scale16)
    wide = Sub (shifted, raise32)
"""
"""``wide``: the interpolation; int64 Div truncates, so totals are raised above 0 first."""

_CLIP_ENTRY = """
    low = Constant <value_int: int = @lo> ()
    high = Constant <value_int: int = @hi> ()
    entry = Clip (wide, low, high)
"""

_INT_ATTRS = {"lo": "int", "hi": "int", "to": "int"}
_SEGMENTS = ("first", "last", "entries")

BODIES: dict[str, str] = {
    "Lut8": function(
        "Lut8",
        ("x", "table"),
        (),
        "\n    q = Cast <to = 7> (x)" + _LOOKUP8 + "    y = Identity (entry)\n",
    ),
    "Lut16": function(
        "Lut16",
        ("x", *_SEGMENTS),
        tuple(_INT_ATTRS),
        "\n    q = Cast <to = 7> (x)" + _LOOKUP16 + SATURATE,
    ),
    "FakeLut8": function(
        "FakeLut8", ("x", "s_x", "table", "s_y"), (), _to_codes(-128, 127) + _LOOKUP8 + _TO_FLOAT
    ),
    "FakeLut16": function(
        "FakeLut16",
        ("x", "s_x", *_SEGMENTS, "s_y"),
        ("lo", "hi", "error"),
        _to_codes(-32768, 32767) + _LOOKUP16 + _CLIP_ENTRY + _TO_FLOAT,
    ),
    "Silu": function("Silu", ("x",), (), "\n    s = Sigmoid (x)\n    y = Mul (x, s)\n"),
    "Rsqrt": function(
        "Rsqrt",
        ("x",),
        ("eps",),
        """
    eps_t = Constant <value_float: float = @eps> ()
    raised = Add (x, eps_t)
    r = Sqrt (raised)
    y = Reciprocal (r)
""",
    ),
    "LogSigmoid": function(
        "LogSigmoid",
        ("x",),
        (),
        "\n    minus = Neg (x)\n    soft = Softplus (minus)\n    y = Neg (soft)\n",
    ),
    "ScaledSoftplus": function(
        "ScaledSoftplus",
        ("x",),
        ("beta", "threshold"),
        """
    beta_t = Constant <value_float: float = @beta> ()
    limit = Constant <value_float: float = @threshold> ()
    scaled = Mul (x, beta_t)
    soft = Softplus (scaled)
    divided = Div (soft, beta_t)
    linear = Greater (scaled, limit)
    y = Where (linear, x, divided)
""",
    ),
}

SCHEMAS: dict[str, DomainOp] = {
    op.name: op
    for op in (
        DomainOp("Lut8", ("x", "table"), {}, "table[x + 128], of the table's type"),
        DomainOp(
            "Lut16",
            ("x", *_SEGMENTS),
            _INT_ATTRS,
            "linear between the 64 entries of the segment of x, clip(.., lo, hi)",
        ),
        DomainOp(
            "FakeLut8",
            ("x", "s_x", "table", "s_y"),
            {},
            "table[quantize(x, s_x) + 128] * s_y, float32",
        ),
        DomainOp(
            "FakeLut16",
            ("x", "s_x", *_SEGMENTS, "s_y"),
            {"lo": "int", "hi": "int", "error": "int"},
            "Lut16(quantize(x, s_x)) * s_y, float32; error: the table's own, in steps",
        ),
        DomainOp("Silu", ("x",), {}, "x * sigmoid(x), float32"),
        DomainOp("LogSigmoid", ("x",), {}, "log(sigmoid(x)), float32"),
        DomainOp("Rsqrt", ("x",), {"eps": "float"}, "1 / sqrt(x + eps), float32"),
        DomainOp(
            "ScaledSoftplus",
            ("x",),
            {"beta": "float", "threshold": "float"},
            "softplus(beta * x) / beta, x itself where beta * x > threshold; float32",
        ),
    )
}
