"""Bodies of the integer GEMMs, put together from pieces: load codes, sum, finish.

Sums come from ConvInteger on unsigned bytes, whose kernels are exact on every CPU (those of
unsigned by signed bytes are not), or from MatMul in double, exact below 2**53. 16-bit operands of a
convolution are two bytes each. Everything behind the sum is double: at most 48 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from qtune.hbir.bodies.quant import DOUBLE, IMPORTS, INT32, UINT8
from qtune.hbir.domain import DomainOp
from qtune.ops.gemm.variants import FORMS, VARIANTS, Variant

_REQUANTIZE = "<lo: int = @lo, hi: int = @hi, to: int = @to>"

_CONSTANTS = """
  c128 = Constant<value = int32 {128}>()
  c256 = Constant<value = int32 {256}>()
  c32768 = Constant<value = int32 {32768}>()
  zero_hi = Constant<value = uint8 {128}>()
  zero_lo = Constant<value = uint8 {0}>()
"""


class _Bytes(NamedTuple):
    """One byte plane of an operand: value, its zero point, and what it counts."""

    value: str
    zero: str
    weight: int


def _planes(name: str, bits: int) -> tuple[str, list[_Bytes]]:
    """Lines that split the int32 codes ``name`` into unsigned bytes, and those bytes."""
    if bits == 8:
        lines = f"""
  {name}_s = Add({name}, c128)
  {name}_u = Cast<to = {UINT8}>({name}_s)
"""
        return lines, [_Bytes(f"{name}_u", "zero_hi", 1)]
    lines = f"""
  {name}_s = Add({name}, c32768)
  {name}_h = Div({name}_s, c256)
  {name}_l = Mod({name}_s, c256)
  {name}_hu = Cast<to = {UINT8}>({name}_h)
  {name}_lu = Cast<to = {UINT8}>({name}_l)
"""
    return lines, [_Bytes(f"{name}_hu", "zero_hi", 256), _Bytes(f"{name}_lu", "zero_lo", 1)]


def _conv_sum(kind: Variant, attributes: Sequence[str], x: str, w: str) -> str:
    """Lines that leave the exact sum in ``sum`` (double)."""
    x_lines, x_planes = _planes(x, kind.x_bits)
    w_lines, w_planes = _planes(w, kind.w_bits)
    given = ", ".join(
        f"{name}: {'int' if name == 'group' else 'ints'} = @{name}" for name in attributes
    )
    lines, terms = [_CONSTANTS, x_lines, w_lines], []
    for i, xp in enumerate(x_planes):
        for j, wp in enumerate(w_planes):
            part, weight = f"part{i}{j}", xp.weight * wp.weight
            lines.append(f"""
  {part} = ConvInteger<{given}>({xp.value}, {wp.value}, {xp.zero}, {wp.zero})
  {part}_d = Cast<to = {DOUBLE}>({part})
  {part}_c = Constant<value = double {{{weight}.0}}>()
  {part}_w = Mul({part}_d, {part}_c)
""")
            terms.append(f"{part}_w")
    lines.append(f"\n  sum = Sum({', '.join(terms)})\n")
    return "".join(lines)


def _conv(kind: Variant) -> str:
    load = f"\n  x_i = Cast<to = {INT32}>(x)\n  w_i = Cast<to = {INT32}>(w)\n"
    return load + _conv_sum(kind, ("strides", "pads", "dilations", "group"), "x_i", "w_i")


_SPREAD = f"""
  x_i = Cast<to = {INT32}>(x)
  stuffing = Constant<value_ints: ints = @stuffing>()
  edges = Constant<value_ints: ints = @edges>()
  steps = Constant<value_ints: ints = @strides>()
  behind = Constant<value_ints: ints = [1]>()
  beside = Constant<value_ints: ints = [0, 0, 0, 1]>()
  all = Constant<value_ints: ints = [-1]>()
  one = Constant<value_int: int = 1>()
  x_lead = Shape<start = 0, end = 2>(x)
  x_size = Shape<start = 2>(x)
  x_sizes = Unsqueeze(x_size, behind)
  x_pairs = Pad(x_sizes, beside, one)
  x_units = Reshape(x_pairs, all)
  x_split_shape = Concat<axis = 0>(x_lead, x_units)
  x_split = Reshape(x_i, x_split_shape)
  x_gaps = Pad(x_split, stuffing)
  x_wide = Mul(x_size, steps)
  x_shape = Concat<axis = 0>(x_lead, x_wide)
  x_spread = Reshape(x_gaps, x_shape)
  x_map = Pad(x_spread, edges)
"""

_MIRROR = f"""
  w_i = Cast<to = {INT32}>(w)
  group = Constant<value_int: int = @group>()
  minus = Constant<value_ints: ints = [-1]>()
  first = Constant<value_ints: ints = [0]>()
  w_group = Unsqueeze(group, first)
  w_each = Shape<start = 1, end = 2>(w)
  w_outputs = Mul(w_group, w_each)
  w_kernel = Shape<start = 2>(w)
  w_all = Shape<start = 0, end = 1>(w)
  w_inputs = Div(w_all, w_group)
  w_split_shape = Concat<axis = 0>(w_group, w_inputs, w_each, minus)
  w_split = Reshape(w_i, w_split_shape)
  w_swapped = Transpose<perm = [0, 2, 1, 3]>(w_split)
  until = Constant<value_ints: ints = [-2147483648]>()
  last = Constant<value_ints: ints = [3]>()
  w_mirrored = Slice(w_swapped, minus, until, last, minus)
  w_shape = Concat<axis = 0>(w_outputs, w_inputs, w_kernel)
  w_conv = Reshape(w_mirrored, w_shape)
"""


def _conv_transpose(kind: Variant) -> str:
    return _SPREAD + _MIRROR + _conv_sum(kind, ("dilations", "group"), "x_map", "w_conv")


def _linear(kind: Variant) -> str:
    return f"""
  x_d = Cast<to = {DOUBLE}>(x)
  w_d = Cast<to = {DOUBLE}>(w)
  w_t = Transpose<perm = [1, 0]>(w_d)
  sum = MatMul(x_d, w_t)
"""


def _matmul(kind: Variant) -> str:
    return f"""
  a_d = Cast<to = {DOUBLE}>(a)
  b_d = Cast<to = {DOUBLE}>(b)
  sum = MatMul(a_d, b_d)
"""


_BIAS = f"""
  bias_d = Cast<to = {DOUBLE}>(bias)
  biased = Add(sum, bias_d)
"""

_NO_BIAS = "\n  biased = Identity(sum)\n"


def _saturate(kind: Variant, source: str, target: str) -> str:
    top = 1 << (kind.accumulator_bits - 1)
    return f"""
  {target}_low = Constant<value = double {{-{top}.0}}>()
  {target}_high = Constant<value = double {{{top - 1}.0}}>()
  {target} = Clip({source}, {target}_low, {target}_high)
"""


def _finish(kind: Variant, form: str) -> str:
    """Lines from ``biased`` to ``y``."""
    lines = _saturate(kind, "biased", "acc")
    last = "acc"
    if "Add" in form:
        lines += "\n  moved = qtune.Rescale(addend, m_addend, n_addend)\n  joined = Add(acc, moved)"
        lines += _saturate(kind, "joined", "acc_all")
        last = "acc_all"
    if "Acc" in form:
        return lines + f"\n  y = Cast<to = {INT32}>({last})\n"
    if kind.accumulator_bits == 32:
        return lines + f"\n  y = qtune.Requantize{_REQUANTIZE}({last}, m, n)\n"
    return lines + f"\n  y = qtune.RequantizeLimbs{_REQUANTIZE}({last}, m, n)\n"


_CONV_ATTRIBUTES = {"strides": "ints", "pads": "ints", "dilations": "ints", "group": "int"}
_TRANSPOSE_ATTRIBUTES = {
    **_CONV_ATTRIBUTES,
    "output_padding": "ints",
    "stuffing": "ints",
    "edges": "ints",
}
_TARGET = {"lo": "int", "hi": "int", "to": "int"}


class _Base(NamedTuple):
    """One family of operators: its operands, attributes, the writer of its sum, and its forms."""

    name: str
    operands: tuple[str, ...]
    attributes: dict[str, str]
    write_sum: Callable[[Variant], str]
    forms: tuple[str, ...]
    words: str


_BASES = (
    _Base(
        "QConv",
        ("x", "w", "bias"),
        _CONV_ATTRIBUTES,
        _conv,
        FORMS,
        "convolution (attributes of ONNX Conv) of x [N, I, ...] with w [O, I / group, ...]",
    ),
    _Base(
        "QConvTranspose",
        ("x", "w", "bias"),
        _TRANSPOSE_ATTRIBUTES,
        _conv_transpose,
        FORMS,
        "transposed convolution (attributes of ONNX ConvTranspose) of x [N, I, ...] with w "
        "[I, O / group, ...]; stuffing and edges follow from the other attributes: the pads "
        "with which it becomes a plain convolution of the map spread out with zeros",
    ),
    _Base("QLinear", ("x", "w", "bias"), {}, _linear, FORMS, "x [..., I] @ w [O, I] transposed"),
    _Base("QMatMul", ("a", "b"), {}, _matmul, ("", "Acc"), "a @ b"),
)

_FINISH_INPUTS = {
    "": ("m", "n"),
    "Add": ("m", "n", "addend", "m_addend", "n_addend"),
    "Acc": (),
    "AddAcc": ("addend", "m_addend", "n_addend"),
}

_FINISH_WORDS = {
    "": "requantized with m / 2**n",
    "Add": "plus the addend rescaled with m_addend / 2**n_addend, requantized with m / 2**n",
    "Acc": "as int32 accumulator",
    "AddAcc": "plus the addend rescaled with m_addend / 2**n_addend, as int32 accumulator",
}


def _schema(base: _Base, kind: Variant, form: str) -> DomainOp:
    bias = "plus bias, " if "bias" in base.operands else ""
    return DomainOp(
        f"{base.name}{kind.suffix}{form}",
        (*base.operands, *_FINISH_INPUTS[form]),
        base.attributes if "Acc" in form else {**base.attributes, **_TARGET},
        f"int{kind.x_bits} x int{kind.w_bits} {base.words}, {bias}saturated to "
        f"{kind.accumulator_bits} bits, {_FINISH_WORDS[form]}. Constants per output channel are "
        "stored so that they broadcast on the result.",
    )


def _body(base: _Base, kind: Variant, form: str) -> str:
    op = _schema(base, kind, form)
    attributes = f" <{', '.join(op.attributes)}>" if op.attributes else ""
    bias = _BIAS if "bias" in base.operands else _NO_BIAS
    lines = base.write_sum(kind) + bias + _finish(kind, form)
    return f"{IMPORTS}{op.name}{attributes} ({', '.join(op.inputs)}) => (y)\n{{{lines}}}"


def _linear_float(name: str, bias: bool) -> str:
    inputs, last = ("x, weight, bias", "Add(product, bias)") if bias else ("x, weight", "")
    return f"""{IMPORTS}{name} ({inputs}) => (y)
{{
  turned = Transpose<perm = [1, 0]>(weight)
  {"product" if bias else "y"} = MatMul(x, turned)
  {f"y = {last}" if bias else ""}
}}"""


_ALL = [
    (base, kind, form)
    for base in _BASES
    for kind in VARIANTS
    for form in base.forms
    if form in kind.forms
]

_FLOAT_OPS = (
    DomainOp("Linear", ("x", "weight", "bias"), {}, "torch's linear on x [..., I], any rank."),
    DomainOp("LinearNoBias", ("x", "weight"), {}, "Linear without bias."),
)

BODIES: dict[str, str] = {
    "Linear": _linear_float("Linear", True),
    "LinearNoBias": _linear_float("LinearNoBias", False),
    **{_schema(*entry).name: _body(*entry) for entry in _ALL},
}

SCHEMAS: dict[str, DomainOp] = {
    op.name: op for op in (*_FLOAT_OPS, *(_schema(*entry) for entry in _ALL))
}
