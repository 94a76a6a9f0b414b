"""Element-wise integer operators over a common shift (numerics.md section 3).

All of them compute in int64: ``y = clip((acc + half) >> n, lo, hi)``. ``BitShift`` is unsigned, so
the sum is moved up by 2**62, a multiple of ``2**n``, and down again after the shift. An operand may
also be an int64 initializer: a number already brought to the common shift, with multiplier 1.
"""

from __future__ import annotations

from qtune.hbir.domain import DomainOp

HEADER = '<opset_import: ["" : 21], domain: "qtune">'

ROUND_SHIFT = """
    one = Constant <value = uint64 {1}> ()
    offset = Constant <value = uint64 {4611686018427387904}> ()
    offset_i = Cast <to = 7> (offset)
    n_u = Cast <to = 13> (n)
    power = BitShift <direction = "LEFT"> (one, n_u)
    half_u = BitShift <direction = "RIGHT"> (power, one)
    half = Cast <to = 7> (half_u)
    halved = Add (acc, half)
    moved = Add (halved, offset_i)
    moved_u = Cast <to = 13> (moved)
    shifted_u = BitShift <direction = "RIGHT"> (moved_u, n_u)
    shifted = Cast <to = 7> (shifted_u)
    back_u = BitShift <direction = "RIGHT"> (offset, n_u)
    back = Cast <to = 7> (back_u)
    wide = Sub (shifted, back)
"""
"""``wide = (acc + half) >> n``; half is ``2**(n-1)``, and 0 where n is 0."""

SATURATE = """
    low = Constant <value_int: int = @lo> ()
    high = Constant <value_int: int = @hi> ()
    clipped = Clip (wide, low, high)
    y = Cast <to: int = @to> (clipped)
"""
"""``y``: ``wide`` between the attributes lo and hi, as the type ``to``."""

_SCALED_PAIR = """
    a_i = Cast <to = 7> (a)
    b_i = Cast <to = 7> (b)
    a_m = Mul (a_i, ma)
    b_m = Mul (b_i, mb)
"""

_INT_ATTRS = {"lo": "int", "hi": "int", "to": "int"}
_PAIR = ("a", "b", "ma", "mb", "n")


def function(name: str, inputs: tuple[str, ...], attrs: tuple[str, ...], nodes: str) -> str:
    """ONNX text of a function with the one output ``y``."""
    listed = f" <{', '.join(attrs)}>" if attrs else ""
    return f"{HEADER}\n{name}{listed} ({', '.join(inputs)}) => (y)\n{{{nodes}}}"


def _pair_body(name: str, combine: str) -> str:
    nodes = _SCALED_PAIR + f"    acc = {combine}\n" + ROUND_SHIFT + SATURATE
    return function(name, _PAIR, tuple(_INT_ATTRS), nodes)


def _compare_body(name: str, op: str) -> str:
    return function(name, _PAIR[:4], (), _SCALED_PAIR + f"    y = {op} (a_m, b_m)\n")


def _plain_body(name: str, nodes: str) -> str:
    return function(
        name, ("a",), tuple(_INT_ATTRS), "\n    x = Cast <to = 7> (a)\n" + nodes + SATURATE
    )


_COMPARISONS = {
    "QGreater": ("Greater", ">"),
    "QGreaterOrEqual": ("GreaterOrEqual", ">="),
    "QLess": ("Less", "<"),
    "QLessOrEqual": ("LessOrEqual", "<="),
    "QEqual": ("Equal", "=="),
}

BODIES: dict[str, str] = {
    "QAdd": _pair_body("QAdd", "Add (a_m, b_m)"),
    "QMaximum": _pair_body("QMaximum", "Max (a_m, b_m)"),
    "QMinimum": _pair_body("QMinimum", "Min (a_m, b_m)"),
    "QWhere": function(
        "QWhere",
        ("condition", *_PAIR),
        tuple(_INT_ATTRS),
        _SCALED_PAIR + "    acc = Where (condition, a_m, b_m)\n" + ROUND_SHIFT + SATURATE,
    ),
    "QMul": function(
        "QMul",
        ("a", "b", "m", "n"),
        tuple(_INT_ATTRS),
        """
    a_i = Cast <to = 7> (a)
    b_i = Cast <to = 7> (b)
    product = Mul (a_i, b_i)
    acc = Mul (product, m)
"""
        + ROUND_SHIFT
        + SATURATE,
    ),
    "QPRelu": function(
        "QPRelu",
        ("x", "slope", "m_positive", "m_negative", "n"),
        tuple(_INT_ATTRS),
        """
    x_i = Cast <to = 7> (x)
    slope_i = Cast <to = 7> (slope)
    zero = Constant <value = int64 {0}> ()
    negative = Less (x_i, zero)
    product = Mul (x_i, slope_i)
    below = Mul (product, m_negative)
    above = Mul (x_i, m_positive)
    acc = Where (negative, below, above)
"""
        + ROUND_SHIFT
        + SATURATE,
    ),
    "QClip": _plain_body("QClip", "    wide = Identity (x)\n"),
    "QNeg": _plain_body("QNeg", "    wide = Neg (x)\n"),
    "QAbs": _plain_body("QAbs", "    wide = Abs (x)\n"),
    **{name: _compare_body(name, op) for name, (op, _) in _COMPARISONS.items()},
    "ScaledAdd": function(
        "ScaledAdd",
        ("a", "b"),
        ("alpha",),
        """
    factor = Constant <value_float: float = @alpha> ()
    scaled = Mul (b, factor)
    y = Add (a, scaled)
""",
    ),
    "PRelu": function(
        "PRelu",
        ("x", "weight"),
        (),
        """
    sizes = Shape (x)
    rank = Size (sizes)
    two = Constant <value = int64 {2}> ()
    zero = Constant <value = int64 {0}> ()
    difference = Sub (rank, two)
    trailing = Max (difference, zero)
    as_list = Constant <value_ints = [1]> ()
    count = Reshape (trailing, as_list)
    ones = ConstantOfShape <value = int64[1] {1}> (count)
    all = Constant <value_ints = [-1]> ()
    shape = Concat <axis = 0> (all, ones)
    slope = Reshape (weight, shape)
    y = PRelu (x, slope)
""",
    ),
}


def _integer(name: str, inputs: tuple[str, ...], doc: str) -> DomainOp:
    return DomainOp(name, inputs, _INT_ATTRS, doc)


SCHEMAS: dict[str, DomainOp] = {
    op.name: op
    for op in (
        _integer("QAdd", _PAIR, "clip((a * ma + b * mb + half) >> n, lo, hi)"),
        _integer("QMaximum", _PAIR, "clip((max(a * ma, b * mb) + half) >> n, lo, hi)"),
        _integer("QMinimum", _PAIR, "clip((min(a * ma, b * mb) + half) >> n, lo, hi)"),
        _integer(
            "QWhere",
            ("condition", *_PAIR),
            "clip(((a * ma if condition else b * mb) + half) >> n, lo, hi)",
        ),
        _integer("QMul", ("a", "b", "m", "n"), "clip((a * b * m + half) >> n, lo, hi)"),
        _integer(
            "QPRelu",
            ("x", "slope", "m_positive", "m_negative", "n"),
            "clip(((x * slope * m_negative if x < 0 else x * m_positive) + half) >> n, lo, hi)",
        ),
        _integer("QClip", ("a",), "clip(a, lo, hi)"),
        _integer("QNeg", ("a",), "clip(-a, lo, hi)"),
        _integer("QAbs", ("a",), "clip(abs(a), lo, hi)"),
        *(
            DomainOp(name, _PAIR[:4], {}, f"a * ma {sign} b * mb")
            for name, (_, sign) in _COMPARISONS.items()
        ),
        DomainOp("ScaledAdd", ("a", "b"), {"alpha": "float"}, "a + alpha * b, float32"),
        DomainOp("PRelu", ("x", "weight"), {}, "x where x > 0, else weight[channel] * x; float32"),
    )
}
