"""Float functions of one operand for which ONNX has no operator; tables once they are quantized."""

from __future__ import annotations

from qtune.hbir.bodies.elementwise import function
from qtune.hbir.domain import DomainOp


def _constant(name: str, text: str) -> str:
    return f"    {name} = Constant <value = float {{{text}}}> ()\n"


_TRUNC = """
    size = Abs (x)
    down = Floor (size)
    side = Sign (x)
    whole = Mul (down, side)
"""
_LOG_OVER = """
    natural = Log (x)
    y = Mul (natural, factor)
"""
_QUOTIENT = """
    divisor_t = Constant <value_float: float = @divisor> ()
    quotient = Div (x, divisor_t)
"""

_PLAIN: dict[str, tuple[str, str]] = {
    "Trunc": ("whole part of x, towards 0", _TRUNC + "    y = Identity (whole)\n"),
    "Frac": ("x - trunc(x)", _TRUNC + "    y = Sub (x, whole)\n"),
    "Exp2": ("2 ** x", "\n" + _constant("two", "2.0") + "    y = Pow (two, x)\n"),
    "Expm1": (
        "exp(x) - 1",
        "\n" + _constant("one", "1.0") + "    power = Exp (x)\n    y = Sub (power, one)\n",
    ),
    "Log2": ("log(x) / log(2)", "\n" + _constant("factor", "1.4426950408889634") + _LOG_OVER),
    "Log10": ("log(x) / log(10)", "\n" + _constant("factor", "0.4342944819032518") + _LOG_OVER),
    "Log1p": (
        "log(1 + x)",
        "\n" + _constant("one", "1.0") + "    more = Add (x, one)\n    y = Log (more)\n",
    ),
    "Erfc": (
        "1 - erf(x)",
        "\n" + _constant("one", "1.0") + "    error = Erf (x)\n    y = Sub (one, error)\n",
    ),
    "Sinc": (
        "sin(pi x) / (pi x), 1 at 0",
        "\n"
        + _constant("pi", "3.141592653589793")
        + _constant("zero", "0.0")
        + _constant("one", "1.0")
        + """
    angle = Mul (x, pi)
    is_zero = Equal (angle, zero)
    sine = Sin (angle)
    ratio = Div (sine, angle)
    y = Where (is_zero, one, ratio)
""",
    ),
    "TanhShrink": ("x - tanh(x)", "\n    t = Tanh (x)\n    y = Sub (x, t)\n"),
}

_WITH_NUMBERS: dict[str, tuple[dict[str, str], str, str]] = {
    "Threshold": (
        {"threshold": "float", "value": "float"},
        "x where x > threshold, else value",
        """
    limit = Constant <value_float: float = @threshold> ()
    other = Constant <value_float: float = @value> ()
    above = Greater (x, limit)
    y = Where (above, x, other)
""",
    ),
    "Logit": (
        {"eps": "float"},
        "log(p / (1 - p)), p = x between eps and 1 - eps; a negative eps cuts nothing",
        "\n"
        + _constant("one", "1.0")
        + _constant("zero", "0.0")
        + """
    low = Constant <value_float: float = @eps> ()
    high = Sub (one, low)
    inside = Clip (x, low, high)
    cuts = GreaterOrEqual (low, zero)
    p = Where (cuts, inside, x)
    rest = Sub (one, p)
    odds = Div (p, rest)
    y = Log (odds)
""",
    ),
    "RoundDecimals": (
        {"decimals": "int"},
        "x rounded half to even to that many decimals",
        "\n"
        + _constant("ten", "10.0")
        + """
    count = Constant <value_int: int = @decimals> ()
    exponent = Cast <to = 1> (count)
    factor = Pow (ten, exponent)
    scaled = Mul (x, factor)
    rounded = Round (scaled)
    y = Div (rounded, factor)
""",
    ),
    "Remainder": (
        {"divisor": "float"},
        "x - divisor * floor(x / divisor)",
        _QUOTIENT
        + """
    whole = Floor (quotient)
    part = Mul (whole, divisor_t)
    y = Sub (x, part)
""",
    ),
    "Fmod": (
        {"divisor": "float"},
        "x - divisor * trunc(x / divisor)",
        """
    divisor_t = Constant <value_float: float = @divisor> ()
    y = Mod <fmod = 1> (x, divisor_t)
""",
    ),
    "DivFloor": (
        {"divisor": "float"},
        "floor(x / divisor)",
        _QUOTIENT + "    y = Floor (quotient)\n",
    ),
    "DivTrunc": (
        {"divisor": "float"},
        "trunc(x / divisor)",
        _QUOTIENT
        + """
    size = Abs (quotient)
    down = Floor (size)
    side = Sign (quotient)
    y = Mul (down, side)
""",
    ),
    "PowerOf": (
        {"base": "float"},
        "base ** x",
        "\n    base_t = Constant <value_float: float = @base> ()\n    y = Pow (base_t, x)\n",
    ),
    "PowerTo": (
        {"exponent": "float"},
        "x ** exponent",
        "\n    exponent_t = Constant <value_float: float = @exponent> ()\n"
        "    y = Pow (x, exponent_t)\n",
    ),
}

BODIES: dict[str, str] = {
    **{name: function(name, ("x",), (), nodes) for name, (_, nodes) in _PLAIN.items()},
    **{
        name: function(name, ("x",), tuple(attrs), nodes)
        for name, (attrs, _, nodes) in _WITH_NUMBERS.items()
    },
}

SCHEMAS: dict[str, DomainOp] = {
    **{name: DomainOp(name, ("x",), {}, f"{doc}; float32") for name, (doc, _) in _PLAIN.items()},
    **{
        name: DomainOp(name, ("x",), attrs, f"{doc}; float32")
        for name, (attrs, doc, _) in _WITH_NUMBERS.items()
    },
}
