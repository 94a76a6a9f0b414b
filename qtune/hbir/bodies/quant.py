"""Bodies of the operators between grids, and of the requantize that other bodies call."""

from __future__ import annotations

from qtune.hbir.domain import DomainOp

IMPORTS = '<domain: "qtune", opset_import: ["" : 21, "qtune" : 1]>\n'
"""Head of every body; ``qtune`` is imported for bodies that call others."""

DOUBLE, FLOAT, INT32, INT64, UINT8, UINT64 = 11, 1, 6, 7, 2, 13

_GRID = f"""
  qmin_i = Constant<value_int: int = @qmin>()
  qmax_i = Constant<value_int: int = @qmax>()
  low = Cast<to = {FLOAT}>(qmin_i)
  high = Cast<to = {FLOAT}>(qmax_i)
"""

_HALF_UP = """
  half = Constant<value_float: float = 0.5>()
  shifted = Add(ratio, half)
  rounded = Floor(shifted)
"""

_HALF_EVEN = """
  rounded = Round(ratio)
"""


def _fake_quant(name: str, rounding: str) -> str:
    # A NaN must pass; the order of Clip's comparisons is not promised, hence the Where.
    return f"""{IMPORTS}{name} <axis, qmin, qmax> (x, scale) => (y)
{{{_GRID}
  ratio = Div(x, scale)
{rounding}
  codes = Clip(rounded, low, high)
  values = Mul(codes, scale)
  lost = IsNaN(x)
  y = Where(lost, x, values)
}}"""


def _quantize(name: str, rounding: str) -> str:
    return f"""{IMPORTS}{name} <qmin, qmax, to> (x, scale) => (y)
{{{_GRID}
  ratio = Div(x, scale)
{rounding}
  codes = Clip(rounded, low, high)
  y = Cast<to: int = @to>(codes)
}}"""


_FAKE_QUANT_GROUPED = f"""{IMPORTS}FakeQuantGrouped <groups, qmin, qmax> (x, scale) => (y)
{{
  groups = Constant<value_int: int = @groups>()
  one = Constant<value_ints: ints = [1]>()
  rest = Constant<value_ints: ints = [-1]>()
  count = Reshape(groups, one)
  tail = Shape<start = 1>(x)
  split = Concat<axis = 0>(count, rest, tail)
  view = Reshape(x, split)
  values = qtune.FakeQuant<axis = 0, qmin: int = @qmin, qmax: int = @qmax>(view, scale)
  shape = Shape(x)
  y = Reshape(values, shape)
}}"""

# Two limbs of acc (16 bits each, one if n <= 16) keep every product inside the 53 bits of a double:
# (acc * m + 2**(n-1)) >> n = (high * m + (low * m >> 16) + 2**(n-17)) >> (n - 16). For n <= 16 the
# product alone is exact wherever the result does not saturate (numerics.md sections 2.3 and 7).
_RESCALE = f"""{IMPORTS}Rescale (acc, m, n) => (y)
{{
  acc_d = Cast<to = {DOUBLE}>(acc)
  m_d = Cast<to = {DOUBLE}>(m)
  n_d = Cast<to = {DOUBLE}>(n)
  one = Constant<value = double {{1.0}}>()
  two = Constant<value = double {{2.0}}>()
  half = Constant<value = double {{0.5}}>()
  limb_bits = Constant<value = double {{16.0}}>()
  limb = Constant<value = double {{65536.0}}>()
  is_long = Greater(n_d, limb_bits)
  base = Where(is_long, limb, one)
  inverse = Div(one, base)
  down = Neg(n_d)
  whole_power = Pow(two, down)
  power = Mul(whole_power, base)
  upper = Mul(acc_d, inverse)
  high = Floor(upper)
  high_part = Mul(high, base)
  low = Sub(acc_d, high_part)
  high_product = Mul(high, m_d)
  low_product = Mul(low, m_d)
  low_upper = Mul(low_product, inverse)
  carry = Floor(low_upper)
  product = Add(high_product, carry)
  scaled = Mul(product, power)
  shifted = Add(scaled, half)
  y = Floor(shifted)
}}"""

_REQUANTIZE = f"""{IMPORTS}Requantize <lo, hi, to> (acc, m, n) => (y)
{{
  scaled = qtune.Rescale(acc, m, n)
  lo_i = Constant<value_int: int = @lo>()
  hi_i = Constant<value_int: int = @hi>()
  low = Cast<to = {DOUBLE}>(lo_i)
  high = Cast<to = {DOUBLE}>(hi_i)
  codes = Clip(scaled, low, high)
  y = Cast<to: int = @to>(codes)
}}"""

# Products below 2**62 in int64. ONNX's Div truncates and its BitShift is unsigned: the remainder
# (of the divisor's sign) is taken off first. For n <= 0 the result is saturated unless the product
# is small, so a clamp to 2**16 keeps the shift to the left inside int64.
_REQUANTIZE_WIDE = f"""{IMPORTS}RequantizeWide <lo, hi, to> (acc, m, bias, n) => (y)
{{
  acc_i = Cast<to = {INT64}>(acc)
  m_i = Cast<to = {INT64}>(m)
  product = Mul(acc_i, m_i)
  total = Add(product, bias)
  zero = Constant<value_int: int = 0>()
  two = Constant<value_int: int = 2>()
  last = Constant<value_int: int = 62>()
  most_left = Constant<value_int: int = 30>()
  far = Constant<value_int: int = 4611686018427387904>()
  near = Constant<value_int: int = 65536>()
  vanishes = Greater(n, last)
  kept = Where(vanishes, zero, total)
  goes_down = Greater(n, zero)
  bound = Where(goes_down, far, near)
  low_bound = Neg(bound)
  above = Max(kept, low_bound)
  value = Min(above, bound)
  n_down = Max(n, zero)
  n_right = Min(n_down, last)
  n_up = Neg(n)
  n_up0 = Max(n_up, zero)
  n_left = Min(n_up0, most_left)
  one_u = Constant<value = uint64 {{1}}>()
  right_u = Cast<to = {UINT64}>(n_right)
  left_u = Cast<to = {UINT64}>(n_left)
  divisor_u = BitShift<direction = "LEFT">(one_u, right_u)
  factor_u = BitShift<direction = "LEFT">(one_u, left_u)
  divisor = Cast<to = {INT64}>(divisor_u)
  factor = Cast<to = {INT64}>(factor_u)
  half = Div(divisor, two)
  shifted = Add(value, half)
  remainder = Mod(shifted, divisor)
  whole = Sub(shifted, remainder)
  quotient = Div(whole, divisor)
  scaled = Mul(quotient, factor)
  lo = Constant<value_int: int = @lo>()
  hi = Constant<value_int: int = @hi>()
  raised = Max(scaled, lo)
  codes = Min(raised, hi)
  y = Cast<to: int = @to>(codes)
}}"""

# Limbs of 24 bits keep the products of 48 and 31 bits inside int64. For n <= 24 there is one limb:
# beyond 2**30 every accumulator saturates the result, so the clamp changes nothing.
_REQUANTIZE_LIMBS = f"""{IMPORTS}RequantizeLimbs <lo, hi, to> (acc, m, n) => (y)
{{
  acc_i = Cast<to = {INT64}>(acc)
  m_i = Cast<to = {INT64}>(m)
  zero = Constant<value_int: int = 0>()
  one = Constant<value_int: int = 1>()
  limb_bits = Constant<value_int: int = 24>()
  near = Constant<value_int: int = 1073741824>()
  far = Constant<value_int: int = 1125899906842624>()
  is_long = Greater(n, limb_bits)
  bound = Where(is_long, far, near)
  low_bound = Neg(bound)
  above = Max(acc_i, low_bound)
  value = Min(above, bound)
  bits = Where(is_long, limb_bits, zero)
  bits_u = Cast<to = {UINT64}>(bits)
  one_u = Constant<value = uint64 {{1}}>()
  base_u = BitShift<direction = "LEFT">(one_u, bits_u)
  base = Cast<to = {INT64}>(base_u)
  offset_u = Constant<value = uint64 {{1152921504606846976}}>()
  offset = Cast<to = {INT64}>(offset_u)
  offset_high_u = BitShift<direction = "RIGHT">(offset_u, bits_u)
  offset_high = Cast<to = {INT64}>(offset_high_u)
  moved = Add(value, offset)
  moved_u = Cast<to = {UINT64}>(moved)
  high_u = BitShift<direction = "RIGHT">(moved_u, bits_u)
  high_moved = Cast<to = {INT64}>(high_u)
  high = Sub(high_moved, offset_high)
  high_part = Mul(high, base)
  low = Sub(value, high_part)
  high_product = Mul(high, m_i)
  low_product = Mul(low, m_i)
  low_moved = Add(low_product, offset)
  low_u = Cast<to = {UINT64}>(low_moved)
  carry_u = BitShift<direction = "RIGHT">(low_u, bits_u)
  carry_moved = Cast<to = {INT64}>(carry_u)
  carry = Sub(carry_moved, offset_high)
  product = Add(high_product, carry)
  rest = Sub(n, bits)
  y = qtune.RequantizeWide<lo: int = @lo, hi: int = @hi, to: int = @to>(product, one, zero, rest)
}}"""

_DEQUANTIZE = f"""{IMPORTS}Dequantize (q, scale) => (y)
{{
  codes = Cast<to = {FLOAT}>(q)
  y = Mul(codes, scale)
}}"""

_DEQUANTIZE_ACC = f"""{IMPORTS}DequantizeAcc (acc, s_x, s_w) => (y)
{{
  acc_d = Cast<to = {DOUBLE}>(acc)
  s_x_d = Cast<to = {DOUBLE}>(s_x)
  s_w_d = Cast<to = {DOUBLE}>(s_w)
  part = Mul(acc_d, s_x_d)
  value = Mul(part, s_w_d)
  y = Cast<to = {FLOAT}>(value)
}}"""

_BARRIER = f"""{IMPORTS}Barrier (x) => (y)
{{
  y = Identity(x)
}}"""

BODIES: dict[str, str] = {
    "FakeQuant": _fake_quant("FakeQuant", _HALF_UP),
    "FakeQuantHalfEven": _fake_quant("FakeQuantHalfEven", _HALF_EVEN),
    "FakeQuantGrouped": _FAKE_QUANT_GROUPED,
    "Quantize": _quantize("Quantize", _HALF_UP),
    "QuantizeHalfEven": _quantize("QuantizeHalfEven", _HALF_EVEN),
    "Dequantize": _DEQUANTIZE,
    "DequantizeAcc": _DEQUANTIZE_ACC,
    "Rescale": _RESCALE,
    "Requantize": _REQUANTIZE,
    "RequantizeWide": _REQUANTIZE_WIDE,
    "RequantizeLimbs": _REQUANTIZE_LIMBS,
    "Barrier": _BARRIER,
}

_RANGE = {"qmin": "int", "qmax": "int"}
_TARGET = {"lo": "int", "hi": "int", "to": "int"}

_OPS = (
    DomainOp(
        "FakeQuant",
        ("x", "scale"),
        {"axis": "int", **_RANGE},
        "clamp(floor(x / scale + 0.5), qmin, qmax) * scale in float32; NaN passes. The scale is "
        "stored so that it broadcasts on x; axis is its channel axis, -1 for one scale.",
    ),
    DomainOp(
        "FakeQuantHalfEven",
        ("x", "scale"),
        {"axis": "int", **_RANGE},
        "FakeQuant that rounds ties to even: imported QuantizeLinear and DequantizeLinear.",
    ),
    DomainOp(
        "FakeQuantGrouped",
        ("x", "scale"),
        {"groups": "int", **_RANGE},
        "FakeQuant of a weight [in, out / groups, ...] of a grouped transposed convolution; scale "
        "[groups, 1, out / groups, 1, ...], one per real output channel.",
    ),
    DomainOp(
        "Quantize",
        ("x", "scale"),
        {**_RANGE, "to": "int"},
        "clamp(floor(x / scale + 0.5), qmin, qmax) as integers of the onnx type `to`.",
    ),
    DomainOp(
        "QuantizeHalfEven",
        ("x", "scale"),
        {**_RANGE, "to": "int"},
        "Quantize that rounds ties to even, for imported nodes.",
    ),
    DomainOp("Dequantize", ("q", "scale"), {}, "float32(q) * scale."),
    DomainOp(
        "DequantizeAcc",
        ("acc", "s_x", "s_w"),
        {},
        "High-precision output: float32(double(acc) * double(s_x) * double(s_w)); s_w broadcasts.",
    ),
    DomainOp(
        "Rescale",
        ("acc", "m", "n"),
        {},
        "(acc * m + 2**(n-1)) >> n in double, for acc of at most 37 bits and m of 31.",
    ),
    DomainOp(
        "Requantize",
        ("acc", "m", "n"),
        _TARGET,
        "Rescale clamped to lo .. hi, in the onnx type `to`.",
    ),
    DomainOp(
        "RequantizeWide",
        ("acc", "m", "bias", "n"),
        _TARGET,
        "(acc * m + bias + 2**(n-1)) >> n in int64, clamped: products below 2**62, or a bias on "
        "the grid of 2**-n.",
    ),
    DomainOp(
        "RequantizeLimbs",
        ("acc", "m", "n"),
        _TARGET,
        "Requantize of an accumulator of 48 bits with m of 31, in two limbs of int64.",
    ),
    DomainOp("Barrier", ("x",), {}, "A DeQuantStub: the end of the quantized region in qat.bc."),
)

SCHEMAS: dict[str, DomainOp] = {op.name: op for op in _OPS}
